/// @file
/// Lifelines: descriptors that become readable when the process they stand for has ended.
#pragma once

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// The end of one process's life, seen from another. Shared by all groups of the observing process.
class Lifeline {
 public:
  explicit Lifeline(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  /// Borrowed; readable or hung up once the process has ended.
  int get() const noexcept { return descriptor_.get(); }

 private:
  PrivateDescriptor descriptor_;
};

/// What this process knows about itself and the processes it met: its token, its own lifeline, and
/// one lifeline per peer process. Any thread.
class Lifelines {
 public:
  /// The table of this process; a forked child gets a new one.
  static Lifelines& instance() { return per_process<Lifelines>(); }

  /// Use `instance`. @throws Error without a source of random numbers
  Lifelines() {
    if (::getrandom(&token_, sizeof token_, 0) != sizeof token_) throw_errno("getrandom");
  }

  /// A random number that stands for this process, also across PID namespaces.
  std::uint64_t token() const noexcept { return token_; }

  /// This process's own lifeline, to be sent to peers; borrowed. A pidfd, or where that is
  /// forbidden the read end of a pipe whose other end nobody else has. @throws Error
  int own() {
    const std::lock_guard lock(mutex_);
    if (own_) return own_->get();
    Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    if (!pidfd && errno == EMFILE) throw_errno("opening a pidfd of this process");
    if (!pidfd) pidfd = open_pipe();
    own_.emplace(std::move(pidfd));
    return own_->get();
  }

  /// The shared lifeline of the process with `token`; `received` is closed when one is known.
  std::shared_ptr<Lifeline> adopt(std::uint64_t token, Descriptor received) {
    const std::lock_guard lock(mutex_);
    std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
    if (auto known = peers_[token].lock()) return known;
    auto made = std::make_shared<Lifeline>(std::move(received));
    peers_[token] = made;
    return made;
  }

 private:
  Descriptor open_pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("creating a pipe");
    Descriptor reading(ends[0]);
    kept_end_.emplace(Descriptor(ends[1]));
    return reading;
  }

  std::uint64_t token_ = 0;
  std::mutex mutex_;
  std::optional<Lifeline> own_;
  std::optional<Lifeline> kept_end_;
  std::map<std::uint64_t, std::weak_ptr<Lifeline>> peers_;
};

/// The lifelines of one group's peers behind one descriptor. Built by one thread, then any thread.
class LifelineSet {
 public:
  LifelineSet() : poller_(Descriptor(::epoll_create1(EPOLL_CLOEXEC))) {
    if (!poller_) throw_errno("creating an epoll descriptor");
  }

  /// Watches a lifeline for `rank`; ranks of one process share one entry. @throws Error
  void add(int rank, std::shared_ptr<Lifeline> lifeline) {
    ::epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = rank;
    if (::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, lifeline->get(), &event) != 0) {
      if (errno == EEXIST) return;
      throw_errno("watching the lifeline of rank " + std::to_string(rank));
    }
    lifelines_.push_back(std::move(lifeline));
  }

  /// Borrowed; readable once one of the processes has ended.
  int get() const noexcept { return poller_.get(); }

  /// A rank whose process has ended, if there is one. Does not wait.
  std::optional<int> dead_rank() const noexcept {
    ::epoll_event event{};
    if (::epoll_wait(poller_.get(), &event, 1, 0) != 1) return std::nullopt;
    const int rank = event.data.fd;
    return rank;
  }

 private:
  std::vector<std::shared_ptr<Lifeline>> lifelines_;
  PrivateDescriptor poller_;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
