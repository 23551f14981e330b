/// @file
/// What a forked child may not share with its parent: descriptors that are given up in the child,
/// and a generation number by which an object knows that it was made by another process.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

namespace detail {

class ForkState {
 public:
  // Never destroyed: descriptors of static objects report to it while the process ends.
  static ForkState& instance() {
    static ForkState* state = new ForkState;
    return *state;
  }

  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_relaxed); }

  void add(int descriptor) {
    const std::lock_guard lock(mutex_);
    descriptors_.push_back(descriptor);
  }

  void remove(int descriptor) noexcept {
    const std::lock_guard lock(mutex_);
    for (int& entry : descriptors_) {
      if (entry != descriptor) continue;
      entry = descriptors_.back();
      descriptors_.pop_back();
      return;
    }
  }

 private:
  ForkState() { ::pthread_atfork(&prepare, &parent, &child); }

  // The lock is taken around the fork so that the child finds the list whole.
  static void prepare() { instance().mutex_.lock(); }
  static void parent() { instance().mutex_.unlock(); }
  static void child() {
    ForkState& state = instance();
    state.generation_.fetch_add(1, std::memory_order_relaxed);
    // Only the number stays taken, by an unrelated object: the parent's socket is let go, and an
    // owner in the child that closes the number later hits nobody else's descriptor.
    for (const int descriptor : state.descriptors_) {
      ::close(descriptor);
      const int placeholder = ::eventfd(0, EFD_CLOEXEC);
      if (placeholder < 0 || placeholder == descriptor) continue;
      ::dup3(placeholder, descriptor, O_CLOEXEC);
      ::close(placeholder);
    }
    state.descriptors_.clear();
    state.mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<int> descriptors_;
  std::atomic<std::uint64_t> generation_{0};
};

}  // namespace detail

/// Changes in every forked child: an object that stored another value belongs to another process.
/// Any thread.
inline std::uint64_t process_generation() noexcept {
  return detail::ForkState::instance().generation();
}

/// True in a child that was forked after the first use of this library. Any thread.
inline bool forked() noexcept { return process_generation() != 0; }

/// Throws Error when the object that stored `generation` was made before this process was forked.
inline void require_process(std::uint64_t generation, const std::string& what) {
  if (process_generation() == generation) return;
  throw Error(what + " belongs to the parent of this forked process (pid " +
              std::to_string(::getpid()) +
              "). Make it after the fork, or start the process with spawn instead of fork.");
}

/// The one T of this process; a forked child gets a new one. Never destroyed: objects with static
/// storage still use it while the process ends. Any thread.
template <typename T>
T& per_process() {
  struct Entry {
    T value;
    std::uint64_t generation = process_generation();
  };
  static std::atomic<Entry*> current{nullptr};
  Entry* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->generation != process_generation()) {
    auto* made = new Entry;
    if (current.compare_exchange_strong(found, made)) return made->value;
    delete made;
  }
  return found->value;
}

/// From now on a forked child gives this descriptor up by itself. Any thread.
inline void forget_in_child(int descriptor) { detail::ForkState::instance().add(descriptor); }

/// Ends `forget_in_child`; call it before the descriptor is closed. Any thread.
inline void keep_in_child(int descriptor) noexcept {
  detail::ForkState::instance().remove(descriptor);
}

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
