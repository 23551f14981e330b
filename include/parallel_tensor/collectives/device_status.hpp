/// @file
/// What a rank's kernels left for the host: whether a wait on the device has failed, and the word
/// that ends all waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>

#include "parallel_tensor/device/workspace_layout.cuh"
#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/group.hpp"
#include "parallel_tensor/workspace.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {

/// How long one wait of a kernel may take: PARALLEL_TENSOR_DEVICE_TIMEOUT seconds (a fraction is
/// allowed), else 600. Read at the first call. @throws ArgumentError for something that is no
/// positive number.
inline std::chrono::nanoseconds device_timeout() {
  static const std::chrono::nanoseconds timeout = [] {
    const char* text = std::getenv("PARALLEL_TENSOR_DEVICE_TIMEOUT");
    if (!text || !*text) return std::chrono::nanoseconds(std::chrono::seconds(600));
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end != '\0' || !(seconds > 0) || !(seconds < 1e9)) {
      throw ArgumentError("PARALLEL_TENSOR_DEVICE_TIMEOUT is \"" + std::string(text) +
                          "\": expected a number of seconds above zero.");
    }
    return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  }();
  return timeout;
}

/// Ends all waits of this rank's kernels, now and later: each returns without its result. Any
/// thread.
inline void abort_waits(Workspace& workspace) noexcept {
  std::atomic_ref(workspace.status()->abort).store(1, std::memory_order_relaxed);
}

/// True when a wait of this rank's kernels has failed. Reads one word of host memory.
inline bool wait_failed(const Workspace& workspace) noexcept {
  return std::atomic_ref(workspace.status()->state).load(std::memory_order_acquire) !=
         static_cast<std::uint32_t>(device::WaitState::none);
}

namespace detail {

inline std::string channel_name(std::uint32_t channel) {
  switch (static_cast<device::Channel>(channel)) {
    case device::Channel::barrier:
      return "barrier";
    case device::Channel::all_reduce:
      return "all_reduce";
  }
  return "channel " + std::to_string(channel);
}

inline std::string describe_failed_wait(const device::WaitStatus& status, int ordinal, int pid) {
  return channel_name(status.channel) + " on rank " + std::to_string(status.rank) + " (device " +
         std::to_string(ordinal) + "): rank " + std::to_string(status.peer) + " (pid " +
         std::to_string(pid) + ") did not signal block " + std::to_string(status.block) +
         " within " + std::to_string(static_cast<double>(status.waited_ns) * 1e-9) +
         " s: it had reached epoch " + std::to_string(status.seen) + " of " +
         std::to_string(status.epoch) + ".";
}

}  // namespace detail

/// Raises what went wrong with the group before this call, on the host or in a kernel; every host
/// call that depends on the device's work begins with it. When the group is broken, waits of
/// kernels that still run end. Local, any thread, a few loads on the good path.
/// @throws TimeoutError when a wait of a kernel ran out of time, the peer in `missing()`; this
/// breaks the group.
/// @throws the first cause when the group is broken, Error when it is closed.
inline void check_device(Group& group, Workspace& workspace) {
  const device::WaitStatus& status = *workspace.status();
  if (!group.broken() && wait_failed(workspace)) {
    const std::string what = detail::describe_failed_wait(status, workspace.device().ordinal(),
                                                          static_cast<int>(group.pid(status.peer)));
    const bool timed_out = status.state == static_cast<std::uint32_t>(device::WaitState::timed_out);
    group.fail(
        timed_out
            ? std::make_exception_ptr(TimeoutError(
                  what + " It has stopped, or the ranks called different collectives. The group is "
                         "broken; make a new one.",
                  "device", {status.peer}))
            : std::make_exception_ptr(ExchangeError(
                  what + " The wait was aborted. The group is broken; make a new one.", "device")));
  }
  try {
    group.check();
  } catch (...) {
    if (group.broken()) abort_waits(workspace);
    throw;
  }
}

}  // namespace collectives
}  // namespace v1
}  // namespace parallel_tensor
