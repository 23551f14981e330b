/// @file
/// Board: a page that all ranks of a group map. It says how far each rank and the hub have come and
/// who broke the group first, so that a rank can tell without asking anybody.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/serialize.hpp"
#include "parallel_tensor/exchange/status.hpp"
#include "parallel_tensor/posix/shared_memory.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// "rank 2 (pid 4711)"; the pid is left out when it is not known.
inline std::string rank_text(int rank, pid_t pid) {
  std::string text = "rank " + std::to_string(rank);
  if (pid > 0) text += " (pid " + std::to_string(pid) + ")";
  return text;
}

/// Why a group broke, in a form that all ranks can read.
struct BreakRecord {
  int breaker = -1;  ///< the rank that broke the group
  pid_t breaker_pid = 0;
  std::string phase;  ///< the operation it was in
  Status status;      ///< the exception it raised
  int rank = -1;      ///< for a PeerError: the rank it is about
  pid_t pid = 0;
  std::vector<int> missing;  ///< for a TimeoutError

  /// Describes an exception that `breaker` is about to raise.
  static BreakRecord of(const std::exception_ptr& error, int breaker, pid_t breaker_pid,
                        const std::string& phase) {
    BreakRecord record;
    record.breaker = breaker;
    record.breaker_pid = breaker_pid;
    record.phase = phase;
    record.status = Status::of(error);
    try {
      std::rethrow_exception(error);
    } catch (const PeerError& peer) {
      record.rank = peer.rank();
      record.pid = peer.pid();
      record.phase = peer.phase();
    } catch (const TimeoutError& timeout) {
      record.missing = timeout.missing();
      record.phase = timeout.phase();
    } catch (...) {
    }
    return record;
  }

  /// The exception that another rank of the group raises for it.
  std::exception_ptr to_exception() const {
    const std::string text = rank_text(breaker, breaker_pid) + " broke the group in '" + phase +
                             "': " + status.kind + ": " + status.message;
    if (status.kind == "TimeoutError") {
      return std::make_exception_ptr(TimeoutError(text, phase, missing));
    }
    if (status.kind == "MismatchError") {
      return std::make_exception_ptr(MismatchError(text, phase));
    }
    if (status.kind == "PeerError") {
      return std::make_exception_ptr(PeerError(text, rank, pid, phase));
    }
    return std::make_exception_ptr(PeerError(text, breaker, breaker_pid, phase));
  }
};

/// One rank's view of the shared page. Every member may be called from any thread.
class Board {
 public:
  Board() noexcept = default;

  /// The hub's side; `descriptor` gets what the other ranks need to `open` it. @throws Error
  static Board create(int size, posix::Descriptor& descriptor) {
    return Board(posix::SharedMemory::create(bytes(size), descriptor), size);
  }

  /// @throws Error when the descriptor is something else
  static Board open(int size, const posix::Descriptor& descriptor) {
    return Board(posix::SharedMemory::open(descriptor, bytes(size)), size);
  }

  /// This rank has begun the operation with that sequence number.
  void enter(int rank, pid_t pid, std::uint64_t sequence) noexcept {
    std::atomic_ref(slot(rank).pid).store(pid, std::memory_order_relaxed);
    std::atomic_ref(slot(rank).entered).store(sequence, std::memory_order_release);
  }

  /// The ranks that have not begun that operation.
  std::vector<int> missing(std::uint64_t sequence) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (std::atomic_ref(slot(rank).entered).load(std::memory_order_acquire) < sequence) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  /// The process of a rank, 0 before it has joined.
  pid_t pid(int rank) const noexcept {
    return std::atomic_ref(slot(rank).pid).load(std::memory_order_relaxed);
  }

  /// The hub has everything for that operation and is about to answer.
  void set_answered(std::uint64_t sequence) noexcept {
    std::atomic_ref(header().answered).store(sequence, std::memory_order_release);
  }
  bool answered(std::uint64_t sequence) const noexcept {
    return std::atomic_ref(header().answered).load(std::memory_order_acquire) >= sequence;
  }

  /// Publishes why the group is broken; only the first one counts.
  void publish(const BreakRecord& record) {
    Writer writer;
    writer.integer(record.breaker);
    writer.integer(record.breaker_pid);
    writer.text(record.phase.substr(0, 128));
    writer.text(record.status.kind);
    writer.text(record.status.message.substr(0, max_message));
    writer.integer(record.rank);
    writer.integer(record.pid);
    const std::size_t count = std::min(record.missing.size(), max_missing);
    writer.integer<std::uint32_t>(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) writer.integer(record.missing[i]);
    const std::string& text = writer.bytes();
    if (text.size() > sizeof header().record) return;

    std::uint32_t nobody = 0;
    if (!std::atomic_ref(header().claimed).compare_exchange_strong(nobody, 1)) return;
    std::memcpy(header().record, text.data(), text.size());
    std::atomic_ref(header().published)
        .store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
  }

  bool broken() const noexcept {
    return std::atomic_ref(header().published).load(std::memory_order_acquire) != 0;
  }

  /// The published cause, if there is one.
  std::optional<BreakRecord> cause() const {
    const std::uint32_t length =
        std::atomic_ref(header().published).load(std::memory_order_acquire);
    if (length == 0 || length > sizeof header().record) return std::nullopt;
    Reader reader({header().record, length});
    BreakRecord record;
    record.breaker = reader.integer<int>();
    record.breaker_pid = reader.integer<pid_t>();
    record.phase = reader.text();
    record.status.kind = reader.text();
    record.status.message = reader.text();
    record.rank = reader.integer<int>();
    record.pid = reader.integer<pid_t>();
    record.missing.resize(std::min<std::size_t>(reader.integer<std::uint32_t>(), max_missing));
    for (int& rank : record.missing) rank = reader.integer<int>();
    return record;
  }

 private:
  static constexpr std::size_t max_message = 4096;
  static constexpr std::size_t max_missing = 256;

  struct Header {
    std::uint64_t answered;
    std::uint32_t claimed;
    std::uint32_t published;  // bytes of the record, 0 until it is whole
    char record[6144];
  };
  struct Slot {
    std::uint64_t entered;
    std::int32_t pid;
    std::uint32_t unused;
  };

  Board(posix::SharedMemory memory, int size) : memory_(std::move(memory)), size_(size) {}

  static std::size_t bytes(int size) {
    return sizeof(Header) + static_cast<std::size_t>(size) * sizeof(Slot);
  }
  Header& header() const noexcept { return *static_cast<Header*>(memory_.data()); }
  Slot& slot(int rank) const noexcept {
    char* slots = static_cast<char*>(memory_.data()) + sizeof(Header);
    return reinterpret_cast<Slot*>(slots)[rank];
  }

  posix::SharedMemory memory_;
  int size_ = 0;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
