/// @file
/// Memory whose release would hurt peers is freed only when all ranks have given it up.
///
/// To free memory that a peer has opened through a legacy IPC handle is undefined (cuda.h,
/// cuIpcCloseMemHandle), and torch's allocator would hand it to somebody else. So every rank tells
/// which shared memory it has given up; the numbers travel with the next exchange of memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/exchange/group.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// The shared memory of one rank in one group that some rank may still use. Thread-safe.
class Retirement : public std::enable_shared_from_this<Retirement> {
 public:
  /// The one of a group; lives as long as the group is open.
  static std::shared_ptr<Retirement> of(Group& group) {
    static std::mutex& mutex = *new std::mutex;
    std::lock_guard lock(mutex);
    auto existing = std::static_pointer_cast<Retirement>(group.attachment("retirement"));
    if (existing) return existing;
    auto fresh = std::make_shared<Retirement>();
    group.attach("retirement", fresh);
    return fresh;
  }

  /// What tells this group from every other one of the process, also from one that is gone.
  std::uint64_t group_identity() const noexcept { return group_identity_; }

  /// The number of a new memory: the same on all ranks, which number their memories in one order.
  std::uint64_t number() {
    std::lock_guard lock(mutex_);
    return ++last_number_;
  }

  /// Keeps this rank's storage of the memory of this number until every rank has let go of its
  /// token for it.
  /// @return the token of this rank, to be held by every use of the memory of any rank.
  std::shared_ptr<const void> keep(std::uint64_t number, std::shared_ptr<const void> storage,
                                   const driver::Device& device) {
    std::lock_guard lock(mutex_);
    kept_[number].storage = std::move(storage);
    return memory::reclaimed(Token(weak_from_this(), number), device);
  }

  /// Group::all_gather that carries what the ranks have given up; the request has no payload.
  std::vector<Answer> all_gather(Group& group, Request request) {
    const std::vector<std::uint64_t> told = take_given_up();
    request.payload.assign(reinterpret_cast<const char*>(told.data()),
                           told.size() * sizeof(std::uint64_t));
    std::vector<Answer> answers;
    try {
      answers = group.all_gather(request);
    } catch (...) {
      std::lock_guard lock(mutex_);
      given_up_.insert(given_up_.end(), told.begin(), told.end());
      throw;
    }
    for (const Answer& answer : answers) hear(answer.payload, answers.size());
    return answers;
  }

 private:
  struct Kept {
    std::shared_ptr<const void> storage;
    std::size_t given_up_by = 0;
  };

  // Released by the reclaimer, when the device of this rank has finished with the memory.
  class Token {
   public:
    Token(std::weak_ptr<Retirement> retirement, std::uint64_t number)
        : retirement_(std::move(retirement)), number_(number) {}
    Token(Token&&) noexcept = default;
    Token& operator=(Token&&) = delete;
    ~Token() {
      auto retirement = retirement_.lock();
      if (!retirement) return;
      std::lock_guard lock(retirement->mutex_);
      retirement->given_up_.push_back(number_);
    }

   private:
    std::weak_ptr<Retirement> retirement_;
    std::uint64_t number_;
  };

  std::vector<std::uint64_t> take_given_up() {
    std::lock_guard lock(mutex_);
    return std::exchange(given_up_, {});
  }

  void hear(const std::string& payload, std::size_t ranks) {
    std::vector<std::shared_ptr<const void>> free;  // released outside the lock
    std::lock_guard lock(mutex_);
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= payload.size();
         at += sizeof(std::uint64_t)) {
      std::uint64_t number = 0;
      std::memcpy(&number, payload.data() + at, sizeof number);
      auto found = kept_.find(number);
      if (found == kept_.end() || ++found->second.given_up_by < ranks) continue;
      free.push_back(std::move(found->second.storage));
      kept_.erase(found);
    }
  }

  static std::uint64_t new_identity() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  const std::uint64_t group_identity_ = new_identity();
  std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Kept> kept_;
  std::vector<std::uint64_t> given_up_;
};

}  // namespace v1
}  // namespace parallel_tensor
