#include "stream.hpp"

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <exception>

#include "context.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

// Signals belong to the application's threads: Ctrl-C must not arrive on a stream.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

bool Point::reached() const {
  if (!stream_) return true;
  std::lock_guard lock(stream_->mutex_);
  return stream_->completed_ >= ticket_;
}

void Point::wait() const {
  if (!stream_) return;
  std::unique_lock lock(stream_->mutex_);
  stream_->work_done_.wait(lock, [&] { return stream_->completed_ >= ticket_; });
}

Stream::~Stream() {
  // Work that arrived while another thread closed the stream has started a thread that nobody
  // joined.
  if (thread_.joinable()) thread_.detach();
}

Point Stream::push(Work work) {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    BlockedSignals blocked;
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
  }
  queue_.push_back(std::move(work));
  ++submitted_;
  work_ready_.notify_one();
  return {shared_from_this(), submitted_};
}

Point Stream::last() {
  std::lock_guard lock(mutex_);
  return {shared_from_this(), submitted_};
}

bool Stream::idle() const {
  std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

bool Stream::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

void Stream::close() {
  std::thread thread;
  bool was_idle = false;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    was_idle = completed_ == submitted_;
    thread = std::move(thread_);
    work_ready_.notify_one();
  }
  if (!thread.joinable()) return;
  if (was_idle && thread.get_id() != std::this_thread::get_id()) {
    thread.join();
  } else {
    thread.detach();  // it owns a share of this stream and ends by itself
  }
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    for (const auto& point : work.after) point.wait();
    try {
      if (work.action) work.action();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "emulated driver: a host function threw: %s\n", error.what());
      context_->fail(CUDA_ERROR_LAUNCH_FAILED);
    } catch (...) {
      std::fprintf(stderr, "emulated driver: a host function threw\n");
      context_->fail(CUDA_ERROR_LAUNCH_FAILED);
    }
    work = Work{};  // what the work held is gone before anybody sees it as done
    lock.lock();
    ++completed_;
    work_done_.notify_all();
  }
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
