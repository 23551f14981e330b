/// @file
/// Hub: rank 0's end of the sockets. It works inside rank 0's own call, there is no thread.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/exchange/broker.hpp"
#include "parallel_tensor/exchange/listener.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Collects a request from every rank, compares them, and answers all.
class Hub final : public Broker {
 public:
  /// Takes over the listening socket and one connection per other rank, in order of rank from 1.
  Hub(int size, Board board, Listener listener, std::vector<posix::Socket> sockets)
      : Broker(0, size, std::move(board)),
        listener_(std::move(listener)),
        sockets_(std::move(sockets)) {}

  Outcome all_gather(Contribution own, std::uint64_t sequence,
                     const posix::Deadline& deadline) override {
    enter(sequence);
    const std::string phase = own.operation;
    posix::Wait wait(deadline);
    std::vector<IncomingMessage> messages = collect(sequence, phase, wait);

    Outcome outcome;
    std::vector<Contribution> ranks;
    ranks.reserve(index(size_));
    ranks.push_back(std::move(own));
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].descriptors_lost() && !outcome.failure) {
        outcome.failure =
            descriptors_lost("rank " + std::to_string(i + 1), messages[i].descriptor_count());
      }
      ranks.push_back(decode_request(messages[i]));
    }
    messages.clear();
    Status verdict = Status::of(outcome.failure);
    if (verdict.ok()) {
      verdict = compare(ranks);
      if (!verdict.ok()) {
        outcome.failure = std::make_exception_ptr(MismatchError(verdict.message, phase));
      }
    }

    const std::string body = encode_answer(verdict, ranks);
    board_.set_answered(sequence);
    if (!verdict.ok()) {
      for (Contribution& one : ranks) one.descriptors.clear();
    }
    deliver(body, ranks, sequence, phase, wait);
    if (outcome.failure) return outcome;
    for (Contribution& one : ranks) {
      outcome.answers.push_back(
          {std::move(one.payload), std::move(one.descriptors), std::move(one.status)});
    }
    return outcome;
  }

  void shut() noexcept override {
    for (const posix::Socket& socket : sockets_) socket.shut();
  }

 protected:
  std::vector<::pollfd> connections() const override {
    std::vector<::pollfd> entries;
    for (const posix::Socket& socket : sockets_) entries.push_back({socket.get(), POLLRDHUP, 0});
    return entries;
  }
  int rank_of_connection(int position) const override { return position + 1; }

 private:
  std::vector<IncomingMessage> collect(std::uint64_t sequence, const std::string& phase,
                                       posix::Wait& wait) {
    std::vector<IncomingMessage> messages;
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      messages.emplace_back(request_limits);
      open.push_back(i);
    }
    std::vector<::pollfd> entries;
    while (true) {
      std::erase_if(open, [&](std::size_t i) { return receive(i, messages[i], sequence, phase); });
      if (open.empty()) return messages;
      if (const auto dead = lifelines_.dead_rank()) {
        std::rethrow_exception(death_of(*dead, phase));
      }
      throw_if_broken();
      if (wait.expired()) {
        std::vector<int> missing;
        for (const std::size_t i : open) missing.push_back(static_cast<int>(i) + 1);
        throw_timeout(missing, phase, wait.deadline(), "");
      }
      entries.clear();
      for (const std::size_t i : open) entries.push_back({sockets_[i].get(), POLLIN, 0});
      entries.push_back({lifelines_.get(), POLLIN, 0});
      entries.push_back({listener_.get(), POLLIN, 0});
      if (wait.step(entries) > 0 && entries.back().revents != 0) listener_.refuse_all();
    }
  }

  /// True when the message of that connection is complete.
  bool receive(std::size_t i, IncomingMessage& message, std::uint64_t sequence,
               const std::string& phase) {
    const posix::SocketResult result = message.receive(sockets_[i], buffer_);
    if (result == posix::SocketResult::would_block) return false;
    const int rank = static_cast<int>(i) + 1;
    if (result == posix::SocketResult::closed) std::rethrow_exception(hang_up_of(rank, phase));
    if (message.kind() != MessageKind::request) {
      throw ExchangeError(rank_text(rank, pid_of(rank)) + " sent something that is no request",
                          phase);
    }
    if (message.sequence() != sequence) {
      throw MismatchError(rank_text(rank, pid_of(rank)) + " is in its call number " +
                              std::to_string(message.sequence()) + ", rank 0 in number " +
                              std::to_string(sequence) + " ('" + phase + "')",
                          phase);
    }
    return true;
  }

  /// Descriptors on their way count against a limit of the whole user, so at most half of this
  /// process's limit is taken at once.
  class Window {
   public:
    explicit Window(const std::vector<posix::Socket>& sockets)
        : sockets_(sockets), counts_(sockets.size(), 0), most_(posix::descriptor_limit() / 2) {}

    void sent(std::size_t i, std::size_t descriptors) {
      sum_ += descriptors - counts_[i];
      counts_[i] = descriptors;
    }

    bool is_open() {
      if (sum_ <= most_) return true;
      for (std::size_t i = 0; i < counts_.size(); ++i) {
        int unread = 0;
        if (counts_[i] == 0 || ::ioctl(sockets_[i].get(), SIOCOUTQ, &unread) != 0) continue;
        if (unread == 0) sum_ -= std::exchange(counts_[i], 0);
      }
      return sum_ <= most_;
    }

   private:
    const std::vector<posix::Socket>& sockets_;
    std::vector<std::size_t> counts_;
    std::size_t most_;
    std::size_t sum_ = 0;
  };

  struct Delivery {
    int rank;
    OutgoingMessage message;
  };

  void deliver(const std::string& body, const std::vector<Contribution>& ranks,
               std::uint64_t sequence, const std::string& phase, posix::Wait& wait) {
    std::vector<Delivery> open;
    for (int to = 1; to < size_; ++to) {
      std::vector<int> descriptors;
      for (int from = 0; from < size_; ++from) {
        if (from == to) continue;
        for (const auto& one : ranks[index(from)].descriptors) descriptors.push_back(one.get());
      }
      open.push_back(
          {to, OutgoingMessage(MessageKind::answer, sequence, body, std::move(descriptors))});
    }
    std::exception_ptr lost;  // whoever is still there gets its answer before this is raised
    Window window(sockets_);
    bool watch_lifelines = true;
    std::vector<::pollfd> entries;
    while (true) {
      bool exhausted = false;
      entries.clear();
      std::erase_if(open, [&](Delivery& one) {
        const std::size_t i = index(one.rank) - 1;
        posix::SocketResult result = posix::SocketResult::exhausted;
        if (window.is_open()) {
          result = one.message.send(sockets_[i]);
          window.sent(i, one.message.descriptors_sent());
        }
        if (result == posix::SocketResult::closed && !lost) lost = hang_up_of(one.rank, phase);
        if (result == posix::SocketResult::exhausted) exhausted = true;
        if (result == posix::SocketResult::would_block) {
          entries.push_back({sockets_[i].get(), POLLOUT, 0});
        }
        return result == posix::SocketResult::closed || result == posix::SocketResult::done;
      });
      if (open.empty()) break;
      throw_if_broken();
      if (wait.expired()) {
        std::vector<int> missing;
        for (const Delivery& one : open) missing.push_back(one.rank);
        throw_timeout(missing, phase, wait.deadline(), " They do not take their answers.");
      }
      if (watch_lifelines) entries.push_back({lifelines_.get(), POLLIN, 0});
      wait.step(entries, exhausted ? exhausted_pause : posix::poll_slice);
      const auto dead = watch_lifelines ? lifelines_.dead_rank() : std::nullopt;
      if (!dead) continue;
      const auto same = [&](const Delivery& one) { return one.rank == *dead; };
      if (std::erase_if(open, same) > 0 && !lost) lost = death_of(*dead, phase);
      // It may as well have had its answer and ended in good order; sockets tell about the rest.
      watch_lifelines = false;
    }
    if (lost) std::rethrow_exception(lost);
  }

  Listener listener_;
  std::vector<posix::Socket> sockets_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
