#include <gtest/gtest.h>

#include <cmath>

#include "parallel_tensor/device/element.cuh"

namespace {

using namespace parallel_tensor::device;

TEST(BFloat16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const float wide = ElementTraits<BFloat16>::to_float(value);
    const BFloat16 back = round_to_bfloat16(wide);
    if (std::isnan(wide)) {
      EXPECT_EQ(back.bits, 0x7fff);
    } else {
      EXPECT_EQ(back.bits, value.bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestWithTiesToEven) {
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x3f808000)).bits, 0x3f80);  // a tie, even below
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x3f818000)).bits, 0x3f82);  // a tie, even above
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x3f808001)).bits, 0x3f81);
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x3f807fff)).bits, 0x3f80);
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x7f7fffff)).bits, 0x7f80);  // overflows to infinity
  EXPECT_EQ(round_to_bfloat16(float_of_bits(0x80000001)).bits, 0x8000);
}

TEST(BFloat16, TwoShareAWordTheFirstInTheLowBits) {
  const float values[] = {1.0F, -2.0F};
  const std::uint32_t word = ElementTraits<BFloat16>::pack(values);
  EXPECT_EQ(word, 0xc0003f80U);
  float back[2];
  ElementTraits<BFloat16>::unpack(word, back);
  EXPECT_EQ(back[0], 1.0F);
  EXPECT_EQ(back[1], -2.0F);
}

}  // namespace
