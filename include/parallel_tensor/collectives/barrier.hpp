/// @file
/// The barrier between all ranks of a group on their streams.
#pragma once

#include <cuda.h>

#include <string>

#include "parallel_tensor/collectives/kernels.hpp"
#include "parallel_tensor/collectives/launcher.hpp"
#include "parallel_tensor/device/barrier.cuh"
#include "parallel_tensor/exchange/group.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {
namespace detail {

inline const KernelsBySize barrier_kernels{{"barrier", "pt_barrier_2"},
                                           {"barrier", "pt_barrier_4"},
                                           {"barrier", "pt_barrier_8"},
                                           {"barrier", "pt_barrier"}};

}  // namespace detail
}  // namespace collectives

/// A barrier on the device: work that any rank put on its stream before it is done, and visible to
/// all ranks, before work that any rank puts on its stream after it. Collective; every rank calls
/// it in the same order among the group's barriers. Does not wait on the host, except on the
/// emulated driver, where it is done when this returns. May be captured in a CUDA graph, not as the
/// group's first use; the caller orders replays of that graph with other calls. Any thread; ranks
/// that are threads of one process pass streams of their own.
/// @throws NotSupportedError for a driver before CUDA 13.0
/// @throws TimeoutError, PeerError of an earlier operation, or of this one on the emulated driver
/// @throws DriverError from the launch
inline void barrier(Group& group, CUstream stream) {
  group.check();
  const auto launcher = collectives::Launcher::of(group);
  const auto turn = launcher->turn(device::Channel::barrier);
  const collectives::Kernel& kernel = collectives::detail::barrier_kernels.of(group.size());
  launcher->agree(
      group, "barrier on the device", [] { return std::string(); }, [&] { kernel.get(); });
  if (group.size() == 1) return;
  collectives::with_size(group.size(), [&]<int N>() {
    const unsigned int threads = group.size() <= 32 ? 32 : 128;  // one per peer
    const device::BarrierArguments<N> arguments{launcher->workspace_view<N>(), launcher->limits()};
    launcher->launch(group, turn, device::Channel::barrier, kernel, {1, threads}, stream,
                     arguments);
  });
}

}  // namespace v1
}  // namespace parallel_tensor
