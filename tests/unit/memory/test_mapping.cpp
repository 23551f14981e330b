#include <gtest/gtest.h>

#include <cstring>

#include "../support.hpp"
#include "parallel_tensor/memory/device_memory.hpp"
#include "parallel_tensor/memory/fill.hpp"
#include "parallel_tensor/memory/mapping.hpp"
#include "parallel_tensor/memory/pointer_info.hpp"

namespace parallel_tensor::testing {
namespace {

memory::Mapping map_new(const driver::Device& device, std::size_t bytes) {
  driver::ContextGuard guard(device);
  return memory::Mapping(memory::Allocation::create(device, bytes), device);
}

TEST(Mapping, OfAnImportedDescriptorSharesTheBytes) {
  const auto device = driver::Device::at(0);
  const std::size_t bytes = memory::allocation_granularity(device);
  const memory::Mapping own = map_new(device, bytes);
  auto descriptor = own.allocation().export_descriptor();
  const memory::Mapping again(memory::Allocation::import(descriptor, bytes), driver::Device::at(1));
  EXPECT_NE(own.pointer(), again.pointer());
  std::memset(own.pointer(), 7, 100);
  EXPECT_EQ(static_cast<char*>(again.pointer())[99], 7);
}

TEST(Mapping, MovesWithoutUnmapping) {
  const auto device = driver::Device::at(0);
  memory::Mapping first = map_new(device, memory::allocation_granularity(device));
  void* pointer = first.pointer();
  const memory::Mapping second = std::move(first);
  EXPECT_EQ(second.pointer(), pointer);
  std::memset(pointer, 1, 1);
}

TEST(Mapping, ThatFailsAtAnyCallLeavesNothingBehind) {
  const auto device = driver::Device::at(0);
  const std::size_t bytes = memory::allocation_granularity(device);
  const std::string before = live_text();
  for (const char* call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    fail(call, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THROW(map_new(device, bytes), DriverError) << call;
    EXPECT_EQ(live_text(), before) << call;
  }
  clear_faults();
  { const memory::Mapping works = map_new(device, bytes); }
  EXPECT_EQ(live_text(), before);
}

TEST(Allocation, RoundsUpAndRefusesWhatDoesNotFitAnAddress) {
  EXPECT_EQ(memory::round_up(0, 64), 0U);
  EXPECT_EQ(memory::round_up(1, 64), 64U);
  EXPECT_EQ(memory::round_up(64, 64), 64U);
  EXPECT_THROW(memory::round_up(SIZE_MAX - 1, 64), ArgumentError);
}

TEST(Fill, RepeatsAPatternOfAnyLength) {
  const auto device = driver::Device::at(0);
  const memory::Mapping mapping = map_new(device, memory::allocation_granularity(device));
  const auto* bytes = static_cast<const unsigned char*>(mapping.pointer());
  for (const std::string& pattern : {std::string("\0", 1), std::string("ab"),
                                     std::string("abcdefgh"), std::string("0123456789abcdef")}) {
    const std::size_t length = 1000 * pattern.size();
    memory::fill(device, mapping.pointer(), length, pattern);
    for (std::size_t i = 0; i < length; ++i) {
      ASSERT_EQ(bytes[i], static_cast<unsigned char>(pattern[i % pattern.size()])) << i;
    }
  }
}

TEST(PointerInfo, TellsHowMemoryCanBeShared) {
  const auto device = driver::Device::at(1);
  driver::ContextGuard guard(device);
  const memory::DeviceMemory plain(device, 4 << 20);
  auto info = memory::pointer_info(static_cast<char*>(plain.pointer()) + 4096, 100);
  EXPECT_EQ(info.flavor, memory::Flavor::legacy);
  EXPECT_EQ(info.offset, 4096U);
  EXPECT_EQ(info.ordinal, 1);

  const memory::Mapping mapping = map_new(device, memory::allocation_granularity(device));
  info = memory::pointer_info(static_cast<char*>(mapping.pointer()) + 8, 100);
  EXPECT_EQ(info.flavor, memory::Flavor::descriptor);
  EXPECT_EQ(info.offset, 8U);
  EXPECT_EQ(info.range, mapping.bytes());
}

TEST(PointerInfo, RefusesHostMemoryAndRangesThatRunOverTheEnd) {
  const auto device = driver::Device::at(0);
  driver::ContextGuard guard(device);
  int on_the_stack = 0;
  EXPECT_THROW(memory::pointer_info(&on_the_stack, 4), ArgumentError);
  const memory::DeviceMemory plain(device, 1000);
  EXPECT_THROW(memory::pointer_info(plain.pointer(), 4 << 20), NotSupportedError);
}

}  // namespace
}  // namespace parallel_tensor::testing
