/// @file
/// The two steps of joining: get a connection, then meet all ranks over it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/broker.hpp"
#include "parallel_tensor/exchange/client.hpp"
#include "parallel_tensor/exchange/door.hpp"
#include "parallel_tensor/exchange/hub.hpp"
#include "parallel_tensor/exchange/visit.hpp"
#include "parallel_tensor/posix/lifeline.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// A broker that can run its first operation.
struct Connection {
  std::shared_ptr<Broker> broker;
  std::uint64_t hub_token = 0;  ///< the process of rank 0
};

/// Rank 0: takes the name and lets all other ranks in. Collective. @throws as `Group::join`
inline Connection connect_hub(int size, const std::string& name, const posix::Deadline& deadline) {
  const MeetingPlaces places(name);
  posix::Descriptor board_descriptor;
  Board board = Board::create(size, board_descriptor);
  Listener listener = Listener::bind(places, deadline);
  board.enter(0, ::getpid(), 1);
  Door door(places, size, listener, board, board_descriptor);
  std::vector<posix::Socket> sockets;
  try {
    sockets = door.let_in(deadline);
  } catch (...) {
    // Those who are in find the reason there when the door closes their connections.
    board.publish(BreakRecord::of(std::current_exception(), 0, ::getpid(), join_phase));
    throw;
  }
  listener.set_refusal(
      name, {"ExchangeError", "job '" + name + "' is complete with its " + std::to_string(size) +
                                  " ranks; its rank 0 is pid " + std::to_string(::getpid())});
  return {std::make_shared<Hub>(size, std::move(board), std::move(listener), std::move(sockets)),
          posix::Lifelines::instance().token()};
}

/// Every other rank: finds the hub. Collective. @throws as `Group::join`
inline Connection connect_client(int rank, int size, const std::string& name,
                                 const posix::Deadline& deadline) {
  const MeetingPlaces places(name);
  Admission admission = Visit(places, rank, size).get_in(deadline);
  return {
      std::make_shared<Client>(rank, size, std::move(admission.board), std::move(admission.socket),
                               admission.hub_pid, std::move(admission.hub_lifeline)),
      admission.hub_token};
}

inline Connection connect(int rank, int size, const std::string& name,
                          const posix::Deadline& deadline) {
  return rank == 0 ? connect_hub(size, name, deadline) : connect_client(rank, size, name, deadline);
}

/// The first operation: every rank tells its process and hands its lifeline round, but not to ranks
/// of the same process. Returns the pids. Whatever it throws has broken the group.
inline std::vector<pid_t> meet(const Connection& connection, int rank, std::uint64_t sequence,
                               const posix::Deadline& deadline) {
  auto& lifelines = posix::Lifelines::instance();
  Contribution own;
  own.operation = join_phase;
  Writer writer;
  writer.integer(::getpid());
  writer.integer(lifelines.token());
  own.payload = writer.take();
  // The hub's own lifeline went out when it let the ranks in.
  if (rank != 0 && lifelines.token() != connection.hub_token) {
    own.descriptors.push_back(posix::Descriptor::duplicate_of(lifelines.own()));
  }
  Outcome outcome = connection.broker->all_gather(std::move(own), sequence, deadline);
  if (outcome.failure) std::rethrow_exception(outcome.failure);
  std::vector<pid_t> pids;
  for (Answer& answer : outcome.answers) {
    const int from = static_cast<int>(pids.size());
    Reader reader(answer.payload);
    pids.push_back(reader.integer<pid_t>());
    const auto token = reader.integer<std::uint64_t>();
    std::shared_ptr<posix::Lifeline> lifeline;
    if (token != lifelines.token() && from != 0) {
      posix::Descriptor received;
      if (!answer.descriptors.empty()) received = std::move(answer.descriptors[0]);
      lifeline = lifelines.adopt(token, std::move(received));
    }
    connection.broker->watch(from, pids.back(), std::move(lifeline));
  }
  return pids;
}

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
