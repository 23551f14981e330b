/// @file
/// Memory that all ranks have dropped, to be used again by the next creation.
///
/// A drop leaves the mappings of all ranks' memory in the reclaimer until the next creation. When
/// every rank has dropped the same memory and its device has finished with it, that creation takes
/// it as it is, without a call of the driver; otherwise it is released, as everything else there.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "parallel_tensor/memory/mapping.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// New memory of every rank, mapped here: what the pieces of one memory own together.
struct MappedMemory {
  std::vector<memory::Mapping> mappings;  ///< one per rank
  std::size_t range = 0;                  ///< bytes of each
  std::uint64_t number = 0;               ///< the same on all ranks; 0 while it is being made
  std::uint64_t group = 0;                ///< whose numbers those are: its group_identity()
};

/// The dropped memory that a creation found. What it does not take is released when this ends.
class Spares {
 public:
  /// @param group the identity of the group whose memory may be used again.
  explicit Spares(std::uint64_t group) : group_(group) {
    auto& reclaimer = memory::Reclaimer::instance();
    const auto until = std::chrono::steady_clock::now() + patience;
    while (reclaimer.waiting() > 0) {
      for (auto& node : reclaimer.harvest()) finished_.push_back(std::move(node));
      if (std::chrono::steady_clock::now() >= until) break;
    }
  }
  ~Spares() { memory::Reclaimer::release(std::move(finished_)); }
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;

  /// Takes the memory of the group with this range.
  std::vector<MappedMemory> take(std::size_t range) {
    std::vector<MappedMemory> taken;
    std::erase_if(finished_, [&](std::unique_ptr<memory::detail::Dropped>& node) {
      auto* found = dynamic_cast<memory::detail::DroppedResource<MappedMemory>*>(node.get());
      if (!found || taken.size() == most || found->resource.range != range ||
          found->resource.group != group_ || found->resource.number == 0) {
        return false;
      }
      taken.push_back(std::move(found->resource));
      return true;
    });
    return taken;
  }

  /// How many numbers of spare memory a rank tells the others.
  static constexpr std::size_t most = 4;

 private:
  // An event over an idle context takes some microseconds to be done.
  static constexpr std::chrono::microseconds patience{60};

  std::uint64_t group_;
  std::vector<std::unique_ptr<memory::detail::Dropped>> finished_;
};

}  // namespace v1
}  // namespace parallel_tensor
