// Virtual memory management: physical allocations, their handles, export and import.
#include <fcntl.h>

#include "devices.hpp"
#include "memory.hpp"
#include "vmm.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

bool has_attribute(int device, CUdevice_attribute attribute) {
  int value = 0;
  Devices::instance().attribute(device, static_cast<int>(attribute), &value);
  return value != 0;
}

CUresult check_properties(const CUmemAllocationProp* properties) {
  if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& location = properties->location;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!Devices::instance().valid(location.id)) return CUDA_ERROR_INVALID_DEVICE;
  } else if (!is_host_location(location.type)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned int types = static_cast<unsigned int>(properties->requestedHandleTypes);
  constexpr unsigned int known =
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
  return (types & ~known) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t size,
                const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_properties(properties); result != CUDA_SUCCESS) return result;
  if (size == 0 || size % Devices::instance().granularity().minimum != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned int types = static_cast<unsigned int>(properties->requestedHandleTypes);
  // The attribute says that fabric handles exist; without a channel between hosts the trial fails.
  if (types & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int device = on_device ? properties->location.id : CU_DEVICE_INVALID;
  if (on_device &&
      (!has_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
       ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
        !has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)))) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (size >= address_space) return CUDA_ERROR_OUT_OF_MEMORY;

  Metadata metadata{};
  metadata.kind = PhysicalKind::generic;
  metadata.size = size;
  metadata.location_type = properties->location.type;
  metadata.location_id = on_device ? 0 : properties->location.id;
  metadata.handle_types = types;
  auto allocation = std::make_shared<Allocation>();
  allocation->properties = *properties;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  CUresult result = Physical::create(metadata, device, &allocation->physical);
  if (result != CUDA_SUCCESS) return result;
  memory.remember(allocation->physical);
  *handle = next_handle();
  memory.handles.emplace(*handle, std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  if (memory.handles.erase(handle) == 1) return CUDA_SUCCESS;
  complain_of_handle("cuMemRelease");
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(address);
  if (!region || region->kind != RegionKind::mapping) return CUDA_ERROR_INVALID_VALUE;
  *handle = next_handle();
  memory.handles.emplace(*handle, region->allocation);
  return CUDA_SUCCESS;
}

CUresult export_handle(void* shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags) {
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.handles.find(handle);
  if (found == memory.handles.end()) {
    complain_of_handle("cuMemExportToShareableHandle");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (found->second->properties.requestedHandleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int exported = fcntl(found->second->physical->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (exported < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = exported;
  return CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* shareable,
                       CUmemAllocationHandleType type) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  Metadata metadata{};
  if (!read_metadata(descriptor, &metadata) || metadata.kind != PhysicalKind::generic ||
      (metadata.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return CUDA_ERROR_UNKNOWN;
  }
  auto allocation = std::make_shared<Allocation>();
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  allocation->physical = memory.physical_of(metadata.token);
  if (!allocation->physical) {
    const int owned = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (owned < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    allocation->physical = Physical::adopt(owned, metadata);
    memory.remember(allocation->physical);
  }
  auto& properties = allocation->properties;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = static_cast<CUmemLocationType>(metadata.location_type);
  properties.location.id = allocation->physical->in_host_memory() ? metadata.location_id
                                                                  : allocation->physical->device();
  *handle = next_handle();
  memory.handles.emplace(*handle, std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult granularity(size_t* bytes, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags option) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_properties(properties); result != CUDA_SUCCESS) return result;
  const auto granularity = Devices::instance().granularity();
  switch (option) {
    case CU_MEM_ALLOC_GRANULARITY_MINIMUM:
      *bytes = granularity.minimum;
      return CUDA_SUCCESS;
    case CU_MEM_ALLOC_GRANULARITY_RECOMMENDED:
      *bytes = granularity.recommended;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.handles.find(handle);
  if (found == memory.handles.end()) {
    complain_of_handle("cuMemGetAllocationPropertiesFromHandle");
    return CUDA_ERROR_INVALID_VALUE;
  }
  *properties = found->second->properties;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) {
  return gate(PARALLEL_TENSOR_CALL(cuMemGetAllocationGranularity),
              [&] { return granularity(bytes, properties, option); });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* properties, unsigned long long flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemCreate),
              [&] { return create(handle, size, properties, flags); });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return gate(PARALLEL_TENSOR_CALL(cuMemRelease), [&] { return release(handle); });
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return gate(PARALLEL_TENSOR_CALL(cuMemRetainAllocationHandle),
              [&] { return retain(handle, reinterpret_cast<CUdeviceptr>(address)); });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemExportToShareableHandle),
              [&] { return export_handle(shareable, handle, type, flags); });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* shareable, CUmemAllocationHandleType type) {
  return gate(PARALLEL_TENSOR_CALL(cuMemImportFromShareableHandle),
              [&] { return import_handle(handle, shareable, type); });
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) {
  return gate(PARALLEL_TENSOR_CALL(cuMemGetAllocationPropertiesFromHandle),
              [&] { return properties_of(properties, handle); });
}
