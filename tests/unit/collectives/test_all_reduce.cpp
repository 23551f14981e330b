#include <gtest/gtest.h>

#include <random>

#include "parallel_tensor/collectives/all_reduce.hpp"
#include "ranks_on_devices.hpp"

namespace parallel_tensor::testing {
namespace {

// Small whole numbers: their sums are exact in both types.
int value_at(int rank, std::size_t index) {
  return static_cast<int>((index * 7 + static_cast<std::size_t>(rank) * 13) % 15) - 7;
}

void fill(void* memory, DType dtype, std::size_t count, int rank) {
  for (std::size_t index = 0; index < count; ++index) {
    const auto value = static_cast<float>(value_at(rank, index));
    if (dtype == float32) {
      static_cast<float*>(memory)[index] = value;
    } else {
      static_cast<device::BFloat16*>(memory)[index] = device::round_to_bfloat16(value);
    }
  }
}

// How many elements differ from the sum over all ranks.
std::size_t wrong_sums(const void* memory, DType dtype, std::size_t count, int size) {
  std::size_t wrong = 0;
  for (std::size_t index = 0; index < count; ++index) {
    int sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += value_at(rank, index);
    const float value = dtype == float32 ? static_cast<const float*>(memory)[index]
                                         : device::ElementTraits<device::BFloat16>::to_float(
                                               static_cast<const device::BFloat16*>(memory)[index]);
    wrong += value != static_cast<float>(sum);
  }
  return wrong;
}

class AllReduceOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(AllReduceOfRanks, SumsInPlaceOnEveryRank) {
  std::atomic<std::size_t> wrong{0};
  expect_no_errors(run_group(GetParam(), [&](const RankOnDevice& own) {
    for (DType dtype : {float32, bfloat16}) {
      for (std::size_t count : {0, 1, 3, 8, 1000, 65537, 300000}) {
        ParallelBuffer buffer = own.buffer(count * dtype.size());
        if (count > 0) fill(buffer.local(), dtype, count, own.rank());
        all_reduce_(buffer, {.dtype = dtype, .count = count}, own.stream);
        wrong += count == 0 ? 0 : wrong_sums(buffer.local(), dtype, count, own.size());
        buffer.close();
      }
    }
  }));
  EXPECT_EQ(wrong, 0U);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllReduceOfRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST(AllReduce, TouchesOnlyTheElementsItWasGiven) {
  expect_no_errors(run_group(2, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(4000);
    auto* elements = static_cast<float*>(buffer.local());
    for (int index = 0; index < 1000; ++index) elements[index] = 1.0F;
    own.group->barrier();
    all_reduce_(buffer, {.dtype = float32, .count = 500, .offset_bytes = 4 * 333}, own.stream);
    for (int index = 0; index < 1000; ++index) {
      ASSERT_EQ(elements[index], index >= 333 && index < 833 ? 2.0F : 1.0F) << index;
    }
  }));
}

TEST(AllReduce, FollowsTheOrderOfStreamsThatTakeTurns) {
  expect_no_errors(run_group(2, [](const RankOnDevice& own) {
    driver::Stream other;
    ParallelBuffer buffer = own.buffer(400);
    auto* elements = static_cast<float*>(buffer.local());
    for (int index = 0; index < 100; ++index) elements[index] = 1.0F;
    for (int call = 0; call < 10; ++call) {
      all_reduce_(buffer, {.dtype = float32, .count = 100}, call % 2 ? other.get() : own.stream);
    }
    for (int index = 0; index < 100; ++index) ASSERT_EQ(elements[index], 1024.0F);
  }));
}

TEST(AllReduce, DifferentArgumentsRaiseMismatchErrorOnAllAndTheGroupLives) {
  expect_no_errors(run_group(3, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(4000);
    const std::size_t count = own.rank() == 1 ? 999 : 1000;
    const std::string message = message_of<MismatchError>(
        [&] { all_reduce_(buffer, {.dtype = float32, .count = count}, own.stream); });
    EXPECT_NE(message.find("999"), std::string::npos) << message;
    EXPECT_NE(message.find("1000"), std::string::npos) << message;
    fill(buffer.local(), float32, 1000, own.rank());
    all_reduce_(buffer, {.dtype = float32, .count = 1000}, own.stream);
    EXPECT_EQ(wrong_sums(buffer.local(), float32, 1000, 3), 0U);
  }));
}

TEST(AllReduce, WhatOneRankAsksWronglyRaisesThereAndPeerErrorElsewhere) {
  expect_no_errors(run_group(3, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(4000);
    const auto call = [&](const AllReduceOptions& wrong) {
      const AllReduceOptions right{.dtype = float32, .count = 1000};
      all_reduce_(buffer, own.rank() == 2 ? wrong : right, own.stream);
    };
    const AllReduceOptions outside{.dtype = float32, .count = 1001};
    const AllReduceOptions overflow{.dtype = float32, .count = 1, .offset_bytes = ~std::size_t{0}};
    const AllReduceOptions misaligned{.dtype = float32, .count = 1, .offset_bytes = 2};
    const AllReduceOptions integers{.dtype = {0, 32}, .count = 1000};
    const AllReduceOptions nameless{.dtype = {99, 3}, .count = 1000};
    const AllReduceOptions product{.dtype = float32, .count = 1000, .op = Reduction::prod};
    const AllReduceOptions other{.dtype = float32, .count = 1000, .algorithm = Algorithm::ll};
    for (const auto& options : {outside, overflow, misaligned, nameless}) {
      if (own.rank() == 2) {
        message_of<ArgumentError>([&] { call(options); });
      } else {
        message_of<PeerError>([&] { call(options); });
      }
    }
    for (const auto& options : {integers, product, other}) {
      if (own.rank() == 2) {
        message_of<NotSupportedError>([&] { call(options); });
      } else {
        const std::string message = message_of<PeerError>([&] { call(options); });
        EXPECT_NE(message.find("NotSupportedError"), std::string::npos) << message;
      }
    }
    call({.dtype = float32, .count = 1000});
  }));
}

TEST(AllReduce, AFailedLaunchIsRaisedThereAndEndsTheWaitOfThePeers) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_group(3, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(4000);
    if (own.rank() == 1) fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 1, true);
    all_reduce_(buffer, {.dtype = float32, .count = 1000}, own.stream);
  });
  clear_faults();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_NE(text_of(errors[1]).find("DriverError: cuLaunchKernel"), std::string::npos)
      << text_of(errors[1]);
  for (int rank : {0, 2}) {
    const std::string text = text_of(errors[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(text.find("PeerError"), 0U) << text;
    EXPECT_NE(text.find("cuLaunchKernel"), std::string::npos) << text;
  }
}

TEST(AllReduce, OnAClosedBufferRaises) {
  expect_no_errors(run_group(2, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(400);
    buffer.close();
    message_of<Error>([&] { all_reduce_(buffer, {.dtype = float32, .count = 1}, own.stream); });
  }));
}

TEST(AllReduce, LeavesNoDriverObjectAndNoDescriptor) {
  const auto round = [] {
    expect_no_errors(run_group(2, [](const RankOnDevice& own) {
      ParallelBuffer buffer = own.buffer(4000);
      for (int call = 0; call < 5; ++call) {
        all_reduce_(buffer, {.dtype = float32, .count = 1000}, own.stream);
      }
      buffer.close();
    }));
    reclaim_all();
  };
  round();
  const std::string before = live_text();
  const long descriptors = open_descriptors();
  for (int repeat = 0; repeat < 5; ++repeat) round();
  EXPECT_EQ(live_text(), before);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(TwoShotBlocks, GrowWithTheSizeUpToTheLimit) {
  using collectives::detail::two_shot_blocks;
  EXPECT_EQ(two_shot_blocks(4, 8, 66), 1U);
  EXPECT_EQ(two_shot_blocks(4096, 2, 66), 1U);
  EXPECT_EQ(two_shot_blocks(std::size_t{1} << 30, 2, 66), 64U);
  EXPECT_EQ(two_shot_blocks(std::size_t{1} << 30, 8, 16), 16U);
  EXPECT_EQ(two_shot_blocks(std::size_t{1} << 30, 8, 0), 1U);
  EXPECT_EQ(two_shot_blocks(std::size_t{1} << 18, 2, 66), 16U);
  EXPECT_EQ(two_shot_blocks((std::size_t{1} << 18) + 1, 2, 66), 17U);
}

}  // namespace
}  // namespace parallel_tensor::testing
