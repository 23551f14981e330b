/// @file
/// The bounded wait for a signal: it ends when the signal comes, when the limit runs out or when
/// the host sets the abort word. The last two leave a status for the host and let the kernel
/// return, so that the CUDA context lives on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_tensor/device/memory_order.cuh"
#include "parallel_tensor/device/qualifiers.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// The limits of the waits of one launch.
struct WaitLimits {
  WaitStatus* status;      ///< This rank's status, readable and writable by the device.
  std::uint64_t limit_ns;  ///< How long one wait may take.
};

/// What is waited for, as it appears in the status.
struct WaitTarget {
  int rank;
  int peer;
  Channel channel;
  unsigned int block;
  std::uint32_t epoch;
};

/// True when `seen` is `epoch` or later; right across the wrap of the 32 bits while they are less
/// than 2^31 apart.
PARALLEL_TENSOR_HOST_DEVICE constexpr bool epoch_reached(std::uint32_t seen, std::uint32_t epoch) {
  return static_cast<std::int32_t>(seen - epoch) >= 0;
}

/// The failed word of a rank, given its workspace.
PARALLEL_TENSOR_DEVICE std::uint32_t* failed_word(std::byte* workspace) {
  return reinterpret_cast<std::uint32_t*>(workspace + failed_offset());
}

/// Marks this rank as failed and, if it is the first to do so, writes the status.
PARALLEL_TENSOR_DEVICE void report_failed_wait(std::uint32_t* failed, WaitStatus* status,
                                               WaitState state, const WaitTarget& target,
                                               std::uint32_t seen, std::uint64_t waited_ns) {
  if (compare_exchange_device(failed, 0, static_cast<std::uint32_t>(state)) != 0) {
    return;
  }
  status->rank = target.rank;
  status->peer = target.peer;
  status->channel = static_cast<std::uint32_t>(target.channel);
  status->block = target.block;
  status->epoch = target.epoch;
  status->seen = seen;
  status->waited_ns = waited_ns;
  store_release_system(&status->state, static_cast<std::uint32_t>(state));
}

/// Waits until `word` reaches the epoch of `target`; what its writer did before is then visible to
/// this thread. False when the limit ran out, the host aborted, or another wait of this rank had
/// failed.
template <typename Platform>
PARALLEL_TENSOR_DEVICE bool wait_for_epoch(const Platform& platform, const std::uint32_t* word,
                                           const WaitTarget& target, std::uint32_t* failed,
                                           const WaitLimits& limits) {
  std::uint32_t seen = load_acquire_system(word);
  if (epoch_reached(seen, target.epoch)) {
    return true;
  }
  const std::uint64_t start = platform.now_ns();
  for (std::uint32_t turns = 1;; ++turns) {
    platform.pause(turns);
    seen = load_acquire_system(word);
    if (epoch_reached(seen, target.epoch)) {
      return true;
    }
    if (turns % Platform::turns_between_checks != 0) {
      continue;
    }
    if (load_relaxed_device(failed) != 0) {
      return false;
    }
    const std::uint64_t waited = platform.now_ns() - start;
    const bool aborted = load_relaxed_system(&limits.status->abort) != 0;
    if (aborted || waited >= limits.limit_ns) {
      report_failed_wait(failed, limits.status, aborted ? WaitState::aborted : WaitState::timed_out,
                         target, seen, waited);
      return false;
    }
  }
}

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
