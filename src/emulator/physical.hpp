/// @file
/// Physical memory: a memfd, with one more page at its end that says what it is to every process
/// that gets it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// Names one piece of physical memory in all processes.
using Token = std::array<uint64_t, 2>;

enum class PhysicalKind : uint32_t {
  generic = 1,  ///< cuMemCreate
  plain = 2,    ///< cuMemAlloc
};

/// What the last page of the memfd holds.
struct Metadata {
  char magic[16];
  uint32_t abi;
  PhysicalKind kind;
  uint64_t size;
  Token token;
  CUuuid device;
  int32_t location_type;  // CUmemLocationType
  int32_t
      location_id;  // a NUMA node; not used for a device, whose ordinal differs between processes
  uint32_t handle_types;  // the shareable forms it was created with
};

/// Reads the last page of what a descriptor refers to; false when it is not the emulator's.
bool read_metadata(int descriptor, Metadata* metadata) noexcept;

size_t page_size() noexcept;

/// A piece of physical memory. Charges its device while it lives, if it was made here.
class Physical {
 public:
  /// Makes new memory, all zero. `metadata` says kind, size, location and handle types; `device` is
  /// the ordinal that is charged, CU_DEVICE_INVALID for host memory.
  /// @return CUDA_SUCCESS, 2 when the device has not enough left, 304 when no descriptor is left.
  static CUresult create(Metadata metadata, int device, std::shared_ptr<Physical>* physical);
  /// Memory of another process or of this one, whose descriptor it owns from now on.
  static std::shared_ptr<Physical> adopt(int descriptor, const Metadata& metadata);
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const Metadata& metadata() const noexcept { return metadata_; }
  size_t size() const noexcept { return metadata_.size; }
  int descriptor() const noexcept { return descriptor_; }
  /// The ordinal here, CU_DEVICE_INVALID for host memory and for a device that is not visible.
  int device() const noexcept { return device_; }
  bool in_host_memory() const noexcept {
    return metadata_.location_type != CU_MEM_LOCATION_TYPE_DEVICE;
  }

  /// Objects alive that create() made, and descriptors that all objects hold.
  static long created_count() noexcept;
  static long descriptor_count() noexcept;

 private:
  Physical(int descriptor, const Metadata& metadata, int device, size_t charged, bool created)
      : descriptor_(descriptor),
        metadata_(metadata),
        device_(device),
        charged_(charged),
        created_(created) {}

  const int descriptor_;
  const Metadata metadata_;
  const int device_;
  const size_t charged_;
  const bool created_;
};

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
