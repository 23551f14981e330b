/// @file
/// What the driver knows about a device pointer, and how the memory behind it can be shared.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// How memory travels from its owner to a peer.
enum class Flavor : std::uint32_t {
  none = 0,        ///< Nothing to share: zero bytes.
  descriptor = 1,  ///< A file descriptor of a cuMemCreate allocation.
  legacy = 2,      ///< A legacy IPC handle of a cuMemAlloc (cudaMalloc) allocation.
};

/// The range of memory that holds a pointer.
struct PointerInfo {
  Flavor flavor = Flavor::none;
  CUdeviceptr base = 0;       ///< start of the allocation or mapping
  std::size_t range = 0;      ///< bytes of it
  std::size_t offset = 0;     ///< of the pointer from base: handles name the base only
  unsigned long long id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process's life
  int ordinal = 0;            ///< the device
};

namespace detail {

// False where the driver does not know the pointer or the attribute. @throws DriverError otherwise
template <typename Value>
bool query(Value* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const CUresult code = driver::api.cuPointerGetAttribute.result(value, attribute, pointer);
  if (code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_SUPPORTED) return false;
  driver::check(code, "cuPointerGetAttribute");
  return true;
}

[[noreturn]] inline void cannot_share(CUdeviceptr pointer, const std::string& what,
                                      const std::string& way_out) {
  throw NotSupportedError("The memory at " + std::to_string(pointer) + " is " + what +
                          ", which the driver does not share between processes. " + way_out);
}

}  // namespace detail

/// Finds out how `bytes` of memory at a device pointer can be shared.
/// @throws ArgumentError when it is not device memory or runs over its allocation's end.
/// @throws NotSupportedError when it cannot be shared; names the kind of memory and the way out.
inline PointerInfo pointer_info(const void* memory, std::size_t bytes) {
  const auto pointer = reinterpret_cast<CUdeviceptr>(memory);
  const std::string copy_instead = "Copy it into a tensor made with empty().";
  unsigned int type = 0;
  if (!detail::query(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)) {
    throw ArgumentError("The memory at " + std::to_string(pointer) +
                        " is not known to the CUDA driver: only device memory can be shared. " +
                        copy_instead);
  }
  unsigned int managed = 0;
  if (detail::query(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) && managed) {
    detail::cannot_share(pointer, "managed memory", copy_instead);
  }
  if (type != CU_MEMORYTYPE_DEVICE) {
    throw ArgumentError("The memory at " + std::to_string(pointer) +
                        " is host memory: only device memory can be shared. " + copy_instead);
  }
  CUmemoryPool pool = nullptr;
  if (detail::query(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer) && pool) {
    detail::cannot_share(pointer, "memory of a stream-ordered pool (cudaMallocAsync)",
                         copy_instead);
  }

  PointerInfo info;
  driver::api.cuMemGetAddressRange(&info.base, &info.range, pointer);
  info.offset = pointer - info.base;
  driver::api.cuPointerGetAttribute(&info.ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  detail::query(&info.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer);
  if (bytes > info.range - info.offset) {
    throw NotSupportedError(
        std::to_string(bytes) + " bytes at " + std::to_string(pointer) +
        " run over the end of an " + "allocation of " + std::to_string(info.range) + " bytes at " +
        std::to_string(info.base) +
        ": memory of several allocations (torch's expandable segments) is not shared as one. " +
        copy_instead);
  }
  unsigned int legacy = 0;
  if (detail::query(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer) && legacy) {
    info.flavor = Flavor::legacy;
    return info;
  }
  unsigned long long handle_types = 0;
  detail::query(&handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer);
  if (handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    info.flavor = Flavor::descriptor;
    return info;
  }
  detail::cannot_share(
      pointer,
      "virtual memory that was created without an exportable handle type "
      "(torch's expandable_segments:True makes such memory)",
      "Unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or c" + copy_instead.substr(1));
}

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
