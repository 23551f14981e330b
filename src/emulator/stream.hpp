/// @file
/// A stream: a queue of work that one thread of its own runs in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

class Context;
class Stream;

/// A place in a stream's work: reached when everything up to it has run.
class Point {
 public:
  Point() = default;
  Point(std::shared_ptr<Stream> stream, uint64_t ticket)
      : stream_(std::move(stream)), ticket_(ticket) {}

  bool reached() const;
  void wait() const;

 private:
  std::shared_ptr<Stream> stream_;
  uint64_t ticket_ = 0;
};

/// One piece of work; it starts when all points in `after` are reached.
struct Work {
  std::function<void()> action;
  std::vector<Point> after;
};

/// Thread-safe. Work goes in through Context::submit, which knows how streams order each other.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, unsigned int flags)
      : context_(std::move(context)), flags_(flags) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::shared_ptr<Context>& context() const noexcept { return context_; }
  /// Whether work on the legacy default stream orders with this one.
  bool blocking() const noexcept { return (flags_ & CU_STREAM_NON_BLOCKING) == 0; }

  /// Appends work; the thread is started by the first.
  Point push(Work work);
  /// The place after all work so far.
  Point last();
  bool idle() const;
  bool closed() const;

  /// Lets the thread end after the work that is queued; does not wait for that work.
  void close();

 private:
  friend class Point;
  void run();

  const std::shared_ptr<Context> context_;
  const unsigned int flags_;
  mutable std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  std::deque<Work> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
