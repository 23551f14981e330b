/// @file
/// Broker: one rank's end of the sockets of a group. Hub and client are its two kinds.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/payload.hpp"
#include "parallel_tensor/posix/lifeline.hpp"
#include "parallel_tensor/posix/poll.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// The time between two attempts when a limit of the kernel is reached.
inline constexpr std::chrono::milliseconds exhausted_pause{1};

/// How an operation ended that did not break the group.
struct Outcome {
  std::vector<Answer> answers;  ///< one per rank, unless there is a failure
  std::exception_ptr failure;   ///< a clean failure, to be raised by this rank
};

/// One rank's end of the sockets. `all_gather` is for one thread at a time; `shut`, `publish` and
/// `lost_peer` for any thread.
class Broker {
 public:
  virtual ~Broker() = default;
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  /// Runs one operation. Anything that it throws has broken the group.
  virtual Outcome all_gather(Contribution own, std::uint64_t sequence,
                             const posix::Deadline& deadline) = 0;

  /// Ends all connections of this rank; a wait of another thread sees it at once.
  virtual void shut() noexcept = 0;

  /// Lets every rank know why the group breaks. Call it before `shut`.
  void publish(const std::exception_ptr& error, const std::string& phase) {
    board_.publish(BreakRecord::of(error, rank_, pids_[index(rank_)], phase));
  }

  /// The reason why another rank cannot go on, or null. Does not wait.
  std::exception_ptr lost_peer(const std::string& phase) const {
    if (auto cause = board_.cause()) return cause->to_exception();
    if (const auto dead = lifelines_.dead_rank()) return death_of(*dead, phase);
    std::vector<::pollfd> entries = connections();
    if (::poll(entries.data(), entries.size(), 0) <= 0) return nullptr;
    for (const ::pollfd& entry : entries) {
      if ((entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0) continue;
      return hang_up_of(rank_of_connection(static_cast<int>(&entry - entries.data())), phase);
    }
    return nullptr;
  }

  /// True when the page of the group says that some rank has broken it. No system call.
  bool broken_by_anyone() const noexcept { return board_.broken(); }

  /// Tells the process of a rank and, unless it is this process, its lifeline. Called once per
  /// rank, before another thread knows this broker.
  void watch(int rank, pid_t pid, std::shared_ptr<posix::Lifeline> lifeline) {
    pids_[index(rank)] = pid;
    if (lifeline) lifelines_.add(rank, std::move(lifeline));
  }

 protected:
  Broker(int rank, int size, Board board)
      : rank_(rank), size_(size), board_(std::move(board)), pids_(index(size), 0) {
    pids_[index(rank)] = ::getpid();
  }

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }

  virtual std::vector<::pollfd> connections() const = 0;
  virtual int rank_of_connection(int position) const = 0;

  pid_t pid_of(int rank) const {
    const pid_t pid = pids_[index(rank)];
    return pid > 0 ? pid : board_.pid(rank);
  }

  void enter(std::uint64_t sequence) noexcept {
    board_.enter(rank_, pids_[index(rank_)], sequence);
  }

  void throw_if_broken() const {
    if (!board_.broken()) return;
    if (auto cause = board_.cause()) std::rethrow_exception(cause->to_exception());
  }

  /// A process has ended: the reason that was published, by it or another rank, or a plain death.
  std::exception_ptr death_of(int rank, const std::string& phase) const {
    if (auto cause = board_.cause()) return cause->to_exception();
    return std::make_exception_ptr(PeerError(rank_text(rank, pid_of(rank)) + " has died; " +
                                                 rank_text(rank_, pid_of(rank_)) + " of " +
                                                 std::to_string(size_) + " was in '" + phase + "'",
                                             rank, pid_of(rank), phase));
  }

  /// A connection has ended: the reason that was published, a death, or a plain hang-up.
  std::exception_ptr hang_up_of(int rank, const std::string& phase) const {
    if (auto cause = board_.cause()) return cause->to_exception();
    if (lifelines_.dead_rank() == rank) return death_of(rank, phase);
    return std::make_exception_ptr(
        PeerError(rank_text(rank, pid_of(rank)) +
                      " is gone: its process has ended or it has closed the group; " +
                      rank_text(rank_, pid_of(rank_)) + " of " + std::to_string(size_) +
                      " was in '" + phase + "'",
                  rank, pid_of(rank), phase));
  }

  [[noreturn]] void throw_timeout(const std::vector<int>& missing, const std::string& phase,
                                  const posix::Deadline& deadline, const std::string& more) const {
    std::string text = std::to_string(missing.size()) + " of " + std::to_string(size_) +
                       " ranks did not take part in '" + phase + "' within " +
                       deadline.duration_text() + ":";
    const char* separator = " ";
    for (const int rank : missing) {
      text += separator + rank_text(rank, pid_of(rank));
      separator = ", ";
    }
    text += "; seen by " + rank_text(rank_, pid_of(rank_)) + "." + more;
    throw TimeoutError(text, phase, missing);
  }

  static std::exception_ptr descriptors_lost(const std::string& whose, std::size_t count) {
    return std::make_exception_ptr(ExchangeError("could not take the " + std::to_string(count) +
                                                     " descriptors of " + whose + ": " +
                                                     posix::descriptor_limit_hint(),
                                                 "receive"));
  }

  const int rank_;
  const int size_;
  Board board_;
  std::vector<pid_t> pids_;
  posix::LifelineSet lifelines_;
  FrameBuffer buffer_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
