/// @file
/// Writer and Reader: plain values to bytes and back. The reader trusts nothing that it reads.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Appends values in native byte order: both ends are processes of one host.
class Writer {
 public:
  template <typename Integer>
  void integer(Integer value) {
    static_assert(std::is_integral_v<Integer>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void text(std::string_view value) {
    integer<std::uint64_t>(value.size());
    bytes_.append(value);
  }

  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  const std::string& bytes() const noexcept { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a Writer wrote; throws ExchangeError at anything else.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer integer() {
    static_assert(std::is_integral_v<Integer>);
    Integer value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string text() { return std::string(take(integer<std::uint64_t>())); }

  /// Throws when bytes are left over.
  void finish() const {
    if (!bytes_.empty()) malformed();
  }

 private:
  [[noreturn]] static void malformed() {
    throw ExchangeError(
        "a message of another rank cannot be read; do all ranks use the same version of "
        "parallel-tensor?",
        "protocol");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) malformed();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
