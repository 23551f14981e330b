/// @file
/// What lies where in this process's address space, and what the generic allocation handles stand
/// for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "context.hpp"
#include "cuda_abi.hpp"
#include "physical.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// What a generic allocation handle stands for. Several handles may share one.
struct Allocation {
  std::shared_ptr<Physical> physical;
  // An imported one has no handle types: it cannot be exported again.
  CUmemAllocationProp properties{};
};

enum class RegionKind {
  mapping,  ///< cuMemMap
  plain,    ///< cuMemAlloc
  opened,   ///< cuIpcOpenMemHandle
  host,     ///< cuMemHostAlloc
};

/// A range of addresses with memory behind it.
struct Region {
  RegionKind kind{};
  CUdeviceptr base = 0;
  size_t size = 0;
  uint64_t buffer_id = 0;
  int device = CU_DEVICE_INVALID;          // of the memory
  std::shared_ptr<Allocation> allocation;  // mapping and plain
  std::vector<CUmemAccess_flags> access;   // mapping: by the ordinal of who accesses
  CUmemAccess_flags host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // mapping of host memory
  std::shared_ptr<Context> context;                               // plain, opened and host
  Token token{};                                                  // opened
  int opens = 0;                                                  // opened: how often

  bool contains(CUdeviceptr address) const { return address - base < size; }
  CUdeviceptr end() const { return base + size; }
};

/// The memory of this process. Its members may be used while `mutex` is held; no call into a stream
/// is made meanwhile.
class Memory {
 public:
  static Memory& instance();

  std::mutex mutex;
  std::map<CUdeviceptr, Region> regions;  // by base, without overlap
  std::map<CUdeviceptr, size_t> reservations;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> handles;

  /// Null when the address has no memory.
  Region* region_at(CUdeviceptr address);
  /// Whether [address, address + bytes) lies in reservations; adjacent ones count as one, as on a
  /// GPU.
  bool reserved(CUdeviceptr address, size_t bytes) const;
  /// Whether a device reaches the whole range through regions that adjoin.
  bool accessible(CUdeviceptr address, size_t bytes, int device, bool write);

  /// The physical memory of a token if this process has it already.
  std::shared_ptr<Physical> physical_of(const Token& token);
  void remember(const std::shared_ptr<Physical>& physical);

  /// Takes the memory that belongs to a context. Takes `mutex` itself.
  void release_context(const Context& context);

 private:
  std::map<Token, std::weak_ptr<Physical>> physicals_;
  size_t next_sweep_ = 64;
};

/// Unmaps the memory of a region that is not a mapping. A mapping's addresses go back to its
/// reservation.
void unmap_region(const Region& region);

/// A descriptor's memory at an address that the kernel chooses; null when there is no room.
void* map_anywhere(int descriptor, size_t size);

/// Rounds up to whole pages; 0 when that overflows.
size_t whole_pages(size_t bytes);

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
