/// @file
/// Client: the end of the sockets of every rank but the hub.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/exchange/broker.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Sends its request to the hub and waits for the one answer.
class Client final : public Broker {
 public:
  /// Takes over the connection to the hub; the lifeline is null when it is this process's own.
  Client(int rank, int size, Board board, posix::Socket socket, pid_t hub_pid,
         std::shared_ptr<posix::Lifeline> hub_lifeline)
      : Broker(rank, size, std::move(board)),
        socket_(std::move(socket)),
        hub_lifeline_(std::move(hub_lifeline)) {
    pids_[0] = hub_pid;
    if (hub_lifeline_) lifelines_.add(0, hub_lifeline_);
  }

  Outcome all_gather(Contribution own, std::uint64_t sequence,
                     const posix::Deadline& deadline) override {
    enter(sequence);
    const std::string phase = own.operation;
    const std::string body = encode_request(own);
    std::vector<int> descriptors;
    for (const posix::Descriptor& one : own.descriptors) descriptors.push_back(one.get());
    OutgoingMessage request(MessageKind::request, sequence, body, std::move(descriptors));
    IncomingMessage answer(answer_limits(size_));
    converse(request, answer, sequence, phase, deadline);

    if (answer.kind() != MessageKind::answer || answer.sequence() != sequence) {
      throw ExchangeError(rank_text(0, pid_of(0)) + " sent something that is no answer", phase);
    }
    Outcome outcome;
    const Status verdict = decode_answer(answer, rank_, size_, own, outcome.answers);
    if (verdict.kind == "MismatchError") {
      outcome.failure = std::make_exception_ptr(MismatchError(verdict.message, phase));
    } else if (!verdict.ok()) {
      outcome.failure =
          std::make_exception_ptr(PeerError(rank_text(0, pid_of(0)) + " failed in '" + phase +
                                                "': " + verdict.kind + ": " + verdict.message,
                                            0, pid_of(0), phase));
    } else if (answer.descriptors_lost()) {
      outcome.failure = descriptors_lost("the other ranks", answer.descriptor_count());
    }
    return outcome;
  }

  void shut() noexcept override { socket_.shut(); }

 protected:
  std::vector<::pollfd> connections() const override {
    std::vector<::pollfd> entries{{socket_.get(), POLLRDHUP, 0}};
    return entries;
  }
  int rank_of_connection(int) const override { return 0; }

 private:
  /// Sends the request, then receives the answer.
  void converse(OutgoingMessage& request, IncomingMessage& answer, std::uint64_t sequence,
                const std::string& phase, const posix::Deadline& deadline) {
    posix::Wait wait(deadline);
    bool watch_others = true;
    std::vector<::pollfd> entries;
    while (true) {
      const bool sending = !request.done();
      const auto result = sending ? request.send(socket_) : answer.receive(socket_, buffer_);
      if (result == posix::SocketResult::closed) std::rethrow_exception(hang_up_of(0, phase));
      if (result == posix::SocketResult::done) {
        if (sending) continue;
        return;
      }
      // All that arrived before a death has been read by now.
      watch_others = watch_others && !other_has_left(sequence, phase);
      throw_if_broken();
      if (wait.expired()) give_up(sequence, phase, deadline);
      entries.clear();
      const bool writable = result == posix::SocketResult::would_block && sending;
      entries.push_back({socket_.get(), static_cast<short>(writable ? POLLOUT : POLLIN), 0});
      if (hub_lifeline_) entries.push_back({hub_lifeline_->get(), POLLIN, 0});
      if (watch_others) entries.push_back({lifelines_.get(), POLLIN, 0});
      const bool exhausted = result == posix::SocketResult::exhausted;
      wait.step(entries, exhausted ? exhausted_pause : posix::poll_slice);
      const bool hub_died = hub_lifeline_ && entries[1].revents != 0;
      if (!hub_died) continue;
      if (!request.done() || answer.receive(socket_, buffer_) != posix::SocketResult::done) {
        std::rethrow_exception(death_of(0, phase));
      }
      return;
    }
  }

  /// True when another rank has ended in good order, after the hub had all it needs to answer.
  bool other_has_left(std::uint64_t sequence, const std::string& phase) const {
    const auto dead = lifelines_.dead_rank();
    if (!dead) return false;
    if (!board_.answered(sequence)) std::rethrow_exception(death_of(*dead, phase));
    return true;
  }

  [[noreturn]] void give_up(std::uint64_t sequence, const std::string& phase,
                            const posix::Deadline& deadline) const {
    std::vector<int> missing = board_.missing(sequence);
    const bool all_came = missing.empty();
    if (all_came) missing.push_back(0);
    throw_timeout(missing, phase, deadline,
                  all_came ? " All ranks came, but the hub did not answer." : "");
  }

  posix::Socket socket_;
  std::shared_ptr<posix::Lifeline> hub_lifeline_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
