/// @file
/// Element types, described as DLPack describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// An element type. The layout and the numbers of `code` are DLDataType's (dlpack.h,
/// DLDataTypeCode).
struct DType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  friend bool operator==(const DType&, const DType&) = default;

  /// Bytes of one element.
  constexpr std::size_t size() const noexcept { return (std::size_t{bits} * lanes + 7) / 8; }
};
static_assert(sizeof(DType) == 4);

namespace detail {

struct NamedDType {
  std::string_view name;
  DType dtype;
};

// Codes of dlpack.h 1.1: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 10 and 12 to 14 the
// float8 forms that torch has.
inline constexpr NamedDType named_dtypes[] = {
    {"bool", {6, 8}},
    {"uint8", {1, 8}},
    {"uint16", {1, 16}},
    {"uint32", {1, 32}},
    {"uint64", {1, 64}},
    {"int8", {0, 8}},
    {"int16", {0, 16}},
    {"int32", {0, 32}},
    {"int64", {0, 64}},
    {"float16", {2, 16}},
    {"bfloat16", {4, 16}},
    {"float32", {2, 32}},
    {"float64", {2, 64}},
    {"complex32", {5, 32}},
    {"complex64", {5, 64}},
    {"complex128", {5, 128}},
    {"float8_e4m3fn", {10, 8}},
    {"float8_e4m3fnuz", {11, 8}},
    {"float8_e5m2", {12, 8}},
    {"float8_e5m2fnuz", {13, 8}},
    {"float8_e8m0fnu", {14, 8}},
};

}  // namespace detail

/// The type of this name, as torch and numpy spell it: "bfloat16".
/// @throws ArgumentError that lists the names.
inline DType dtype_from_name(std::string_view name) {
  for (const auto& entry : detail::named_dtypes) {
    if (entry.name == name) return entry.dtype;
  }
  std::string known;
  for (const auto& entry : detail::named_dtypes) {
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw ArgumentError("Unknown dtype \"" + std::string(name) + "\"; known are " + known + ".");
}

/// The name of a type: "bfloat16". @throws ArgumentError for a type without one.
inline std::string name_of(DType dtype) {
  for (const auto& entry : detail::named_dtypes) {
    if (entry.dtype == dtype) return std::string(entry.name);
  }
  throw ArgumentError("Unknown dtype: DLPack code " + std::to_string(dtype.code) + " of " +
                      std::to_string(dtype.bits) + " bits.");
}

}  // namespace v1
}  // namespace parallel_tensor
