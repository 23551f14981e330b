/// @file
/// The memory that the device protocols of a group work in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/device/workspace_layout.cuh"
#include "parallel_tensor/memory/host_memory.hpp"
#include "parallel_tensor/peer_memory.hpp"
#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// Signals and epochs of every rank, mapped here, and the status word of this rank's kernels.
///
/// There is one per group. It is made inside the group's first exchange of memory and lives as long
/// as the group; all of a rank's tensors in one group are on the device of that workspace.
class Workspace {
 public:
  /// The workspace of a group, or nothing before its first exchange of memory.
  static std::shared_ptr<Workspace> find(const Group& group) {
    return std::static_pointer_cast<Workspace>(group.attachment(key));
  }

  /// The workspace of a group; makes it when there is none, which is collective.
  static std::shared_ptr<Workspace> require(Group& group, std::optional<int> ordinal = {});

  const driver::Device& device() const noexcept { return device_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(memory_.pieces.size()); }

  /// The workspace memory of a rank, laid out as device/workspace_layout.cuh says.
  std::byte* pointer(int rank) const {
    return static_cast<std::byte*>(memory_.pieces.at(static_cast<std::size_t>(rank)).pointer);
  }

  /// What this rank's kernels leave for the host.
  device::WaitStatus* status() const noexcept {
    return static_cast<device::WaitStatus*>(status_->pointer());
  }

  /// The most blocks that a launch may have so that the blocks of all ranks run side by side, also
  /// when several ranks share a GPU. The same on all ranks.
  int block_limit() const noexcept { return block_limit_; }

  /// How many ranks use the GPU of this rank, this one included.
  int ranks_on_device() const noexcept { return ranks_on_device_; }

 private:
  friend class WorkspaceExchange;
  static constexpr const char* key = "workspace";

  Workspace(const driver::Device& device, int rank, std::shared_ptr<memory::HostMemory> status)
      : device_(device), rank_(rank), status_(std::move(status)) {}

  void adopt(PeerMemory memory, const std::vector<PeerDevice>& devices) {
    memory_ = std::move(memory);
    block_limit_ = device::maximum_blocks;
    for (const PeerDevice& peer : devices) {
      const auto sharing =
          std::count_if(devices.begin(), devices.end(),
                        [&](const PeerDevice& other) { return other.uuid == peer.uuid; });
      block_limit_ =
          std::min(block_limit_, std::max(1, static_cast<int>(peer.multiprocessors / sharing)));
      if (peer.uuid == device_.uuid()) ranks_on_device_ = static_cast<int>(sharing);
    }
  }

  driver::Device device_;
  int rank_;
  std::shared_ptr<memory::HostMemory> status_;
  PeerMemory memory_;
  // While a process has an exported descriptor open, to export another and close it takes 27 us
  // instead of 1220 (measured on an H200, driver 580); this one keeps nothing but the workspace.
  posix::PrivateDescriptor exported_;
  int block_limit_ = 1;
  int ranks_on_device_ = 1;
};

/// An exchange of memory that brings the group's workspace along when there is none yet.
class WorkspaceExchange {
 public:
  /// As exchange_memory(), and the workspace exists afterwards. Collective.
  /// @throws ArgumentError when the group's tensors are on another device of this rank.
  static ExchangedMemory run(Group& group, std::optional<int> ordinal, const std::string& operation,
                             const std::string& signature, const PreparePieces& prepare,
                             Timings& timings) {
    const std::shared_ptr<Workspace> existing = Workspace::find(group);
    std::shared_ptr<Workspace> fresh;
    if (existing && !ordinal) ordinal = existing->device().ordinal();
    const PreparePieces with_workspace = [&](const driver::Device& device, Spares& spares) {
      if (existing && !(existing->device() == device)) {
        throw ArgumentError(
            operation + " on device " + std::to_string(device.ordinal()) + ": rank " +
            std::to_string(group.rank()) + " of this group works on device " +
            std::to_string(existing->device().ordinal()) + ". Make another Group for it.");
      }
      std::vector<OwnPiece> own = prepare(device, spares);
      if (existing) return own;
      auto status =
          memory::reclaimed(memory::HostMemory(device, sizeof(device::WaitStatus)), device);
      fresh = std::shared_ptr<Workspace>(new Workspace(device, group.rank(), std::move(status)));
      own.push_back(OwnPiece::make(device, device::control_bytes(group.size()),
                                   std::string(1, '\0'), nullptr));
      fresh->exported_ = posix::PrivateDescriptor(own.back().descriptor.duplicate());
      return own;
    };
    ExchangedMemory result =
        exchange_memory(group, ordinal, operation, (existing ? "" : "first; ") + signature,
                        with_workspace, timings);
    if (fresh) {
      fresh->adopt(std::move(result.memories.back()), result.devices);
      result.memories.pop_back();
      group.attach(Workspace::key, fresh);
    }
    return result;
  }
};

inline std::shared_ptr<Workspace> Workspace::require(Group& group, std::optional<int> ordinal) {
  if (auto existing = find(group)) return existing;
  Timings timings;
  WorkspaceExchange::run(
      group, ordinal, "workspace", "",
      [](const driver::Device&, Spares&) { return std::vector<OwnPiece>(); }, timings);
  return find(group);
}

}  // namespace v1
}  // namespace parallel_tensor
