/// @file
/// Events: a place in a stream's work and the time when it was reached.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "context.hpp"
#include "handle_table.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// One recording of an event.
struct Recording {
  Point point;
  std::shared_ptr<std::atomic<std::chrono::steady_clock::time_point>> time;
};

/// Thread-safe.
class Event {
 public:
  Event(std::shared_ptr<Context> context, unsigned int flags)
      : context_(std::move(context)), flags_(flags) {}

  const std::shared_ptr<Context>& context() const noexcept { return context_; }
  bool timed() const noexcept { return (flags_ & CU_EVENT_DISABLE_TIMING) == 0; }

  /// The newest recording; its time is null when there was none.
  Recording recording() const {
    std::lock_guard lock(mutex_);
    return recording_;
  }
  void set_recording(Recording recording) {
    std::lock_guard lock(mutex_);
    recording_ = std::move(recording);
  }

 private:
  const std::shared_ptr<Context> context_;
  const unsigned int flags_;
  mutable std::mutex mutex_;
  Recording recording_;
};

HandleTable<CUevent, Event>& events();

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
