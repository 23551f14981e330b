// Ranks as threads on the emulated driver, each with a group, a device and a stream of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../support.hpp"
#include "parallel_tensor/collectives/all_reduce.hpp"
#include "parallel_tensor/driver/stream.hpp"
#include "parallel_tensor/exchange/group.hpp"

namespace parallel_tensor::testing {

/// What a rank's thread works with.
struct RankOnDevice {
  std::shared_ptr<Group> group;
  driver::Device device;
  CUstream stream;

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }

  ParallelBuffer buffer(std::size_t bytes) const {
    return ParallelBuffer::create(group, bytes, {.device = device.ordinal()});
  }
};

/// Runs `body` as `size` ranks of a new group. What a rank throws breaks its group, as in a real
/// program, and is returned in its place; every wait is bounded by `timeout`.
inline std::vector<std::exception_ptr> run_group(
    int size, const std::function<void(const RankOnDevice&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  static std::atomic<int> groups{0};
  const std::string name =
      "test-collectives-" + std::to_string(getpid()) + "-" + std::to_string(++groups);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    std::shared_ptr<Group> group;
    try {
      group = Group::join(rank, size, name, timeout);
      const auto device = driver::Device::at(rank % driver::Device::count());
      driver::ContextGuard guard(device);
      driver::Stream stream;
      body({group, device, stream.get()});
      group->barrier();
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      if (group) group->fail(std::current_exception());
    }
    if (group) group->close();
  });
  return errors;
}

inline std::string text_of(const std::exception_ptr& error) {
  const Status status = Status::of(error);
  return status.ok() ? "" : status.kind + ": " + status.message;
}

inline void expect_no_errors(const std::vector<std::exception_ptr>& errors) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(text_of(errors[rank]), "") << "rank " << rank;
  }
}

/// Runs a function that must throw E; gives its message.
template <typename E, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  } catch (...) {
    ADD_FAILURE() << "another error: " << text_of(std::current_exception());
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline constexpr DType float32{2, 32};
inline constexpr DType bfloat16{4, 16};

}  // namespace parallel_tensor::testing
