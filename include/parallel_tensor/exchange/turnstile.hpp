/// @file
/// Turnstile: a lock for whole operations. Waiting for it has a deadline and can be interrupted.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/deadline.hpp"
#include "parallel_tensor/posix/interrupt.hpp"
#include "parallel_tensor/posix/poll.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Lets one thread at a time through.
class Turnstile {
 public:
  /// Holds the turnstile until it is destroyed.
  class Pass {
   public:
    /// Waits for its turn.
    /// @throws Error when this thread is inside already (an interrupt handler that calls back)
    /// @throws TimeoutError at the deadline
    Pass(Turnstile& turnstile, const posix::Deadline& deadline, const std::string& phase)
        : turnstile_(turnstile) {
      const std::thread::id self = std::this_thread::get_id();
      std::unique_lock lock(turnstile_.mutex_);
      if (turnstile_.holder_ == self) {
        throw Error("'" + phase + "' was called from within another operation of the same group");
      }
      while (turnstile_.holder_ != std::thread::id()) {
        if (deadline.expired()) {
          throw TimeoutError("another thread of this rank was still in its own operation when '" +
                                 phase + "' ran out of time after " + deadline.duration_text(),
                             phase, {});
        }
        turnstile_.changed_.wait_for(
            lock, std::chrono::milliseconds(deadline.poll_timeout(posix::poll_slice)));
        lock.unlock();
        posix::check_interrupt();
        lock.lock();
      }
      turnstile_.holder_ = self;
    }

    ~Pass() {
      {
        const std::lock_guard lock(turnstile_.mutex_);
        turnstile_.holder_ = {};
      }
      turnstile_.changed_.notify_one();
    }

    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Turnstile& turnstile_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id holder_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
