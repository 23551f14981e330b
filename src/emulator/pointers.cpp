// What a pointer is: address ranges and pointer attributes.
#include "gate.hpp"
#include "memory.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

CUresult address_range(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(pointer);
  if (!region) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = region->base;
  if (size) *size = region->size;
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult answer(void* data, Value value) {
  *static_cast<Value*>(data) = value;
  return CUDA_SUCCESS;
}

bool on_host(const Region& region) {
  return region.kind == RegionKind::host ||
         (region.allocation && region.allocation->physical->in_host_memory());
}

CUresult region_attribute(void* data, CUpointer_attribute attribute, const Region& region,
                          CUdeviceptr pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer<CUcontext>(data, region.context ? region.context->handle() : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned int>(data,
                                  on_host(region) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer<CUdeviceptr>(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (region.kind != RegionKind::host) return CUDA_ERROR_INVALID_VALUE;
      return answer<void*>(data, reinterpret_cast<void*>(pointer));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer<unsigned long long>(data, region.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, region.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer<int>(data, region.kind == RegionKind::plain ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer<CUdeviceptr>(data, region.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer<size_t>(data, region.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<unsigned long long>(
          data,
          region.kind == RegionKind::mapping
              ? static_cast<unsigned long long>(region.allocation->properties.requestedHandleTypes)
              : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<CUmemoryPool>(data, nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  if (const Region* region = memory.region_at(pointer)) {
    return region_attribute(data, attribute, *region, pointer);
  }
  if (attribute == CU_POINTER_ATTRIBUTE_MAPPED && memory.reserved(pointer, 1)) {
    return answer<int>(data, 0);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The form for several attributes answers zero where the pointer is not the driver's.
CUresult unknown_pointer_attribute(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer<unsigned long long>(data, 0);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pointer_attributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                            CUdeviceptr pointer) {
  if (count == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < count; ++i) {
    if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
    if (pointer_attribute(data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
    if (CUresult result = unknown_pointer_attribute(data[i], attributes[i]);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuMemGetAddressRange),
              [&] { return address_range(base, size, pointer); });
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuPointerGetAttribute),
              [&] { return pointer_attribute(data, attribute, pointer); });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuPointerGetAttributes),
              [&] { return pointer_attributes(count, attributes, data, pointer); });
}
