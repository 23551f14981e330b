#include <gtest/gtest.h>

#include "parallel_tensor/collectives/barrier.hpp"
#include "ranks_on_devices.hpp"

namespace parallel_tensor::testing {
namespace {

class BarrierOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(BarrierOfRanks, KeepsTheRanksInStep) {
  const int size = GetParam();
  std::vector<std::atomic<int>> rounds(static_cast<std::size_t>(size));
  std::atomic<int> wrong{0};
  expect_no_errors(run_group(size, [&](const RankOnDevice& own) {
    for (int round = 1; round <= 20; ++round) {
      rounds[static_cast<std::size_t>(own.rank())] = round;
      barrier(*own.group, own.stream);
      for (const auto& other : rounds) wrong += other < round || other > round + 1;
    }
  }));
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BarrierOfRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST(Barrier, AgainstAnotherCollectiveRaisesMismatchErrorOnBoth) {
  expect_no_errors(run_group(2, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(400);
    message_of<MismatchError>([&] {
      if (own.rank() == 0) {
        barrier(*own.group, own.stream);
      } else {
        all_reduce_(buffer, {.dtype = float32, .count = 100}, own.stream);
      }
    });
    barrier(*own.group, own.stream);
  }));
}

}  // namespace
}  // namespace parallel_tensor::testing
