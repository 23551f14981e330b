// Copies and memset.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gate.hpp"
#include "memory.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

enum class Side { device, host, either };

// How the driver sees one end of a copy.
enum class Place { device, pinned, pageable };

CUresult find_place(CUdeviceptr pointer, size_t bytes, Side side, int device, bool write,
                    Place* place) {
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(pointer);
  if (region) {
    if (!memory.accessible(pointer, bytes, device, write)) return CUDA_ERROR_INVALID_VALUE;
    *place = region->kind == RegionKind::host ? Place::pinned : Place::device;
    return CUDA_SUCCESS;
  }
  // Reserved addresses without memory are the driver's, and nobody else's memory is a device's.
  if (side == Side::device || memory.reserved(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  *place = Place::pageable;
  return CUDA_SUCCESS;
}

struct Copy {
  CUdeviceptr destination;
  CUdeviceptr source;
  size_t bytes;
  Side destination_side;
  Side source_side;
};

CUresult copy(const Copy& copy, CUstream stream_handle, bool synchronous) {
  std::shared_ptr<Context> current;
  if (CUresult result = current_context(&current); result != CUDA_SUCCESS) return result;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(stream_handle, &stream); result != CUDA_SUCCESS) return result;
  if (copy.bytes == 0) return CUDA_SUCCESS;
  if (copy.destination == 0 || copy.source == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto& context = stream->context();
  Place destination{};
  Place source{};
  if (CUresult result = find_place(copy.destination, copy.bytes, copy.destination_side,
                                   context->device(), true, &destination);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result =
          find_place(copy.source, copy.bytes, copy.source_side, context->device(), false, &source);
      result != CUDA_SUCCESS) {
    return result;
  }

  // A copy between device addresses alone never makes the host wait. Pageable memory is used only
  // until the call returns: as a source it is staged, as a destination the call waits.
  const bool touches_host = destination != Place::device || source != Place::device;
  const bool waits = (synchronous && touches_host) || destination == Place::pageable;
  auto* to = reinterpret_cast<char*>(copy.destination);
  auto* from = reinterpret_cast<const char*>(copy.source);
  const size_t bytes = copy.bytes;
  Work work;
  if (source == Place::pageable && !waits) {
    work.action = [to, staged = std::vector<char>(from, from + bytes)] {
      std::memmove(to, staged.data(), staged.size());
    };
  } else {
    work.action = [to, from, bytes] { std::memmove(to, from, bytes); };
  }
  const Point point = context->submit(stream, std::move(work));
  if (!waits) return CUDA_SUCCESS;
  point.wait();
  return context->failure();
}

template <typename Value>
CUresult set(CUdeviceptr pointer, Value value, size_t count, CUstream stream_handle,
             bool synchronous) {
  std::shared_ptr<Context> current;
  if (CUresult result = current_context(&current); result != CUDA_SUCCESS) return result;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(stream_handle, &stream); result != CUDA_SUCCESS) return result;
  if (count == 0) return CUDA_SUCCESS;
  if (pointer % sizeof(Value) != 0 || count > SIZE_MAX / sizeof(Value)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& context = stream->context();
  Place place{};
  if (CUresult result =
          find_place(pointer, count * sizeof(Value), Side::device, context->device(), true, &place);
      result != CUDA_SUCCESS) {
    return result;
  }
  Work work;
  work.action = [pointer, value, count] {
    std::fill_n(reinterpret_cast<Value*>(pointer), count, value);
  };
  const Point point = context->submit(stream, std::move(work));
  if (synchronous && place == Place::pinned) point.wait();
  return CUDA_SUCCESS;
}

CUdeviceptr as_pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpy), [&] {
    return copy({to, from, bytes, Side::either, Side::either}, CU_STREAM_LEGACY, true);
  });
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyAsync),
              [&] { return copy({to, from, bytes, Side::either, Side::either}, stream, false); });
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyHtoD), [&] {
    return copy({to, as_pointer(from), bytes, Side::device, Side::host}, CU_STREAM_LEGACY, true);
  });
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyHtoDAsync), [&] {
    return copy({to, as_pointer(from), bytes, Side::device, Side::host}, stream, false);
  });
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyDtoH), [&] {
    return copy({as_pointer(to), from, bytes, Side::host, Side::device}, CU_STREAM_LEGACY, true);
  });
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyDtoHAsync), [&] {
    return copy({as_pointer(to), from, bytes, Side::host, Side::device}, stream, false);
  });
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyDtoD), [&] {
    return copy({to, from, bytes, Side::device, Side::device}, CU_STREAM_LEGACY, true);
  });
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemcpyDtoDAsync),
              [&] { return copy({to, from, bytes, Side::device, Side::device}, stream, false); });
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr pointer, unsigned char value, size_t count) {
  return gate(PARALLEL_TENSOR_CALL(cuMemsetD8),
              [&] { return set(pointer, value, count, CU_STREAM_LEGACY, true); });
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count,
                                 CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemsetD8Async),
              [&] { return set(pointer, value, count, stream, false); });
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr pointer, unsigned int value, size_t count) {
  return gate(PARALLEL_TENSOR_CALL(cuMemsetD32),
              [&] { return set(pointer, value, count, CU_STREAM_LEGACY, true); });
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr pointer, unsigned int value, size_t count,
                                  CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuMemsetD32Async),
              [&] { return set(pointer, value, count, stream, false); });
}
