#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "../support.hpp"
#include "parallel_tensor/driver/kernel_library.hpp"
#include "parallel_tensor/driver/stream.hpp"
#include "parallel_tensor/memory/mapping.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace parallel_tensor::testing {
namespace {

using memory::Reclaimer;

std::shared_ptr<memory::Mapping> new_memory(const driver::Device& device) {
  driver::ContextGuard guard(device);
  const std::size_t bytes = memory::allocation_granularity(device);
  return memory::reclaimed(memory::Mapping(memory::Allocation::create(device, bytes), device),
                           device);
}

TEST(Reclaimer, FreesAtTheNextCollectionAndNotBefore) {
  reclaim_all();
  const std::string before = live_text();
  auto memory = new_memory(driver::Device::at(0));
  const std::string with_memory = live_text();
  EXPECT_NE(with_memory, before);
  memory.reset();
  EXPECT_EQ(live_text(), with_memory);
  EXPECT_EQ(Reclaimer::instance().waiting(), 1U);
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(Reclaimer, TakesDropsFromThreadsWithoutAContext) {
  reclaim_all();
  const std::string before = live_text();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [memory = new_memory(driver::Device::at(i % 2))]() mutable { memory.reset(); });
  }
  for (auto& thread : threads) thread.join();
  threads.clear();
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

std::atomic<bool> finish_kernel{false};

void wait_for_the_test(const pt_emulator_launch*) {
  while (!finish_kernel) std::this_thread::yield();
}

TEST(Reclaimer, KeepsMemoryWhileAnyStreamOfTheContextIsBusy) {
  reclaim_all();
  const auto device = driver::Device::at(0);
  driver::ContextGuard guard(device);
  ASSERT_EQ(control<decltype(&pt_emulator_register_kernel)>("pt_emulator_register_kernel")(
                "wait_for_the_test", &wait_for_the_test),
            0);
  const driver::KernelLibrary library("image");
  const driver::Stream stream;
  const std::string before = live_text();
  auto memory = new_memory(device);
  finish_kernel = false;
  driver::launch(library.kernel("wait_for_the_test"), {}, stream.get(), 0);
  memory.reset();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Reclaimer::instance().collect(std::chrono::milliseconds(20)), 1U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  finish_kernel = true;
  stream.synchronize();
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(Reclaimer, TriesAgainWhenTheEventCannotBeRecorded) {
  reclaim_all();
  const std::string before = live_text();
  new_memory(driver::Device::at(0)).reset();
  fail("cuCtxRecordEvent", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(Reclaimer::instance().collect(), 1U);
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(Reclaimer, LosesNothingUnderDropsAndCollectionsOfManyThreads) {
  reclaim_all();
  const std::string before = live_text();
  run_ranks(4, [](int rank) {
    for (int i = 0; i < 50; ++i) {
      new_memory(driver::Device::at(rank % 2)).reset();
      Reclaimer::instance().collect();
    }
  });
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(Reclaimer, MayBeUsedByWhatItReleases) {
  struct Nested {
    std::shared_ptr<memory::Mapping> inner;
    ~Nested() {
      inner.reset();
      Reclaimer::instance().collect();
    }
    Nested(std::shared_ptr<memory::Mapping> memory) : inner(std::move(memory)) {}
    Nested(Nested&&) = default;
  };
  reclaim_all();
  const auto device = driver::Device::at(0);
  const std::string before = live_text();
  memory::reclaimed(Nested(new_memory(device)), device).reset();
  auto done = std::async(std::launch::async, [] { reclaim_all(); });
  ASSERT_EQ(done.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(live_text(), before);
}

}  // namespace
}  // namespace parallel_tensor::testing
