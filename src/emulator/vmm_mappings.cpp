// Virtual memory management: address reservations, mappings, access.
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "devices.hpp"
#include "memory.hpp"
#include "vmm.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

void* reserve_pages(size_t size, size_t alignment, void* hint) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  // Room to cut an aligned piece out of; the rest goes back at once.
  void* mapped = mmap(hint, size + alignment, PROT_NONE, flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t base = (begin + alignment - 1) & ~(alignment - 1);
  const size_t head = base - begin;
  const size_t tail = alignment - head;
  if (head > 0) munmap(mapped, head);
  if (tail > 0) munmap(reinterpret_cast<void*>(base + size), tail);
  return reinterpret_cast<void*>(base);
}

CUresult reserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags) {
  const size_t minimum = Devices::instance().granularity().minimum;
  if (!address || flags != 0 || size == 0 || size % minimum != 0 ||
      (alignment != 0 && !std::has_single_bit(alignment))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  alignment = std::max(alignment, minimum);
  if (size >= address_space || alignment >= address_space) return CUDA_ERROR_OUT_OF_MEMORY;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  void* base = reserve_pages(size, alignment, reinterpret_cast<void*>(hint));
  if (!base) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(base);
  memory.reservations.emplace(*address, size);
  return CUDA_SUCCESS;
}

// The regions that begin in the range, from the first one that reaches into it.
auto first_region(Memory& memory, CUdeviceptr begin) {
  auto entry = memory.regions.upper_bound(begin);
  if (entry != memory.regions.begin() && std::prev(entry)->second.contains(begin)) --entry;
  return entry;
}

bool overlaps_region(Memory& memory, CUdeviceptr begin, size_t size) {
  const auto entry = first_region(memory, begin);
  return entry != memory.regions.end() && entry->second.base < begin + size;
}

CUresult free_reservation(CUdeviceptr address, size_t size) {
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.reservations.find(address);
  if (found == memory.reservations.end() || found->second != size ||
      overlaps_region(memory, address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(reinterpret_cast<void*>(address), size);
  memory.reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.handles.find(handle);
  if (found == memory.handles.end()) {
    complain_of_handle("cuMemMap");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& allocation = found->second;
  if (flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || size != allocation->physical->size()) return CUDA_ERROR_NOT_SUPPORTED;
  if (address % Devices::instance().granularity().minimum != 0 || !memory.reserved(address, size) ||
      overlaps_region(memory, address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Region region;
  region.kind = RegionKind::mapping;
  region.base = address;
  region.size = size;
  region.buffer_id = next_handle();
  region.device = allocation->physical->device();
  region.allocation = allocation;
  region.access.assign(static_cast<size_t>(Devices::instance().count()),
                       CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const auto entry = memory.regions.emplace(address, std::move(region)).first;
  if (mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
           allocation->physical->descriptor(), 0) == MAP_FAILED) {
    memory.regions.erase(entry);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, size_t size) {
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  if (size == 0 || !memory.reserved(address, size)) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr end = address + size;
  const auto first = first_region(memory, address);
  auto last = first;
  for (; last != memory.regions.end() && last->second.base < end; ++last) {
    if (last->second.base < address || last->second.end() > end) return CUDA_ERROR_INVALID_VALUE;
  }
  if (first == last) return CUDA_SUCCESS;
  if (mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory.regions.erase(first, last);
  return CUDA_SUCCESS;
}

bool valid_access(const CUmemAccessDesc& access) {
  const bool known_flags = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                           access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                           access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return known_flags && Devices::instance().valid(access.location.id);
  }
  return known_flags && is_host_location(access.location.type);
}

// What the host gets at these addresses: the most that anybody has.
int protection(const Region& region) {
  auto flags = static_cast<unsigned int>(region.host_access);
  for (const auto access : region.access) flags |= static_cast<unsigned int>(access);
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return PROT_NONE;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;
}

CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* list, size_t count) {
  if (size == 0 || !list || count == 0 || address + size < address) return CUDA_ERROR_INVALID_VALUE;
  if (!std::all_of(list, list + count, valid_access)) return CUDA_ERROR_INVALID_VALUE;
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const CUdeviceptr end = address + size;
  const auto first = memory.regions.find(address);
  auto last = first;
  CUdeviceptr covered = address;
  for (; last != memory.regions.end() && covered < end; ++last) {
    const Region& region = last->second;
    if (region.kind != RegionKind::mapping || region.base != covered)
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const auto& location = list[i].location;
      const bool device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
      // The host may be given access to host memory alone.
      if (!device && !region.allocation->physical->in_host_memory())
        return CUDA_ERROR_INVALID_VALUE;
      if (device && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
          !Devices::instance().reaches(location.id, region.device)) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    covered = region.end();
  }
  if (covered != end) return CUDA_ERROR_INVALID_VALUE;

  for (auto entry = first; entry != last; ++entry) {
    Region& region = entry->second;
    for (size_t i = 0; i < count; ++i) {
      const auto& location = list[i].location;
      auto& access = location.type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? region.access[static_cast<size_t>(location.id)]
                         : region.host_access;
      access = list[i].flags;
    }
    if (mprotect(reinterpret_cast<void*>(region.base), region.size, protection(region)) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

CUresult get_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  const bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (device ? !Devices::instance().valid(location->id) : !is_host_location(location->type)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(address);
  if (!region || region->kind != RegionKind::mapping) return CUDA_ERROR_INVALID_VALUE;
  *flags = static_cast<unsigned long long>(
      device ? region->access[static_cast<size_t>(location->id)] : region->host_access);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                                     CUdeviceptr hint, unsigned long long flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemAddressReserve),
              [&] { return reserve(address, size, alignment, hint, flags); });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) {
  return gate(PARALLEL_TENSOR_CALL(cuMemAddressFree),
              [&] { return free_reservation(address, size); });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return gate(PARALLEL_TENSOR_CALL(cuMemMap),
              [&] { return map(address, size, offset, handle, flags); });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
  return gate(PARALLEL_TENSOR_CALL(cuMemUnmap), [&] { return unmap(address, size); });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* list,
                                size_t count) {
  return gate(PARALLEL_TENSOR_CALL(cuMemSetAccess),
              [&] { return set_access(address, size, list, count); });
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr address) {
  return gate(PARALLEL_TENSOR_CALL(cuMemGetAccess),
              [&] { return get_access(flags, location, address); });
}
