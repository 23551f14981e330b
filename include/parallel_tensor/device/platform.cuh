/// @file
/// Where a protocol runs. Each protocol is a template over one of these two types and is otherwise
/// the same text: `GpuBlock` is a thread of a block of a kernel; `HostBlock` is a host thread that
/// stands for a whole block and so is thread 0 of 1.
///
/// A platform answers `thread()` of `threads()` and `block()` of `blocks()`; `sync()` is the
/// block's barrier; `all(ok)` is that barrier and true when every thread of the block said true;
/// `now_ns()` is a clock; `pause(turns)` is called between two looks at a word that did not yet
/// hold what is waited for.
#pragma once

#include <cstdint>

#include "parallel_tensor/device/qualifiers.cuh"

#if !defined(__CUDACC__)
#include <chrono>
#include <thread>
#endif

namespace parallel_tensor {
inline namespace v1 {
namespace device {

#if defined(__CUDACC__)

/// This thread of this block of a one-dimensional launch.
struct GpuBlock {
  PARALLEL_TENSOR_DEVICE static unsigned int thread() { return threadIdx.x; }
  PARALLEL_TENSOR_DEVICE static unsigned int threads() { return blockDim.x; }
  PARALLEL_TENSOR_DEVICE static unsigned int block() { return blockIdx.x; }
  PARALLEL_TENSOR_DEVICE static unsigned int blocks() { return gridDim.x; }
  PARALLEL_TENSOR_DEVICE static void sync() { __syncthreads(); }
  PARALLEL_TENSOR_DEVICE static bool all(bool ok) { return __syncthreads_and(ok) != 0; }
  PARALLEL_TENSOR_DEVICE static void pause(std::uint32_t) {}
  PARALLEL_TENSOR_DEVICE static std::uint64_t now_ns() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  }
  /// How many turns pass between two looks at the clock and the abort word, which lies across the
  /// bus.
  static constexpr std::uint32_t turns_between_checks = 256;
};

#else

/// A host thread that stands for one block.
struct HostBlock {
  unsigned int block_index;
  unsigned int block_count;

  static unsigned int thread() { return 0; }
  static unsigned int threads() { return 1; }
  unsigned int block() const { return block_index; }
  unsigned int blocks() const { return block_count; }
  static void sync() {}
  static bool all(bool ok) { return ok; }
  static void pause(std::uint32_t turns) {
    // Peers need this core: first give way, and in a long wait leave it to them.
    if (turns < 1024) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  static constexpr std::uint32_t turns_between_checks = 16;
};

#endif

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
