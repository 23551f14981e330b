#include <gtest/gtest.h>

#include <chrono>

#include "parallel_tensor/device/barrier.cuh"
#include "rank_threads.hpp"

namespace {

using namespace parallel_tensor::device;
using parallel_tensor::run_time_size;

template <int N>
void pass_barrier(test::Ranks& ranks, int rank) {
  barrier<HostBlock, N>(HostBlock{0, 1},
                        BarrierArguments<N>{ranks.view<N>(rank), ranks.limits(rank)});
}

// Each rank counts its rounds in a plain word; a barrier that let one through early, or showed
// stale memory, would be seen as a wrong count and reported by ThreadSanitizer as a race.
template <int N>
void count_rounds(test::Ranks& ranks, int rounds) {
  std::vector<int> counts(static_cast<std::size_t>(ranks.size()));
  std::atomic<int> wrong{0};
  ranks.run([&](int rank) {
    for (int round = 1; round <= rounds; ++round) {
      counts[static_cast<std::size_t>(rank)] = round;
      pass_barrier<N>(ranks, rank);
      for (int count : counts) wrong += count != round;
      pass_barrier<N>(ranks, rank);
    }
  });
  EXPECT_EQ(wrong, 0);
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks.state(rank), WaitState::none);
}

class BarrierOfRanks : public testing::TestWithParam<int> {};

TEST_P(BarrierOfRanks, KeepsRoundsApart) {
  test::Ranks ranks(GetParam());
  count_rounds<run_time_size>(ranks, 200);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BarrierOfRanks, testing::Values(1, 2, 3, 4, 8, 40, 72));

TEST(Barrier, KeepsRoundsApartWhenSpecialised) {
  test::Ranks two(2), four(4), eight(8);
  count_rounds<2>(two, 2000);
  count_rounds<4>(four, 500);
  count_rounds<8>(eight, 200);
}

TEST(Barrier, EpochsWrapAround) {
  test::Ranks ranks(3);
  ranks.begin_at(Channel::barrier, 0xffffffffU - 20);
  count_rounds<run_time_size>(ranks, 50);
  EXPECT_EQ(ranks.word(0, epoch_offset(Channel::barrier, 0)), 0xffffffffU - 20 + 100);
}

TEST(Barrier, LeavesOtherChannelsAlone) {
  test::Ranks ranks(2);
  count_rounds<2>(ranks, 5);
  EXPECT_EQ(ranks.word(0, epoch_offset(Channel::barrier, 0)), 10U);
  EXPECT_EQ(ranks.word(0, epoch_offset(Channel::all_reduce, 0)), 0U);
  EXPECT_EQ(ranks.word(1, signal_offset(Channel::all_reduce, 0, 0, 2)), 0U);
}

TEST(Barrier, MissingRankEndsInTheStatus) {
  const auto limit = std::chrono::milliseconds(200);
  test::Ranks ranks(3, limit);
  ranks.begin_at(Channel::barrier, 6);
  const auto start = std::chrono::steady_clock::now();
  ranks.run([&](int rank) {
    if (rank != 1) pass_barrier<3>(ranks, rank);
  });
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, limit);
  EXPECT_LT(took, limit + std::chrono::seconds(20));
  for (int rank : {0, 2}) {
    const WaitStatus& status = ranks.status(rank);
    EXPECT_EQ(ranks.state(rank), WaitState::timed_out);
    EXPECT_EQ(status.rank, rank);
    EXPECT_EQ(status.peer, 1);
    EXPECT_EQ(status.channel, static_cast<std::uint32_t>(Channel::barrier));
    EXPECT_EQ(status.block, 0U);
    EXPECT_EQ(status.epoch, 7U);
    EXPECT_EQ(status.seen, 6U);
    EXPECT_GE(status.waited_ns, static_cast<std::uint64_t>(limit / std::chrono::nanoseconds(1)));
  }
  EXPECT_EQ(ranks.state(1), WaitState::none);
}

TEST(Barrier, AbortEndsTheWait) {
  test::Ranks ranks(2);
  ranks.run([&](int rank) {
    if (rank == 0) {
      pass_barrier<2>(ranks, 0);
    } else {
      ranks.abort(0);
    }
  });
  EXPECT_EQ(ranks.state(0), WaitState::aborted);
  EXPECT_EQ(ranks.status(0).peer, 1);
}

TEST(Barrier, AfterAFailureNothingWaits) {
  test::Ranks ranks(2);
  ranks.abort(0);
  pass_barrier<2>(ranks, 0);
  const WaitStatus first = ranks.status(0);
  ASSERT_EQ(ranks.state(0), WaitState::aborted);

  // A graph that holds thousands of launches must drain at once, and the first cause must stay.
  ranks.status(0).abort = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int launch = 0; launch < 10000; ++launch) pass_barrier<2>(ranks, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(ranks.status(0).epoch, first.epoch);
  EXPECT_EQ(ranks.word(1, signal_offset(Channel::barrier, 0, 0, 2)), first.epoch);
}

}  // namespace
