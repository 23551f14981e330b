/// @file
/// A buffer of device memory on every rank, all of them addressable from every rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/exchange/group.hpp"
#include "parallel_tensor/peer_memory.hpp"
#include "parallel_tensor/workspace.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// Whether a buffer gets a multicast address.
enum class MulticastPolicy {
  off,        ///< none
  required,   ///< all ranks get one, or all raise with the reason
  automatic,  ///< all or none; the reason for none is kept
};

/// How a buffer is created or shared.
struct BufferOptions {
  MulticastPolicy multicast = MulticastPolicy::automatic;
  /// The ordinal of this rank's device; without one, the device that the group works on already,
  /// else the current one.
  std::optional<int> device{};
  /// What else must be equal on all ranks: shape and type, as text.
  std::string signature{};
  /// Repeated over the new memory before the exchange ends; its length divides the bytes.
  std::string pattern{};
};

/// Existing memory of this rank, to be shared.
struct ExistingMemory {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  /// Keeps the memory alive while any rank's view of it may be in use; may be empty.
  std::shared_ptr<const void> owner{};
};

/// This rank's memory and every peer's mapping of theirs. Move-only.
///
/// Dropping it is local and makes no driver call: the memory goes to the reclaimer. Owners that
/// were taken from it (`owner()`) keep their mapping. Not thread-safe: one thread at a time.
class ParallelBuffer {
 public:
  /// New memory of `bytes` on every rank. Collective; bytes must be equal on all ranks.
  /// Its contents are the pattern of the options, else undefined: zeros where the driver gave new
  /// memory, what was there before where memory that all ranks have dropped is used again.
  /// @throws OutOfMemoryError, DriverError, ArgumentError for this rank's own failure; PeerError
  /// when
  ///     another rank failed; MismatchError when the ranks ask for different things; TimeoutError;
  ///     NotSupportedError when multicast is required and cannot be had.
  static ParallelBuffer create(std::shared_ptr<Group> group, std::size_t bytes,
                               const BufferOptions& options = {}) {
    const std::string signature =
        std::to_string(bytes) + " bytes" + policy_text(options.multicast) + options.signature;
    return std::move(make(std::move(group), options, "create", signature,
                          [&](const driver::Device& device, [[maybe_unused]] Spares& spares) {
                            std::vector<OwnPiece> own;
                            refuse_multicast(options.multicast);
                            own.push_back(OwnPiece::make(device, bytes, options.pattern, &spares));
                            return own;
                          })
                         .front());
  }

  /// Existing memory of every rank: cudaMalloc memory, or virtual memory that can be exported.
  /// Collective; one exchange for the whole list. Ranks may pass different addresses and offsets;
  /// the sizes must be equal.
  /// @throws as create(); NotSupportedError when the driver cannot share that kind of memory.
  static std::vector<ParallelBuffer> share(std::shared_ptr<Group> group,
                                           const std::vector<ExistingMemory>& memories,
                                           const BufferOptions& options = {}) {
    std::string signature = policy_text(options.multicast) + options.signature;
    for (const ExistingMemory& memory : memories) {
      signature = std::to_string(memory.bytes) + " bytes; " + signature;
    }
    return make(
        std::move(group), options, "share", signature,
        [&](const driver::Device& device, [[maybe_unused]] Spares& spares) {
          std::vector<OwnPiece> own;
          refuse_multicast(options.multicast);
          for (const ExistingMemory& memory : memories) {
            own.push_back(OwnPiece::existing(device, memory.pointer, memory.bytes, memory.owner));
          }
          return own;
        });
  }

  ParallelBuffer(ParallelBuffer&&) noexcept = default;
  ParallelBuffer& operator=(ParallelBuffer&&) noexcept = default;
  ParallelBuffer(const ParallelBuffer&) = delete;

  /// This rank's memory; null when it has no bytes. @throws Error after close().
  void* local() const { return peer(rank()); }

  /// A rank's memory as it is addressed here. @throws ArgumentError for a rank outside the group.
  void* peer(int rank) const { return piece(rank).pointer; }

  /// Keeps a rank's memory addressable here for as long as it lives, also after close().
  std::shared_ptr<const void> owner(int rank) const { return piece(rank).owner; }

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }
  /// Bytes per rank, as asked for.
  std::size_t bytes() const noexcept { return bytes_; }
  memory::Flavor flavor() const noexcept { return memory_.flavor; }
  const driver::Device& device() const noexcept { return device_; }
  const std::shared_ptr<Group>& group() const noexcept { return group_; }
  const Timings& timings() const noexcept { return timings_; }
  bool closed() const noexcept { return closed_; }

  /// The address that reaches all ranks' memory at once; 0 when there is none.
  CUdeviceptr multicast_pointer() const noexcept { return 0; }
  /// Why there is no multicast address.
  const std::string& multicast_reason() const noexcept { return multicast_reason_; }

  /// Gives this rank's part up and waits until all ranks have done so. Collective and bounded by
  /// the group's timeout; this rank's part is released whatever happens. A second call does
  /// nothing.
  /// @throws PeerError, TimeoutError when the other ranks did not follow.
  void close() {
    if (closed_) return;
    release();
    memory::Reclaimer::instance().collect(patience);
    if (!group_->closed()) {
      Retirement::of(*group_)->all_gather(*group_, {.operation = "close", .signature = closing_});
    }
    memory::Reclaimer::instance().collect(patience);
  }

  /// Gives this rank's part up without waiting for anybody.
  void release() noexcept {
    closed_ = true;
    memory_.pieces.clear();
  }

 private:
  // What a collection waits for the device before it leaves the rest to the next one.
  static constexpr std::chrono::milliseconds patience{10};

  ParallelBuffer(std::shared_ptr<Group> group, const driver::Device& device, PeerMemory memory,
                 std::string closing, const Timings& timings, std::string multicast_reason)
      : group_(std::move(group)),
        device_(device),
        memory_(std::move(memory)),
        bytes_(memory_.pieces[static_cast<std::size_t>(group_->rank())].bytes),
        closing_(std::move(closing)),
        timings_(timings),
        multicast_reason_(std::move(multicast_reason)) {}

  template <typename Prepare>
  static std::vector<ParallelBuffer> make(std::shared_ptr<Group> group,
                                          const BufferOptions& options,
                                          const std::string& operation,
                                          const std::string& signature, Prepare prepare) {
    Timings timings;
    ExchangedMemory exchanged =
        WorkspaceExchange::run(*group, options.device, operation, signature, prepare, timings);
    std::vector<ParallelBuffer> buffers;
    for (PeerMemory& memory : exchanged.memories) {
      const std::string number = std::to_string(memory.number);
      buffers.push_back(ParallelBuffer(group, exchanged.device, std::move(memory),
                                       "buffer " + number + ": " + signature, timings,
                                       no_multicast(options.multicast)));
    }
    return buffers;
  }

  const PeerPiece& piece(int rank) const {
    if (closed_) throw Error("This buffer is closed; take what you need before close().");
    if (rank < 0 || rank >= size()) {
      throw ArgumentError("Rank " + std::to_string(rank) + " is outside the group of " +
                          std::to_string(size()) + " ranks.");
    }
    return memory_.pieces[static_cast<std::size_t>(rank)];
  }

  static std::string policy_text(MulticastPolicy policy) {
    return policy == MulticastPolicy::off        ? "; no multicast; "
           : policy == MulticastPolicy::required ? "; multicast required; "
                                                 : "; multicast automatic; ";
  }

  static void refuse_multicast(MulticastPolicy policy) {
    if (policy != MulticastPolicy::required) return;
    throw NotSupportedError(
        "Multicast addresses are not part of this version of parallel-tensor; "
        "pass multicast=False or \"auto\".");
  }

  static std::string no_multicast(MulticastPolicy policy) {
    return policy == MulticastPolicy::off ? "multicast was not asked for"
                                          : "this version of parallel-tensor has no multicast";
  }

  std::shared_ptr<Group> group_;
  driver::Device device_;
  PeerMemory memory_;
  std::size_t bytes_;
  std::string closing_;
  Timings timings_;
  std::string multicast_reason_;
  bool closed_ = false;
};

}  // namespace v1
}  // namespace parallel_tensor
