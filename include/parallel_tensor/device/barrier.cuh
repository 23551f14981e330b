/// @file
/// The barrier between the same block of every rank, and the barrier between ranks that is made of
/// one block.
///
/// Each rank keeps an epoch per (channel, block) in its own workspace. To pass a barrier a block
/// writes the next epoch into its word of every peer's signal row and waits until every word of its
/// own row has reached it. Nothing is ever reset, and the epoch is advanced by the kernel itself,
/// so a captured launch replays right. All ranks must launch the same operations of a channel in
/// the same order with the same number of blocks, and those of one rank one after the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_tensor/device/memory_order.cuh"
#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/device/platform.cuh"
#include "parallel_tensor/device/qualifiers.cuh"
#include "parallel_tensor/device/wait.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// Passes barriers of one block of one channel. Every thread of the block makes one and calls the
/// same members in the same order.
template <typename Platform, int N>
class BlockBarrier {
 public:
  PARALLEL_TENSOR_DEVICE BlockBarrier(const Platform& platform,
                                      const PeerView<std::byte, N>& workspace, Channel channel,
                                      const WaitLimits& limits)
      : platform_(platform), workspace_(workspace), channel_(channel), limits_(limits) {
    std::byte* own = workspace_.pointers[workspace_.rank];
    failed_ = failed_word(own);
    epoch_word_ = reinterpret_cast<std::uint32_t*>(own + epoch_offset(channel_, platform_.block()));
    epoch_ = load_relaxed_device(epoch_word_);
    usable_ = load_relaxed_device(failed_) == 0;
  }

  /// Passes one barrier: what any thread of this block of any rank did before is visible to every
  /// thread of this block of every rank afterwards. False, for all threads of the block, when a
  /// wait failed; the kernel then returns without touching peers' memory.
  PARALLEL_TENSOR_DEVICE bool pass() {
    ++epoch_;
    platform_.sync();
    if (usable_) {
      signal();
      usable_ = wait();
    }
    usable_ = platform_.all(usable_);
    return usable_;
  }

  /// Keeps the epoch for the next launch. Called once, after the last `pass`.
  PARALLEL_TENSOR_DEVICE void finish() {
    if (platform_.thread() == 0) {
      store_relaxed_device(epoch_word_, epoch_);
    }
  }

 private:
  PARALLEL_TENSOR_DEVICE std::uint32_t* signal_word(int destination, int source) const {
    return reinterpret_cast<std::uint32_t*>(
        workspace_.pointers[destination] +
        signal_offset(channel_, platform_.block(), source, workspace_.size()));
  }

  PARALLEL_TENSOR_DEVICE void signal() {
    for (int peer = static_cast<int>(platform_.thread()); peer < workspace_.size();
         peer += static_cast<int>(platform_.threads())) {
      if (peer != workspace_.rank) {
        store_release_system(signal_word(peer, workspace_.rank), epoch_);
      }
    }
  }

  PARALLEL_TENSOR_DEVICE bool wait() {
    for (int peer = static_cast<int>(platform_.thread()); peer < workspace_.size();
         peer += static_cast<int>(platform_.threads())) {
      if (peer == workspace_.rank) {
        continue;
      }
      const WaitTarget target{workspace_.rank, peer, channel_, platform_.block(), epoch_};
      if (!wait_for_epoch(platform_, signal_word(workspace_.rank, peer), target, failed_,
                          limits_)) {
        return false;
      }
    }
    return true;
  }

  const Platform& platform_;
  const PeerView<std::byte, N>& workspace_;
  const Channel channel_;
  const WaitLimits& limits_;
  std::uint32_t* failed_;
  std::uint32_t* epoch_word_;
  std::uint32_t epoch_;
  bool usable_;
};

/// The argument of the barrier kernel.
template <int N>
struct BarrierArguments {
  PeerView<std::byte, N> workspace;
  WaitLimits limits;
};

/// A barrier between all ranks on their streams: work that a rank ordered before it is visible to
/// work that any rank orders after it. Launched with one block of at least one thread.
template <typename Platform, int N>
PARALLEL_TENSOR_DEVICE void barrier(const Platform& platform,
                                    const BarrierArguments<N>& arguments) {
  BlockBarrier<Platform, N> ranks(platform, arguments.workspace, Channel::barrier,
                                  arguments.limits);
  if (ranks.pass()) {
    ranks.finish();
  }
}

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
