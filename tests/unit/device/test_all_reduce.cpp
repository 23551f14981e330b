#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "parallel_tensor/device/all_reduce.cuh"
#include "rank_threads.hpp"

namespace {

using namespace parallel_tensor::device;
using parallel_tensor::run_time_size;

template <typename Element>
float value_of(Element element) {
  return ElementTraits<Element>::to_float(element);
}

// The unit roundoff of a type.
template <typename Element>
constexpr double epsilon = sizeof(Element) == 4 ? 0x1p-24 : 0x1p-8;

// The memory of each rank: `count` random elements between guard bytes that must survive.
template <typename Element>
struct Operands {
  static constexpr std::size_t guard = 64;

  Operands(int size, std::size_t elements_each, std::vector<std::size_t> byte_offsets,
           unsigned int seed)
      : count(elements_each), offsets(std::move(byte_offsets)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    for (int rank = 0; rank < size; ++rank) {
      const std::size_t bytes = this->bytes(rank);
      memory.emplace_back(bytes);
      std::memset(memory.back().get(), 0x5a, bytes);
      for (std::size_t index = 0; index < count; ++index) {
        elements(rank)[index] = ElementTraits<Element>::from_float(uniform(random));
      }
    }
    for (std::size_t index = 0; index < count; ++index) {
      double sum = 0, magnitude = 0;
      for (int rank = 0; rank < size; ++rank) {
        sum += value_of(elements(rank)[index]);
        magnitude += std::fabs(value_of(elements(rank)[index]));
      }
      sums.push_back(sum);
      magnitudes.push_back(magnitude);
    }
  }

  std::size_t bytes(int rank) const {
    return guard + offsets[static_cast<std::size_t>(rank)] + count * sizeof(Element) + guard;
  }
  Element* elements(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return reinterpret_cast<Element*>(memory[index].get() + guard + offsets[index]);
  }

  void expect_reduced() const {
    const int size = static_cast<int>(memory.size());
    for (std::size_t index = 0; index < count; ++index) {
      const double error = std::fabs(value_of(elements(0)[index]) - sums[index]);
      // Partial sums are rounded in float, the result once in its own type.
      const double bound =
          size * 0x1p-24 * magnitudes[index] +
          epsilon<Element> * (std::fabs(sums[index]) + magnitudes[index] * 0x1p-20);
      ASSERT_LE(error, bound) << "element " << index << " of " << count;
    }
    for (int rank = 1; rank < size; ++rank) {
      ASSERT_EQ(std::memcmp(elements(0), elements(rank), count * sizeof(Element)), 0)
          << "rank " << rank << ", " << count << " elements";
    }
    for (int rank = 0; rank < size; ++rank) {
      const std::byte* first = memory[static_cast<std::size_t>(rank)].get();
      const std::byte* begin = reinterpret_cast<const std::byte*>(elements(rank));
      const std::byte* end = begin + count * sizeof(Element);
      for (const std::byte* byte = first; byte < first + bytes(rank); ++byte) {
        if (byte < begin || byte >= end) {
          ASSERT_EQ(*byte, std::byte{0x5a}) << "rank " << rank << " wrote outside its elements";
        }
      }
    }
  }

  std::size_t count;
  std::vector<std::size_t> offsets;
  std::vector<test::AlignedBytes> memory;
  std::vector<double> sums;
  std::vector<double> magnitudes;
};

template <typename Element, int N>
void launch(test::Ranks& ranks, const Operands<Element>& operands, int rank, unsigned int blocks) {
  AllReduceArguments<N> arguments{};
  arguments.workspace = ranks.view<N>(rank);
  arguments.buffer = arguments.workspace;
  for (int peer = 0; peer < ranks.size(); ++peer) {
    arguments.buffer.pointers[peer] = reinterpret_cast<std::byte*>(operands.elements(peer));
  }
  arguments.count = operands.count;
  arguments.limits = ranks.limits(rank);
  for (unsigned int block = 0; block < blocks; ++block) {
    all_reduce_two_shot<HostBlock, Element, N>(HostBlock{block, blocks}, arguments);
  }
}

template <typename Element, int N>
void reduce_and_check(test::Ranks& ranks, std::size_t count,
                      const std::vector<std::size_t>& offsets, unsigned int blocks,
                      unsigned int seed) {
  Operands<Element> operands(ranks.size(), count, offsets, seed);
  ranks.run([&](int rank) { launch<Element, N>(ranks, operands, rank, blocks); });
  for (int rank = 0; rank < ranks.size(); ++rank) ASSERT_EQ(ranks.state(rank), WaitState::none);
  operands.expect_reduced();
}

template <typename Element, int N>
void reduce_many(int size) {
  std::mt19937 random(static_cast<unsigned int>(size));
  test::Ranks ranks(size);
  std::vector<std::size_t> counts{0,  1,  2,  3,  7,  8,    9,    15,    16,
                                  17, 31, 63, 64, 65, 1000, 4096, 100000};
  for (int extra = 0; extra < 6; ++extra) counts.push_back(random() % 100001);
  for (std::size_t count : counts) {
    SCOPED_TRACE(count);
    const auto ranks_count = static_cast<std::size_t>(size);
    const std::vector<std::size_t> aligned(ranks_count, 0);
    const std::vector<std::size_t> shifted(ranks_count,
                                           random() % 16 / sizeof(Element) * sizeof(Element));
    std::vector<std::size_t> different(ranks_count);
    for (auto& offset : different) offset = random() % 16 / sizeof(Element) * sizeof(Element);
    const unsigned int blocks = random() % 5 + 1;
    reduce_and_check<Element, N>(ranks, count, aligned, blocks, static_cast<unsigned int>(count));
    reduce_and_check<Element, N>(ranks, count, shifted, blocks,
                                 static_cast<unsigned int>(count) + 1);
    reduce_and_check<Element, N>(ranks, count, different, blocks,
                                 static_cast<unsigned int>(count) + 2);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(AllReduceTwoShot, SumsFloat32) {
  reduce_many<float, 2>(2);
  reduce_many<float, 4>(4);
  reduce_many<float, 8>(8);
}

TEST(AllReduceTwoShot, SumsBFloat16) {
  reduce_many<BFloat16, 2>(2);
  reduce_many<BFloat16, 4>(4);
  reduce_many<BFloat16, 8>(8);
}

TEST(AllReduceTwoShot, SumsWithANumberOfRanksKnownAtRunTime) {
  reduce_many<float, run_time_size>(1);
  reduce_many<BFloat16, run_time_size>(3);
  reduce_many<float, run_time_size>(6);
}

TEST(AllReduceTwoShot, SumsOver72Ranks) {
  test::Ranks ranks(72);
  for (std::size_t count : {1, 71, 73, 5000}) {
    reduce_and_check<float, run_time_size>(ranks, count, std::vector<std::size_t>(72, 0), 1, 5);
  }
}

// Calls follow each other without a pause, so that a rank may run ahead into the next one.
TEST(AllReduceTwoShot, BackToBackCallsDoNotMix) {
  constexpr int size = 4, calls = 100;
  test::Ranks ranks(size);
  ranks.begin_at(Channel::all_reduce, 0xffffffffU - 99);
  const std::vector<std::size_t> offsets(size, 4);
  std::vector<Operands<float>> operands;
  std::mt19937 random(1);
  for (int call = 0; call < calls; ++call) {
    operands.emplace_back(size, random() % 3000, offsets, random());
  }
  ranks.run([&](int rank) {
    for (const auto& operand : operands) launch<float, size>(ranks, operand, rank, 3);
  });
  for (const auto& operand : operands) operand.expect_reduced();
  EXPECT_EQ(ranks.word(2, epoch_offset(Channel::all_reduce, 2)), 0xffffffffU - 99 + 2 * calls);
}

// Ranks write their elements before, and read the sums after, with nothing but the operation
// between: a missing release or acquire is a race that ThreadSanitizer reports.
TEST(AllReduceTwoShot, OrdersWritesBeforeAndReadsAfterIt) {
  constexpr int size = 3;
  test::Ranks ranks(size);
  const Operands<float> operands(size, 100, std::vector<std::size_t>(size, 0), 3);
  std::atomic<int> wrong{0};
  ranks.run([&](int rank) {
    float* own = operands.elements(rank);
    for (int round = 0; round < 200; ++round) {
      for (std::size_t index = 0; index < operands.count; ++index) {
        own[index] = static_cast<float>((rank + 1) * round);
      }
      launch<float, run_time_size>(ranks, operands, rank, 2);
      for (std::size_t index = 0; index < operands.count; ++index) {
        wrong += own[index] != static_cast<float>(6 * round);
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(AllReduceTwoShot, AMissingRankChangesNobodysMemory) {
  test::Ranks ranks(4, std::chrono::milliseconds(100));
  const Operands<float> operands(4, 1000, std::vector<std::size_t>(4, 0), 9);
  const Operands<float> untouched(4, 1000, std::vector<std::size_t>(4, 0), 9);
  ranks.run([&](int rank) {
    if (rank != 3) launch<float, 4>(ranks, operands, rank, 8);
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.state(rank), WaitState::timed_out);
    EXPECT_EQ(ranks.status(rank).peer, 3);
    EXPECT_EQ(ranks.status(rank).channel, static_cast<std::uint32_t>(Channel::all_reduce));
    EXPECT_EQ(std::memcmp(operands.elements(rank), untouched.elements(rank), 4000), 0);
  }
}

TEST(AllReduceTwoShot, CarriesInfinityAndNaN) {
  test::Ranks ranks(2);
  Operands<BFloat16> operands(2, 16, {0, 0}, 1);
  operands.elements(0)[0] = BFloat16{0x7f80};                            // +inf
  operands.elements(1)[1] = BFloat16{0xff80};                            // -inf
  operands.elements(0)[2] = BFloat16{0x7fc0};                            // NaN
  operands.elements(0)[3] = operands.elements(1)[3] = BFloat16{0x7f7f};  // the largest: overflows
  ranks.run([&](int rank) { launch<BFloat16, 2>(ranks, operands, rank, 1); });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(operands.elements(rank)[0].bits, 0x7f80);
    EXPECT_EQ(operands.elements(rank)[1].bits, 0xff80);
    EXPECT_TRUE(std::isnan(value_of(operands.elements(rank)[2])));
    EXPECT_EQ(operands.elements(rank)[3].bits, 0x7f80);
  }
}

TEST(Shard, CoversEveryElementOnce) {
  for (int size : {1, 2, 3, 4, 7, 8, 72}) {
    for (std::uint64_t count : {0, 1, 3, 4, 5, 31, 32, 33, 575, 576, 577, 100000}) {
      std::uint64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Shard shard = shard_of<BFloat16>(count, rank, size);
        EXPECT_EQ(shard.begin, next);
        EXPECT_GE(shard.end, shard.begin);
        EXPECT_TRUE(shard.begin % 8 == 0 || shard.begin == count);
        next = shard.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
