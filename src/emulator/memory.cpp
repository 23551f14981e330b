// The map of this process's memory, and plain memory: cuMemAlloc, cuMemHostAlloc, what a pointer
// is.
#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

Memory& Memory::instance() {
  static Memory* memory = new Memory;
  return *memory;
}

Region* Memory::region_at(CUdeviceptr address) {
  auto after = regions.upper_bound(address);
  if (after == regions.begin()) return nullptr;
  Region& region = std::prev(after)->second;
  return region.contains(address) ? &region : nullptr;
}

bool Memory::reserved(CUdeviceptr address, size_t bytes) const {
  const CUdeviceptr end = address + bytes;
  if (end < address) return false;
  while (address < end) {
    auto after = reservations.upper_bound(address);
    if (after == reservations.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    if (address - base >= size) return false;
    address = base + size;
  }
  return true;
}

bool Memory::accessible(CUdeviceptr address, size_t bytes, int device, bool write) {
  const CUdeviceptr end = address + bytes;
  if (end < address) return false;
  const unsigned int needed =
      write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  while (address < end) {
    const Region* region = region_at(address);
    if (!region) return false;
    if (region->kind == RegionKind::mapping) {
      const auto flags = static_cast<unsigned int>(region->access[static_cast<size_t>(device)]);
      if ((flags & needed) != needed) return false;
    }
    address = region->end();
  }
  return true;
}

std::shared_ptr<Physical> Memory::physical_of(const Token& token) {
  const auto found = physicals_.find(token);
  return found == physicals_.end() ? nullptr : found->second.lock();
}

void Memory::remember(const std::shared_ptr<Physical>& physical) {
  if (physicals_.size() >= next_sweep_) {
    std::erase_if(physicals_, [](const auto& entry) { return entry.second.expired(); });
    next_sweep_ = 2 * physicals_.size() + 64;
  }
  physicals_[physical->metadata().token] = physical;
}

void Memory::release_context(const Context& context) {
  std::lock_guard lock(mutex);
  for (auto entry = regions.begin(); entry != regions.end();) {
    if (entry->second.context.get() != &context) {
      ++entry;
      continue;
    }
    unmap_region(entry->second);
    entry = regions.erase(entry);
  }
}

void unmap_region(const Region& region) {
  munmap(reinterpret_cast<void*>(region.base), region.size);
}

void* map_anywhere(int descriptor, size_t size) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return address == MAP_FAILED ? nullptr : address;
}

size_t whole_pages(size_t bytes) {
  const size_t mask = page_size() - 1;
  return bytes > SIZE_MAX - mask ? 0 : (bytes + mask) & ~mask;
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
