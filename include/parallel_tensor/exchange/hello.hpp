/// @file
/// Hello: what a rank says to the hub to be let in.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel_tensor/exchange/serialize.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// The operation of everything that happens before a group exists.
inline const std::string join_phase = "join";

/// What a rank says when it knocks.
struct Hello {
  std::string job;
  int rank = 0;
  int size = 0;
  pid_t pid = 0;
  std::uint64_t token = 0;

  std::string encode() const {
    Writer writer;
    writer.text(job);
    writer.integer(rank);
    writer.integer(size);
    writer.integer(pid);
    writer.integer(token);
    return writer.take();
  }

  /// @throws ExchangeError when the body is something else
  static Hello decode(std::string_view body) {
    Reader reader(body);
    Hello hello;
    hello.job = reader.text();
    hello.rank = reader.integer<int>();
    hello.size = reader.integer<int>();
    hello.pid = reader.integer<pid_t>();
    hello.token = reader.integer<std::uint64_t>();
    reader.finish();
    return hello;
  }
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
