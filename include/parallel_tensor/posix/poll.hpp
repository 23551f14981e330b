/// @file
/// Wait: the one loop step that every wait of the library is made of.
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "parallel_tensor/posix/deadline.hpp"
#include "parallel_tensor/posix/descriptor.hpp"
#include "parallel_tensor/posix/interrupt.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// The longest time that passes in a wait without a call of the interrupt hook.
inline constexpr std::chrono::milliseconds poll_slice{100};

/// One wait with one deadline. The owner loops: step, look at what it waits for, look at `expired`.
/// For one thread.
class Wait {
 public:
  explicit Wait(const Deadline& deadline)
      : deadline_(deadline), next_interrupt_(Deadline::Clock::now() + poll_slice) {}

  /// Blocks until one of `entries` is ready, for at most `slice` and at most until the deadline.
  /// Returns how many are ready, 0 also after a signal. Calls the interrupt hook when 100 ms have
  /// passed since the last time and after a signal; throws what the hook throws.
  int step(std::vector<::pollfd>& entries, std::chrono::milliseconds slice = poll_slice) {
    const int timeout = deadline_.poll_timeout(std::min(slice, poll_slice));
    const int ready = ::poll(entries.data(), entries.size(), timeout);
    const int error = ready < 0 ? errno : 0;
    if (error != 0 && error != EINTR && error != EAGAIN && error != ENOMEM) {
      throw_errno("waiting for " + std::to_string(entries.size()) + " descriptors", error);
    }
    if (error != 0) {
      for (::pollfd& entry : entries) entry.revents = 0;
    }
    const auto now = Deadline::Clock::now();
    if (error != 0 || now >= next_interrupt_) {
      next_interrupt_ = now + poll_slice;
      check_interrupt();
    }
    return ready < 0 ? 0 : ready;
  }

  /// Sleeps for `duration`, as `step` with nothing to wait for.
  void pause(std::chrono::milliseconds duration) {
    std::vector<::pollfd> none;
    step(none, duration);
  }

  bool expired() const noexcept { return deadline_.expired(); }
  const Deadline& deadline() const noexcept { return deadline_; }

 private:
  Deadline deadline_;
  Deadline::Clock::time_point next_interrupt_;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
