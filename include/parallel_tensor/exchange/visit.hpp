/// @file
/// Visit: how a rank finds the hub of its job and is let in.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/hello.hpp"
#include "parallel_tensor/exchange/meeting_places.hpp"
#include "parallel_tensor/exchange/serialize.hpp"
#include "parallel_tensor/exchange/status.hpp"
#include "parallel_tensor/exchange/wire.hpp"
#include "parallel_tensor/posix/lifeline.hpp"
#include "parallel_tensor/posix/poll.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// What a client has once it is let in.
struct Admission {
  posix::Socket socket;
  Board board;
  pid_t hub_pid = 0;
  std::uint64_t hub_token = 0;
  std::shared_ptr<posix::Lifeline> hub_lifeline;  ///< null when the hub is in this process
};

/// The client's side: knocks at all names of the job until one lets it in. For one thread.
class Visit {
 public:
  Visit(const MeetingPlaces& places, int rank, int size) : places_(places), size_(size) {
    const std::uint64_t token = posix::Lifelines::instance().token();
    hello_ = Hello{places.job(), rank, size, ::getpid(), token}.encode();
    rank_ = rank;
  }

  /// @throws TimeoutError when there is no hub, the refusal of the hub as ExchangeError,
  ///   ArgumentError or MismatchError
  Admission get_in(const posix::Deadline& deadline) {
    posix::Wait wait(deadline);
    std::chrono::milliseconds slice(1);
    std::vector<::pollfd> entries;
    while (true) {
      for (int i = 0; i < name_count; ++i) {
        if (!calls_[static_cast<std::size_t>(i)].socket) call(i);
      }
      for (Call& one : calls_) {
        if (!one.socket) continue;
        if (auto admission = listen_to(one)) return std::move(*admission);
      }
      if (wait.expired()) throw_timeout(deadline);
      entries.clear();
      for (const Call& one : calls_) {
        if (one.socket) entries.push_back({one.socket.get(), POLLIN, 0});
      }
      wait.step(entries, slice);
      slice = std::min(slice * 2, std::chrono::milliseconds(10));
    }
  }

 private:
  struct Call {
    posix::Socket socket;
    IncomingMessage message{MessageLimits{max_frame_body, 2}};
    std::optional<posix::Deadline> rest;  // not again before it has expired
  };

  void call(int i) {
    Call& one = calls_[static_cast<std::size_t>(i)];
    if (one.rest && !one.rest->expired()) return;
    if (!spare_) spare_ = posix::Socket::create();
    if (spare_.connect(places_.address(i)) != posix::SocketResult::done) return;
    one = Call();
    const ::ucred owner = spare_.peer();
    if (owner.uid != ::geteuid()) {
      last_event_ = " One of the names is held by user " + std::to_string(owner.uid) + ".";
      spare_.reset();
      one.rest = posix::Deadline::after(std::chrono::seconds(1));
      return;
    }
    last_event_ = " Process " + std::to_string(owner.pid) +
                  " of this user listens there but did not let this rank in.";
    one.socket = std::move(spare_);
    // A new connection has room for one frame; whatever else happens shows up as a hang-up.
    OutgoingMessage(MessageKind::hello, 0, hello_, {}).send(one.socket);
  }

  /// The admission, when it is there. Throws the hub's refusal.
  std::optional<Admission> listen_to(Call& one) {
    try {
      const auto result = one.message.receive(one.socket, buffer_);
      if (result == posix::SocketResult::would_block) return std::nullopt;
      if (result == posix::SocketResult::done) {
        if (one.message.kind() == MessageKind::admit) return admission_of(one);
        if (one.message.kind() == MessageKind::refuse) {
          Reader reader(one.message.body());
          const std::string job = reader.text();
          const std::string kind = reader.text();
          const std::string message = reader.text();
          if (job == places_.job()) refusal_ = Status{kind, message};
        }
      }
    } catch (const ExchangeError&) {
      // Not one of ours; another name may be.
    }
    one.socket.reset();
    one.rest = posix::Deadline::after(std::chrono::milliseconds(100));
    if (refusal_) throw_refusal(*refusal_);
    return std::nullopt;
  }

  Admission admission_of(Call& one) const {
    std::vector<posix::Descriptor> descriptors = one.message.take_descriptors();
    if (one.message.descriptors_lost()) {
      throw Error("joining '" + places_.job() + "': " + posix::descriptor_limit_hint());
    }
    Reader reader(one.message.body());
    Admission admission;
    admission.hub_pid = reader.integer<pid_t>();
    admission.hub_token = reader.integer<std::uint64_t>();
    reader.finish();
    if (descriptors.empty()) throw ExchangeError("the hub sent no board", join_phase);
    admission.board = Board::open(size_, descriptors[0]);
    if (descriptors.size() > 1) {
      admission.hub_lifeline =
          posix::Lifelines::instance().adopt(admission.hub_token, std::move(descriptors[1]));
    }
    admission.socket = std::move(one.socket);
    return admission;
  }

  [[noreturn]] static void throw_refusal(const Status& refusal) {
    if (refusal.kind == "MismatchError") throw MismatchError(refusal.message, join_phase);
    if (refusal.kind == "ArgumentError") throw ArgumentError(refusal.message);
    throw ExchangeError(refusal.message, join_phase);
  }

  [[noreturn]] void throw_timeout(const posix::Deadline& deadline) const {
    throw TimeoutError(
        "rank " + std::to_string(rank_) + " (pid " + std::to_string(::getpid()) + ") of " +
            std::to_string(size_) + " found no rank 0 of job '" + places_.job() + "' within " +
            deadline.duration_text() + ", looking at " + places_.text() + "." + last_event_ +
            " Is rank 0 started, with the same name, user and host? If the ranks run in different "
            "containers, set PARALLEL_TENSOR_SOCKET_DIR to a directory that they share.",
        join_phase, {0});
  }

  const MeetingPlaces& places_;
  int rank_ = 0;
  const int size_;
  std::string hello_;
  std::array<Call, name_count> calls_;
  posix::Socket spare_;
  std::optional<Status> refusal_;
  std::string last_event_;
  FrameBuffer buffer_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
