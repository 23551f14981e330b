/// @file
/// The element types that kernels compute with: how they lie in a 32-bit word and how they become
/// float, in which every sum is accumulated.
#pragma once

#include <cstdint>

#include "parallel_tensor/device/qualifiers.cuh"

#if !defined(__CUDACC__)
#include <cstring>
#endif

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// A bfloat16 by its bits: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};

/// The float with these bits.
PARALLEL_TENSOR_DEVICE float float_of_bits(std::uint32_t bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

/// The bits of a float.
PARALLEL_TENSOR_DEVICE std::uint32_t bits_of_float(float value) {
#if defined(__CUDACC__)
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

/// Rounds to the nearest bfloat16, ties to even; a NaN becomes 0x7fff, as the hardware has it.
PARALLEL_TENSOR_DEVICE BFloat16 round_to_bfloat16(float value) {
#if defined(__CUDACC__)
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return BFloat16{bits};
#else
  const std::uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return BFloat16{0x7fffU};
  }
  return BFloat16{static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
#endif
}

/// How an element type is read and written. `per_word` elements share a word, the first in its low
/// bits.
template <typename Element>
struct ElementTraits;

template <>
struct ElementTraits<float> {
  static constexpr int per_word = 1;
  PARALLEL_TENSOR_DEVICE static float to_float(float value) { return value; }
  PARALLEL_TENSOR_DEVICE static float from_float(float value) { return value; }
  PARALLEL_TENSOR_DEVICE static void unpack(std::uint32_t word, float* values) {
    values[0] = float_of_bits(word);
  }
  PARALLEL_TENSOR_DEVICE static std::uint32_t pack(const float* values) {
    return bits_of_float(values[0]);
  }
};

template <>
struct ElementTraits<BFloat16> {
  static constexpr int per_word = 2;
  PARALLEL_TENSOR_DEVICE static float to_float(BFloat16 value) {
    return float_of_bits(static_cast<std::uint32_t>(value.bits) << 16);
  }
  PARALLEL_TENSOR_DEVICE static BFloat16 from_float(float value) {
    return round_to_bfloat16(value);
  }
  PARALLEL_TENSOR_DEVICE static void unpack(std::uint32_t word, float* values) {
    values[0] = float_of_bits(word << 16);
    values[1] = float_of_bits(word & 0xffff0000U);
  }
  PARALLEL_TENSOR_DEVICE static std::uint32_t pack(const float* values) {
#if defined(__CUDACC__)
    std::uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
    return word;
#else
    return static_cast<std::uint32_t>(round_to_bfloat16(values[0]).bits) |
           static_cast<std::uint32_t>(round_to_bfloat16(values[1]).bits) << 16;
#endif
  }
};

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
