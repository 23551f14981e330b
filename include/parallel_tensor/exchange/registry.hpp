/// @file
/// The process-wide list of who has joined as what: a process joins a name once per rank.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/fork.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Keeps one (name, rank) taken in this process while it lives. Any thread.
class Claim {
 public:
  /// @throws Error when it is taken
  Claim(const std::string& name, int rank) : key_(name, rank) {
    Table& table = posix::per_process<Table>();
    const std::lock_guard lock(table.mutex);
    if (table.taken.insert(key_).second) return;
    throw Error("this process (pid " + std::to_string(::getpid()) + ") already has a live group '" +
                name + "' with rank " + std::to_string(rank) +
                "; use that one, close it first, or give the new one another name");
  }

  ~Claim() {
    if (generation_ != posix::process_generation()) return;
    Table& table = posix::per_process<Table>();
    const std::lock_guard lock(table.mutex);
    table.taken.erase(key_);
  }

  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  struct Table {
    std::mutex mutex;
    std::set<std::pair<std::string, int>> taken;
  };

  std::pair<std::string, int> key_;
  std::uint64_t generation_ = posix::process_generation();
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
