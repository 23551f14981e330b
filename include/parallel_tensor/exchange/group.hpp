/// @file
/// Group: the ranks of one job on one host, joined by sockets, and their one collective.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/broker.hpp"
#include "parallel_tensor/exchange/environment.hpp"
#include "parallel_tensor/exchange/message.hpp"
#include "parallel_tensor/exchange/registry.hpp"
#include "parallel_tensor/exchange/turnstile.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// The ranks of a job on one host. Rank 0 is the hub of their sockets.
///
/// Two kinds of failure. *Clean*: every rank answered and one of them reported a failure, or they
/// asked for different things; every rank learns it and the next call works. *Broken*: a deadline,
/// a death, a hang-up, an interrupt; sockets are shut on all ranks, and every later call raises the
/// first cause until a new group is made. `close()` still releases what this rank holds.
///
/// Every member may be called from any thread. In a forked child each call raises `Error`.
class Group : public std::enable_shared_from_this<Group> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Joins the ranks of `name`. Collective: returns when all `size` ranks have called it.
  ///
  /// @throws ArgumentError for a rank outside 0..size-1, an empty name or a negative timeout
  /// @throws Error when this process already has a live group of that name and rank
  /// @throws ExchangeError when another live job of this user has the name, or the rank is taken
  /// @throws MismatchError when the ranks disagree about the size
  /// @throws TimeoutError, PeerError as every collective
  static std::shared_ptr<Group> join(int rank, int size, const std::string& name,
                                     Milliseconds timeout = default_timeout());

  /// The group that the launcher's environment describes (torchrun, Slurm, Open MPI, or
  /// `PARALLEL_TENSOR_JOB` for the name). Collective the first time; cached afterwards.
  /// @throws NotSupportedError naming the variables when there is no such environment
  static std::shared_ptr<Group> from_env();

  /// The cached group of these values; one that was closed or broken is joined anew (collective).
  static std::shared_ptr<Group> cached(int rank, int size, const std::string& name);

  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  /// The deadline of each collective that is given none.
  Milliseconds timeout() const noexcept { return timeout_; }
  /// The process of a rank. @throws ArgumentError for a rank outside the group
  pid_t pid(int rank) const;

  /// Gives every rank's payload, descriptors and status to every rank, in order of rank.
  ///
  /// Collective; one operation at a time, further threads of this rank wait for their turn. A
  /// failed status travels like data and is not raised here: see `require_ok`. When this throws and
  /// the group is not `broken()`, the failure was clean and local or the same on all ranks.
  ///
  /// @throws MismatchError on all ranks when operation or signature differ (clean)
  /// @throws ArgumentError for a payload over 16 MiB or a bad descriptor; the others see a failed
  ///   status (clean)
  /// @throws ExchangeError when this process is at its descriptor limit (clean)
  /// @throws TimeoutError with the missing ranks, PeerError for a death (broken)
  std::vector<Answer> all_gather(const Request& request, std::optional<Milliseconds> timeout = {});

  /// Returns when every rank has called it. Collective. @throws as `all_gather`
  void barrier(std::optional<Milliseconds> timeout = {});

  /// Throws PeerError for the first *other* rank whose status failed. A rank whose own status
  /// failed rethrows its own exception before it calls this. Local.
  void require_ok(const std::vector<Answer>& answers, const std::string& phase) const;

  /// Throws the first cause when the group is broken, here or on another rank; `Error` when it is
  /// closed or in a forked child. Local, no system call on the good path.
  void check() const;

  /// The error to raise when a peer has died, hung up or broken the group; null when all are well.
  /// Local, does not wait and does not break the group: a peer that finished its part and left is
  /// reported too, so look once more whether the own work is done before acting on it.
  std::exception_ptr lost_peer() const;

  /// As `lost_peer`, but breaks the group and throws. For waits on something that a peer must do.
  void check_peers();

  /// Breaks the group on all ranks: every later call raises this cause. Local, does not wait.
  void fail(std::exception_ptr cause) noexcept;
  /// The same for an exception that is at hand.
  void fail(const std::exception& cause) noexcept;

  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  /// True once a cause is known on this rank.
  bool broken() const noexcept { return broken_.load(std::memory_order_acquire); }

  /// Leaves the group: closes its sockets and drops the attachments. Local, does not wait; a second
  /// call does nothing. A peer that still needs this rank gets PeerError.
  void close() noexcept;

  /// An object that lives as long as the group (the workspace); null when there is none.
  std::shared_ptr<void> attachment(const std::string& key) const;
  /// Stores such an object, replacing one with the same key. @throws Error when the group is closed
  void attach(const std::string& key, std::shared_ptr<void> object);

 private:
  Group(int rank, int size, std::string name, Milliseconds timeout);

  void connect(const posix::Deadline& deadline);
  exchange::Contribution contribution_of(const Request& request, std::exception_ptr& failure) const;
  std::shared_ptr<exchange::Broker> broker() const;
  Error closed_error() const;
  bool record(const std::exception_ptr& error, const std::string& phase) const noexcept;
  [[noreturn]] void break_and_rethrow(const std::string& phase) const;

  const int rank_;
  const int size_;
  const std::string name_;
  const Milliseconds timeout_;
  const std::uint64_t process_generation_;
  std::vector<pid_t> pids_;  // known once joined

  exchange::Turnstile turnstile_;  // one operation at a time
  std::uint64_t sequence_ = 0;     // of the thread that is inside

  // `check` finds out that another rank broke the group, and is const for its callers.
  mutable std::mutex state_mutex_;
  mutable std::shared_ptr<exchange::Broker> broker_;  // null once closed or broken, or for one rank
  mutable std::shared_ptr<exchange::Claim> claim_;    // keeps (name, rank) taken in this process
  mutable std::exception_ptr cause_;
  mutable std::atomic<bool> broken_{false};
  std::atomic<bool> closed_{false};
  std::map<std::string, std::shared_ptr<void>> attachments_;
};

}  // namespace v1
}  // namespace parallel_tensor

#include "parallel_tensor/exchange/group_inline.hpp"
