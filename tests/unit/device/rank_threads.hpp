// Ranks as threads of the test over plain shared arrays: what ThreadSanitizer sees of the device
// protocols.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/device/wait.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"

namespace test {

namespace pt = parallel_tensor;

/// Zeroed bytes at an address that is a multiple of 128.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes) : data_(new(std::align_val_t{128}) std::byte[bytes]()) {}
  std::byte* get() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{128}); }
  };
  std::unique_ptr<std::byte[], Delete> data_;
};

/// The workspace and status of every rank.
class Ranks {
 public:
  explicit Ranks(int size, std::chrono::nanoseconds limit = std::chrono::seconds(60))
      : limit_ns_(static_cast<std::uint64_t>(limit.count())) {
    for (int rank = 0; rank < size; ++rank) {
      workspaces_.emplace_back(pt::device::control_bytes(size));
      statuses_.push_back(std::make_unique<pt::device::WaitStatus>());
    }
  }

  int size() const { return static_cast<int>(workspaces_.size()); }
  pt::device::WaitStatus& status(int rank) { return *statuses_[static_cast<std::size_t>(rank)]; }
  std::byte* workspace(int rank) { return workspaces_[static_cast<std::size_t>(rank)].get(); }
  pt::device::WaitLimits limits(int rank) { return {&status(rank), limit_ns_}; }

  template <int N>
  pt::PeerView<std::byte, N> view(int rank) {
    pt::PeerView<std::byte, N> view{};
    for (int peer = 0; peer < size(); ++peer) view.pointers[peer] = workspace(peer);
    view.rank = rank;
    if constexpr (N == pt::run_time_size) view.rank_count = size();
    return view;
  }

  /// Lets every epoch and signal of a channel begin at `epoch`, as after that many barriers.
  void begin_at(pt::device::Channel channel, std::uint32_t epoch) {
    for (int rank = 0; rank < size(); ++rank) {
      for (unsigned int block = 0; block < pt::device::maximum_blocks; ++block) {
        word(rank, pt::device::epoch_offset(channel, block)) = epoch;
        for (int source = 0; source < size(); ++source) {
          word(rank, pt::device::signal_offset(channel, block, source, size())) = epoch;
        }
      }
    }
  }

  std::uint32_t& word(int rank, std::size_t offset) {
    return *reinterpret_cast<std::uint32_t*>(workspace(rank) + offset);
  }

  void abort(int rank) { std::atomic_ref(status(rank).abort).store(1, std::memory_order_relaxed); }

  pt::device::WaitState state(int rank) {
    return static_cast<pt::device::WaitState>(
        std::atomic_ref(status(rank).state).load(std::memory_order_acquire));
  }

  /// Calls `body` with each rank on a thread of its own and waits for all. Every wait of a protocol
  /// is bounded, so this ends.
  void run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
  }

 private:
  std::uint64_t limit_ns_;
  std::vector<AlignedBytes> workspaces_;
  std::vector<std::unique_ptr<pt::device::WaitStatus>> statuses_;
};

}  // namespace test
