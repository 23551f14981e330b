/// @file
/// The inline definitions of Group.
#pragma once

#include <new>
#include <tuple>

#include "parallel_tensor/exchange/connect.hpp"
#include "parallel_tensor/exchange/group.hpp"

namespace parallel_tensor {
inline namespace v1 {

inline Group::Group(int rank, int size, std::string name, Milliseconds timeout)
    : rank_(rank),
      size_(size),
      name_(std::move(name)),
      timeout_(timeout),
      process_generation_(posix::process_generation()),
      pids_(static_cast<std::size_t>(size), 0) {}

inline std::shared_ptr<Group> Group::join(int rank, int size, const std::string& name,
                                          Milliseconds timeout) {
  constexpr int most_ranks = 4096;
  constexpr std::size_t longest_name = 1024;
  if (size < 1 || size > most_ranks || rank < 0 || rank >= size) {
    throw ArgumentError("cannot join '" + name + "' as rank " + std::to_string(rank) + " of " +
                        std::to_string(size) + ": a rank is 0 to size - 1, a size 1 to " +
                        std::to_string(most_ranks));
  }
  if (name.empty() || name.size() > longest_name) {
    throw ArgumentError("the name of a group has 1 to " + std::to_string(longest_name) +
                        " bytes, this one has " + std::to_string(name.size()));
  }
  if (timeout <= Milliseconds(0)) throw ArgumentError("the timeout of a group must be positive");
  const std::shared_ptr<Group> group(new Group(rank, size, name, timeout));
  group->connect(posix::Deadline::after(timeout));
  return group;
}

inline std::shared_ptr<Group> Group::from_env() {
  const GroupIdentity identity = exchange::identity_from_env();
  return cached(identity.rank, identity.size, identity.name);
}

inline std::shared_ptr<Group> Group::cached(int rank, int size, const std::string& name) {
  struct Slot {
    exchange::Turnstile turnstile;
    std::shared_ptr<Group> group;
  };
  struct Cache {
    std::mutex mutex;
    std::map<std::tuple<std::string, int, int>, std::shared_ptr<Slot>> slots;
  };
  std::shared_ptr<Slot> slot;
  {
    Cache& cache = posix::per_process<Cache>();
    const std::lock_guard lock(cache.mutex);
    auto& entry = cache.slots[{name, rank, size}];
    if (!entry) entry = std::make_shared<Slot>();
    slot = entry;
  }
  const Milliseconds timeout = default_timeout();
  const exchange::Turnstile::Pass pass(slot->turnstile, posix::Deadline::after(timeout),
                                       exchange::join_phase);
  if (slot->group && !slot->group->closed() && !slot->group->broken()) return slot->group;
  slot->group = nullptr;
  slot->group = join(rank, size, name, timeout);
  return slot->group;
}

inline Group::~Group() { close(); }

inline void Group::connect(const posix::Deadline& deadline) {
  claim_ = std::make_shared<exchange::Claim>(name_, rank_);
  pids_[static_cast<std::size_t>(rank_)] = ::getpid();
  if (size_ == 1) return;
  const exchange::Connection made = exchange::connect(rank_, size_, name_, deadline);
  broker_ = made.broker;
  try {
    pids_ = exchange::meet(made, rank_, ++sequence_, deadline);
  } catch (...) {
    break_and_rethrow(exchange::join_phase);
  }
}

inline pid_t Group::pid(int rank) const {
  if (rank < 0 || rank >= size_) {
    throw ArgumentError("rank " + std::to_string(rank) + " is outside of group '" + name_ +
                        "' of " + std::to_string(size_));
  }
  return pids_[static_cast<std::size_t>(rank)];
}

inline exchange::Contribution Group::contribution_of(const Request& request,
                                                     std::exception_ptr& failure) const {
  exchange::Contribution own;
  own.operation = request.operation.substr(0, 256);
  own.signature = request.signature.substr(0, exchange::max_signature_bytes);
  own.status = request.status;
  try {
    if (request.payload.size() > exchange::max_payload_bytes ||
        request.signature.size() > exchange::max_signature_bytes ||
        request.descriptors.size() > exchange::max_descriptors) {
      throw ArgumentError(
          "'" + own.operation + "' got a payload of " + std::to_string(request.payload.size()) +
          " bytes, a signature of " + std::to_string(request.signature.size()) + " bytes and " +
          std::to_string(request.descriptors.size()) + " descriptors; the most are " +
          std::to_string(exchange::max_payload_bytes) + ", " +
          std::to_string(exchange::max_signature_bytes) + " and " +
          std::to_string(exchange::max_descriptors));
    }
    own.payload = request.payload;
    own.descriptors.reserve(request.descriptors.size());
    for (const int descriptor : request.descriptors) {
      own.descriptors.push_back(posix::Descriptor::duplicate_of(descriptor));
    }
  } catch (const std::exception&) {
    // The others wait for this rank: they get the failure in place of the data.
    failure = std::current_exception();
    own.payload.clear();
    own.descriptors.clear();
    own.status = Status::of(failure);
  }
  return own;
}

inline std::vector<Answer> Group::all_gather(const Request& request,
                                             std::optional<Milliseconds> timeout) {
  posix::require_process(process_generation_, "group '" + name_ + "'");
  if (timeout && *timeout < Milliseconds(0)) throw ArgumentError("a timeout cannot be negative");
  const posix::Deadline deadline = posix::Deadline::after(timeout.value_or(timeout_));
  std::optional<exchange::Turnstile::Pass> pass;
  try {
    pass.emplace(turnstile_, deadline, request.operation);
  } catch (const TimeoutError& error) {
    // To the other ranks this one is missing.
    const TimeoutError late(error.what(), request.operation, {rank_});
    record(std::make_exception_ptr(late), request.operation);
    throw late;
  }
  const std::shared_ptr<exchange::Broker> used = broker();
  std::exception_ptr own_failure;
  exchange::Contribution own = contribution_of(request, own_failure);
  exchange::Outcome outcome;
  ++sequence_;
  if (used) {
    try {
      outcome = used->all_gather(std::move(own), sequence_, deadline);
    } catch (...) {
      break_and_rethrow(request.operation);
    }
  } else {
    outcome.answers.push_back(
        {std::move(own.payload), std::move(own.descriptors), std::move(own.status)});
  }
  if (own_failure) std::rethrow_exception(own_failure);
  if (outcome.failure) std::rethrow_exception(outcome.failure);
  return std::move(outcome.answers);
}

inline void Group::barrier(std::optional<Milliseconds> timeout) {
  Request request;
  request.operation = "barrier";
  require_ok(all_gather(request, timeout), request.operation);
}

inline void Group::require_ok(const std::vector<Answer>& answers, const std::string& phase) const {
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const Status& status = answers[rank].status;
    if (status.ok() || static_cast<int>(rank) == rank_) continue;
    const pid_t process = pid(static_cast<int>(rank));
    throw PeerError(exchange::rank_text(static_cast<int>(rank), process) + " failed in '" + phase +
                        "': " + status.kind + ": " + status.message,
                    static_cast<int>(rank), process, phase);
  }
}

inline Error Group::closed_error() const {
  return Error("group '" + name_ + "' (rank " + std::to_string(rank_) + " of " +
               std::to_string(size_) + ") is closed; make a new one");
}

inline std::shared_ptr<exchange::Broker> Group::broker() const {
  const std::lock_guard lock(state_mutex_);
  if (cause_) std::rethrow_exception(cause_);
  if (closed()) throw closed_error();
  return broker_;
}

inline void Group::check() const {
  posix::require_process(process_generation_, "group '" + name_ + "'");
  const std::shared_ptr<exchange::Broker> used = broker();
  if (!used || !used->broken_by_anyone()) return;
  if (const std::exception_ptr cause = used->lost_peer("check")) {
    record(cause, "check");
    static_cast<void>(broker());  // throws the first cause
  }
}

inline std::exception_ptr Group::lost_peer() const {
  posix::require_process(process_generation_, "group '" + name_ + "'");
  try {
    const std::shared_ptr<exchange::Broker> used = broker();
    return used ? used->lost_peer("wait") : nullptr;
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

inline void Group::check_peers() {
  const std::exception_ptr lost = lost_peer();
  if (!lost) return;
  record(lost, "wait");
  static_cast<void>(broker());  // throws the first cause
  std::rethrow_exception(lost);
}

inline bool Group::record(const std::exception_ptr& error,
                          const std::string& phase) const noexcept {
  std::shared_ptr<exchange::Broker> dropped;
  std::shared_ptr<exchange::Claim> claim;
  try {
    const Status status = Status::of(error);
    std::exception_ptr cause = error;
    try {
      std::rethrow_exception(error);
    } catch (const Error&) {
    } catch (...) {
      // A foreign exception (Ctrl-C) is raised once, where it happened; later calls raise ours.
      cause = std::make_exception_ptr(ExchangeError(
          "group '" + name_ + "' was broken on this rank by " + status.kind + ": " + status.message,
          phase));
    }
    const std::lock_guard lock(state_mutex_);
    if (cause_ || closed()) return false;
    cause_ = cause;
    broken_.store(true, std::memory_order_release);
    dropped = std::move(broker_);
    claim = std::move(claim_);
  } catch (...) {
    return false;
  }
  if (!dropped) return true;
  try {
    dropped->publish(error, phase);
  } catch (...) {
    // The others then see a hang-up without its reason.
  }
  dropped->shut();
  return true;
}

inline void Group::break_and_rethrow(const std::string& phase) const {
  record(std::current_exception(), phase);
  try {
    throw;
  } catch (const Error&) {
    static_cast<void>(broker());  // throws the first cause, or that the group was closed meanwhile
    throw;
  }
}

inline void Group::fail(std::exception_ptr cause) noexcept {
  if (!cause || process_generation_ != posix::process_generation()) return;
  record(cause, "fail");
}

inline void Group::fail(const std::exception& cause) noexcept {
  try {
    // Keeps the class when it is the exception that is being handled.
    if (const std::exception_ptr current = std::current_exception()) {
      try {
        std::rethrow_exception(current);
      } catch (const std::exception& handled) {
        if (&handled == &cause) return fail(current);
      } catch (...) {
      }
    }
    const Status status = Status::of(cause);
    fail(std::make_exception_ptr(ExchangeError(status.kind + ": " + status.message, "fail")));
  } catch (...) {
    // Without memory for a message there is still the hang-up.
    close();
  }
}

inline void Group::close() noexcept {
  std::shared_ptr<exchange::Broker> dropped;
  std::shared_ptr<exchange::Claim> claim;
  std::map<std::string, std::shared_ptr<void>> attachments;
  if (process_generation_ != posix::process_generation()) {
    // Another thread of the parent may have been using all this when the child was forked. The
    // sockets were given up at the fork; the memory is left alone.
    closed_.store(true, std::memory_order_release);
    auto* left = new (std::nothrow) std::tuple(std::move(broker_), std::move(claim_),
                                               std::move(attachments_), std::move(cause_));
    static_cast<void>(left);
    return;
  }
  {
    const std::lock_guard lock(state_mutex_);
    closed_.store(true, std::memory_order_release);
    dropped = std::move(broker_);
    claim = std::move(claim_);
    attachments.swap(attachments_);
  }
  if (dropped) dropped->shut();
}

inline std::shared_ptr<void> Group::attachment(const std::string& key) const {
  posix::require_process(process_generation_, "group '" + name_ + "'");
  const std::lock_guard lock(state_mutex_);
  const auto found = attachments_.find(key);
  return found == attachments_.end() ? nullptr : found->second;
}

inline void Group::attach(const std::string& key, std::shared_ptr<void> object) {
  posix::require_process(process_generation_, "group '" + name_ + "'");
  const std::lock_guard lock(state_mutex_);
  if (closed()) throw closed_error();
  attachments_[key].swap(object);
}

}  // namespace v1
}  // namespace parallel_tensor
