/// @file
/// The names of reductions and of the algorithms that carry them out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// How the elements of all ranks become one.
enum class Reduction { sum, avg, min, max, prod };

/// How a collective moves its data. `automatic` chooses by size, type and machine.
enum class Algorithm { automatic, ll, one_shot, two_shot, multimem_one_shot, multimem_two_shot };

namespace detail {

inline constexpr std::string_view reduction_names[] = {"sum", "avg", "min", "max", "prod"};
inline constexpr std::string_view algorithm_names[] = {
    "auto", "ll", "one_shot", "two_shot", "multimem_one_shot", "multimem_two_shot"};

template <typename Enum, std::size_t Count>
Enum enum_from_name(const char* what, std::string_view name,
                    const std::string_view (&names)[Count]) {
  std::string known;
  for (std::size_t index = 0; index < Count; ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
    known += (known.empty() ? "" : ", ") + std::string(names[index]);
  }
  throw ArgumentError("Unknown " + std::string(what) + " \"" + std::string(name) +
                      "\"; known are " + known + ".");
}

}  // namespace detail

/// The name of a reduction: "sum".
constexpr std::string_view name_of(Reduction reduction) {
  return detail::reduction_names[static_cast<std::size_t>(reduction)];
}

/// The name of an algorithm: "two_shot", and "auto" for automatic.
constexpr std::string_view name_of(Algorithm algorithm) {
  return detail::algorithm_names[static_cast<std::size_t>(algorithm)];
}

/// The reduction of this name. @throws ArgumentError that lists the names.
inline Reduction reduction_from_name(std::string_view name) {
  return detail::enum_from_name<Reduction>("op", name, detail::reduction_names);
}

/// The algorithm of this name. @throws ArgumentError that lists the names.
inline Algorithm algorithm_from_name(std::string_view name) {
  return detail::enum_from_name<Algorithm>("algorithm", name, detail::algorithm_names);
}

}  // namespace v1
}  // namespace parallel_tensor
