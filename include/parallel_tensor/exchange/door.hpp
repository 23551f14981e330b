/// @file
/// Door: how the hub lets the ranks of its job in and keeps everybody else out.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/hello.hpp"
#include "parallel_tensor/exchange/listener.hpp"
#include "parallel_tensor/exchange/meeting_places.hpp"
#include "parallel_tensor/exchange/serialize.hpp"
#include "parallel_tensor/exchange/wire.hpp"
#include "parallel_tensor/posix/lifeline.hpp"
#include "parallel_tensor/posix/poll.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// The hub's side: lets in one process per rank and refuses everybody else. For one thread.
class Door {
 public:
  /// All references must outlive the door.
  Door(const MeetingPlaces& places, int size, const Listener& listener, Board& board,
       const posix::Descriptor& board_descriptor)
      : job_(places.job()),
        size_(size),
        listener_(listener),
        board_(board),
        board_descriptor_(board_descriptor),
        admitted_(static_cast<std::size_t>(size)) {}

  /// Returns the connections of ranks 1 to size - 1 once all are in.
  /// @throws TimeoutError naming the missing, PeerError when one that was in is gone
  std::vector<posix::Socket> let_in(const posix::Deadline& deadline) {
    posix::Wait wait(deadline);
    std::vector<::pollfd> entries;
    while (true) {
      accept_all();
      std::erase_if(visitors_, [&](Visitor& visitor) { return !greet(visitor, wait); });
      if (missing().empty()) break;
      throw_if_one_left();
      if (wait.expired()) throw_timeout(deadline);
      entries.clear();
      entries.push_back({listener_.get(), POLLIN, 0});
      for (const Visitor& visitor : visitors_) entries.push_back({visitor.socket.get(), POLLIN, 0});
      for (const posix::Socket& socket : admitted_) {
        if (socket) entries.push_back({socket.get(), POLLRDHUP, 0});
      }
      wait.step(entries);
    }
    admitted_.erase(admitted_.begin());
    return std::move(admitted_);
  }

 private:
  /// A connection that has not said who it is.
  struct Visitor {
    posix::Socket socket;
    ::ucred owner;
    posix::Deadline patience;
    IncomingMessage message{MessageLimits{max_frame_body, 0}};
  };

  // Strangers can neither fill our descriptor table nor stay for ever.
  static constexpr std::size_t max_strangers = 256;
  static constexpr std::chrono::seconds visitor_patience{5};

  void accept_all() {
    while (posix::Socket socket = listener_.accept()) {
      const ::ucred owner = socket.peer();
      if (owner.uid != ::geteuid()) continue;
      if (visitors_.size() == max_strangers + admitted_.size()) visitors_.pop_front();
      visitors_.push_back({std::move(socket), owner, posix::Deadline::after(visitor_patience)});
    }
  }

  /// False when there is nothing more to wait for: admitted, refused, or gone.
  bool greet(Visitor& visitor, posix::Wait& wait) {
    try {
      const auto result = visitor.message.receive(visitor.socket, buffer_);
      if (result == posix::SocketResult::would_block) return !visitor.patience.expired();
      if (result != posix::SocketResult::done) return false;
      if (visitor.message.kind() != MessageKind::hello) return false;
      const Hello hello = Hello::decode(visitor.message.body());
      const Status refusal = judge(hello);
      if (refusal.ok()) {
        admit(visitor, hello, wait);
      } else {
        if (hello.job == job_) last_refusal_ = " Refused: " + refusal.message + ".";
        send_refusal(visitor.socket, job_, refusal);
      }
    } catch (const ExchangeError&) {
      // A stranger's garbage is no concern of the job.
    }
    return false;
  }

  Status judge(const Hello& hello) const {
    const std::string who = rank_text(hello.rank, hello.pid);
    if (hello.job != job_) return {"ExchangeError", "this is job '" + job_ + "'"};
    if (hello.size != size_) {
      return {"MismatchError", who + " joins '" + job_ + "' with a size of " +
                                   std::to_string(hello.size) + ", rank 0 (pid " +
                                   std::to_string(::getpid()) + ") with " + std::to_string(size_)};
    }
    if (hello.rank < 1 || hello.rank >= size_) {
      return {"ArgumentError", who + " is outside of job '" + job_ + "' of " +
                                   std::to_string(size_) + " ranks, or a second rank 0"};
    }
    if (admitted_[static_cast<std::size_t>(hello.rank)]) {
      return {"ExchangeError", who + " is not the first of its rank in job '" + job_ +
                                   "': the rank is taken by pid " +
                                   std::to_string(board_.pid(hello.rank)) +
                                   "; is another job of the same name running?"};
    }
    return {};
  }

  /// Sends the board and, to another process, this one's lifeline.
  void admit(Visitor& visitor, const Hello& hello, posix::Wait& wait) {
    auto& lifelines = posix::Lifelines::instance();
    Writer writer;
    writer.integer(::getpid());
    writer.integer(lifelines.token());
    std::vector<int> descriptors{board_descriptor_.get()};
    if (hello.token != lifelines.token()) descriptors.push_back(lifelines.own());
    OutgoingMessage message(MessageKind::admit, 0, writer.bytes(), std::move(descriptors));
    board_.enter(hello.rank, hello.pid, 0);  // before the rank itself can write there
    while (true) {
      const posix::SocketResult result = message.send(visitor.socket);
      if (result == posix::SocketResult::done) break;
      if (result != posix::SocketResult::exhausted || wait.expired()) return;
      wait.pause(std::chrono::milliseconds(1));
    }
    admitted_[static_cast<std::size_t>(hello.rank)] = std::move(visitor.socket);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank) {
      if (!admitted_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  void throw_if_one_left() const {
    if (const auto cause = board_.cause()) std::rethrow_exception(cause->to_exception());
    std::vector<::pollfd> entries;
    for (const posix::Socket& socket : admitted_) entries.push_back({socket.get(), POLLRDHUP, 0});
    if (::poll(entries.data(), entries.size(), 0) <= 0) return;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if ((entries[i].revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0) continue;
      const int rank = static_cast<int>(i);
      throw PeerError(rank_text(rank, board_.pid(rank)) + " of job '" + job_ +
                          "' ended while rank 0 waited for others to join",
                      rank, board_.pid(rank), join_phase);
    }
  }

  [[noreturn]] void throw_timeout(const posix::Deadline& deadline) const {
    const std::vector<int> ranks = missing();
    std::string text = std::to_string(ranks.size()) + " of " + std::to_string(size_) +
                       " ranks did not join '" + job_ + "' within " + deadline.duration_text() +
                       ": rank";
    const char* separator = " ";
    for (const int rank : ranks) {
      text += separator + std::to_string(rank);
      separator = ", ";
    }
    text += "; rank 0 is pid " + std::to_string(::getpid()) + "." + last_refusal_ +
            " Are all ranks started with the same name, user and host, and do their containers "
            "share a network namespace or PARALLEL_TENSOR_SOCKET_DIR?";
    throw TimeoutError(text, join_phase, ranks);
  }

  const std::string& job_;
  const int size_;
  const Listener& listener_;
  Board& board_;
  const posix::Descriptor& board_descriptor_;
  std::vector<posix::Socket> admitted_;  // by rank
  std::deque<Visitor> visitors_;
  std::string last_refusal_;
  FrameBuffer buffer_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
