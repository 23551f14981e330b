/// @file
/// What the unit tests share: the controls of the emulated driver, counts, ranks as threads.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../../src/emulator/emulator.h"
#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace parallel_tensor::testing {

/// A control of the emulated driver, by its name in emulator.h.
template <typename Pointer>
Pointer control(const char* name) {
  auto* symbol = reinterpret_cast<Pointer>(dlsym(driver::library().handle, name));
  EXPECT_NE(symbol, nullptr) << name;
  return symbol;
}

inline void fail(const char* call, CUresult code, long nth = 1, bool this_thread_only = false) {
  ASSERT_EQ(control<decltype(&pt_emulator_fail)>("pt_emulator_fail")(call, static_cast<int>(code),
                                                                     nth, this_thread_only ? 1 : 0),
            0);
}

inline void clear_faults() { control<decltype(&pt_emulator_clear)>("pt_emulator_clear")(); }

inline pt_emulator_counts live() {
  pt_emulator_counts counts{};
  EXPECT_EQ(control<decltype(&pt_emulator_live)>("pt_emulator_live")(&counts), 0);
  return counts;
}

/// Live driver objects as text, so that a difference reads well.
inline std::string live_text() {
  const pt_emulator_counts c = live();
  return "allocations " + std::to_string(c.allocations) + ", mappings " +
         std::to_string(c.mappings) + ", reservations " + std::to_string(c.reservations) +
         ", handles " + std::to_string(c.handles) + ", streams " + std::to_string(c.streams) +
         ", events " + std::to_string(c.events) + ", fds " + std::to_string(c.fds);
}

/// Open descriptors of this process.
inline long open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator{});
}

/// Releases everything that was dropped.
inline void reclaim_all() {
  EXPECT_EQ(memory::Reclaimer::instance().collect(std::chrono::seconds(10)), 0U);
}

/// Runs a function as ranks 0 to n - 1, each on a thread of its own.
inline void run_ranks(int n, const std::function<void(int)>& function) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(function, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace parallel_tensor::testing
