// Plain memory: cuMemAlloc, cuMemHostAlloc and their likes.
#include "devices.hpp"
#include "gate.hpp"
#include "memory.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

CUdeviceptr as_pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

CUresult get_info(size_t* free, size_t* total) {
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  Devices::instance().memory(context->device(), free, total);
  return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr* pointer, size_t bytes) {
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  Metadata metadata{};
  metadata.kind = PhysicalKind::plain;
  metadata.size = whole_pages(bytes);
  metadata.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (metadata.size == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  CUresult result = Physical::create(metadata, context->device(), &allocation->physical);
  if (result != CUDA_SUCCESS) return result;
  void* address = map_anywhere(allocation->physical->descriptor(), metadata.size);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  Region region;
  region.kind = RegionKind::plain;
  region.base = as_pointer(address);
  region.size = metadata.size;
  region.buffer_id = next_handle();
  region.device = context->device();
  region.allocation = std::move(allocation);
  region.context = std::move(context);
  memory.regions.emplace(region.base, std::move(region));
  *pointer = as_pointer(address);
  return CUDA_SUCCESS;
}

CUresult allocate_host(void** pointer, size_t bytes, unsigned int flags) {
  constexpr unsigned int known =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!pointer || bytes == 0 || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  const size_t size = whole_pages(bytes);
  void* address = size == 0 ? nullptr : map_anywhere(-1, size);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  Region region;
  region.kind = RegionKind::host;
  region.base = as_pointer(address);
  region.size = size;
  region.buffer_id = next_handle();
  region.device = context->device();
  region.context = std::move(context);
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  memory.regions.emplace(region.base, std::move(region));
  *pointer = address;
  return CUDA_SUCCESS;
}

// Frees what starts exactly at this address and is of this kind, after the work of its context.
CUresult free_region(CUdeviceptr pointer, RegionKind kind) {
  if (pointer == 0) return kind == RegionKind::plain ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::shared_ptr<Context> context;
  {
    std::lock_guard lock(memory.mutex);
    const auto found = memory.regions.find(pointer);
    if (found == memory.regions.end() || found->second.kind != kind) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context = found->second.context;
  }
  context->synchronize();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.regions.find(pointer);
  if (found == memory.regions.end() || found->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  unmap_region(found->second);
  memory.regions.erase(found);
  return CUDA_SUCCESS;
}

CUresult host_device_pointer(CUdeviceptr* device_pointer, void* pointer, unsigned int flags) {
  if (!device_pointer || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(as_pointer(pointer));
  if (!region || region->kind != RegionKind::host) return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = as_pointer(pointer);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
  return gate(PARALLEL_TENSOR_CALL(cuMemGetInfo), [&] { return get_info(free, total); });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  return gate(PARALLEL_TENSOR_CALL(cuMemAlloc), [&] { return allocate(pointer, bytes); });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuMemFree),
              [&] { return free_region(pointer, RegionKind::plain); });
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemHostAlloc),
              [&] { return allocate_host(pointer, bytes, flags); });
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuMemFreeHost),
              [&] { return free_region(as_pointer(pointer), RegionKind::host); });
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* device_pointer, void* pointer,
                                           unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemHostGetDevicePointer),
              [&] { return host_device_pointer(device_pointer, pointer, flags); });
}
