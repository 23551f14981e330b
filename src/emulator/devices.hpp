/// @file
/// The emulated machine's devices as this process sees them: identity, attributes, memory, who
/// reaches whom.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// What cuDriverGetVersion answers.
inline constexpr int driver_version = 13000;

/// Allocation sizes are multiples of `minimum`.
struct Granularity {
  size_t minimum = size_t{2} << 20;
  size_t recommended = size_t{2} << 20;
  size_t multicast = size_t{2} << 20;
};

/// Ordinals are those of this process, after CUDA_VISIBLE_DEVICES. All functions are thread-safe.
class Devices {
 public:
  static Devices& instance();

  /// Reads the environment; a second call after a success does nothing.
  CUresult initialize();

  int count() const noexcept { return static_cast<int>(devices_.size()); }
  bool valid(int ordinal) const noexcept { return ordinal >= 0 && ordinal < count(); }
  CUuuid uuid(int ordinal) const { return devices_[static_cast<size_t>(ordinal)].uuid; }
  /// The ordinal of the device with this UUID, CU_DEVICE_INVALID when this process does not see it.
  int ordinal_of(const CUuuid& uuid) const;

  /// Fails with 1 for an attribute that does not exist.
  CUresult attribute(int ordinal, int attribute, int* value) const;
  CUresult set_attribute(int ordinal, const char* name, int value);

  /// Whether `ordinal` reaches the memory of `owner`; a device that is not visible here is reached.
  bool reaches(int ordinal, int owner) const;
  void set_reaches(int ordinal, int owner, bool possible);

  /// Takes memory of a device; false when there is not enough left.
  bool charge(int ordinal, size_t bytes);
  void refund(int ordinal, size_t bytes);
  void memory(int ordinal, size_t* free, size_t* total) const;
  void set_memory(int ordinal, size_t bytes);

  Granularity granularity() const;
  void set_granularity(const Granularity& granularity);

  int multicast_slots() const;
  void set_multicast_slots(int slots);

 private:
  static constexpr size_t attribute_limit = 256;
  struct Device {
    CUuuid uuid{};
    size_t memory = 0;
    size_t used = 0;
    std::array<int, attribute_limit> attributes{};
  };

  mutable std::mutex mutex_;
  std::vector<Device> devices_;  // the elements' number and UUIDs never change after initialize()
  std::set<std::pair<int, int>> unreachable_;
  Granularity granularity_;
  int multicast_slots_ = 64;
};

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
