#include <gtest/gtest.h>

#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/device/platform.cuh"
#include "parallel_tensor/device/wait.cuh"
#include "rank_threads.hpp"

namespace {

using namespace parallel_tensor::device;

TEST(EpochReached, ComparesAcrossTheWrap) {
  EXPECT_TRUE(epoch_reached(5, 5));
  EXPECT_TRUE(epoch_reached(6, 5));
  EXPECT_FALSE(epoch_reached(4, 5));
  EXPECT_TRUE(epoch_reached(0, 0xffffffffU));
  EXPECT_TRUE(epoch_reached(3, 0xfffffff0U));
  EXPECT_FALSE(epoch_reached(0xffffffffU, 0));
}

TEST(WaitForEpoch, SeesWhatWasWrittenBeforeTheSignal) {
  std::uint32_t word = 0, failed = 0;
  int data = 0;
  WaitStatus status{};
  bool ok = false;
  std::thread writer([&] {
    data = 42;
    store_release_system(&word, 1);
  });
  ok = wait_for_epoch(HostBlock{0, 1}, &word, WaitTarget{0, 1, Channel::barrier, 0, 1}, &failed,
                      WaitLimits{&status, 60'000'000'000});
  EXPECT_TRUE(ok);
  EXPECT_EQ(data, 42);
  writer.join();
}

TEST(WaitForEpoch, OnlyTheFirstFailureOfARankIsKept) {
  std::uint32_t word = 0, failed = 0;
  WaitStatus status{};
  const WaitLimits limits{&status, 1'000'000};
  EXPECT_FALSE(wait_for_epoch(HostBlock{0, 1}, &word, WaitTarget{0, 1, Channel::barrier, 0, 1},
                              &failed, limits));
  EXPECT_FALSE(wait_for_epoch(HostBlock{0, 1}, &word, WaitTarget{0, 2, Channel::all_reduce, 3, 9},
                              &failed, limits));
  EXPECT_EQ(status.peer, 1);
  EXPECT_EQ(failed, static_cast<std::uint32_t>(WaitState::timed_out));
}

TEST(PeerView, IsMadeFromAnythingWithPeers) {
  struct Buffer {
    int values[3];
    int rank() const { return 1; }
    int size() const { return 3; }
    const void* peer(int index) const { return &values[index]; }
    void* multicast_pointer() const { return nullptr; }
  };
  struct Mutable : Buffer {
    void* peer(int index) const { return const_cast<int*>(&values[index]); }
  };
  const Mutable buffer{};
  const auto fixed = parallel_tensor::peer_view<int, 3>(buffer);
  const auto any = parallel_tensor::peer_view<int>(buffer);
  EXPECT_EQ(fixed.size(), 3);
  EXPECT_EQ(any.size(), 3);
  for (int peer = 0; peer < 3; ++peer) {
    EXPECT_EQ(fixed.pointers[peer], &buffer.values[peer]);
    EXPECT_EQ(any.pointers[peer], &buffer.values[peer]);
  }
  EXPECT_EQ(fixed.rank, 1);
  static_assert(sizeof(parallel_tensor::PeerView<int>) < 1024);
}

}  // namespace
