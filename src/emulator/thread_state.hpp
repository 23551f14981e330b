/// @file
/// What the driver keeps for a thread: its stack of contexts and its own default streams.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "context.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

struct ThreadState {
  std::vector<std::shared_ptr<Context>> contexts;  // the last one is current
  std::map<CUcontext, std::shared_ptr<Stream>> streams;
};

/// The calling thread's state. Released when the thread ends, but not when the process does: exit
/// handlers may still call the driver.
ThreadState& thread_state();

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
