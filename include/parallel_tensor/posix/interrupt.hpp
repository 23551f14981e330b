/// @file
/// The hook by which a host language (Python) gets a word in while this library waits.
#pragma once

#include <atomic>

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// Called on the waiting thread at least every 100 ms of each wait, and at once after a signal. It
/// may throw (Ctrl-C): the wait then ends with that exception.
using InterruptHook = void (*)();

namespace detail {
inline std::atomic<InterruptHook> interrupt_hook{nullptr};
}  // namespace detail

/// Sets the process-wide hook (null for none) and returns the one before. Any thread.
inline InterruptHook set_interrupt_hook(InterruptHook hook) noexcept {
  return detail::interrupt_hook.exchange(hook);
}

/// Calls the hook, if there is one. Throws what it throws.
inline void check_interrupt() {
  if (const InterruptHook hook = detail::interrupt_hook.load()) hook();
}

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
