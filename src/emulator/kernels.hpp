/// @file
/// Kernels, found by name, and their host functions.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "context.hpp"
#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

inline constexpr unsigned int threads_per_block_limit = 1024;

/// A name's host function; the newest one counts at each launch.
struct HostFunction {
  std::atomic<pt_emulator_kernel> function{nullptr};
};

/// A kernel of a loaded library.
struct Kernel {
  CUlibrary library = nullptr;
  std::shared_ptr<HostFunction> host_function;
  std::mutex mutex;  // guards functions
  std::map<CUcontext, CUfunction> functions;
};

/// Gives a kernel its host function; false for a null or empty argument. Thread-safe.
bool register_kernel(const char* name, pt_emulator_kernel function);

/// The kernel that a function handle means, or a kernel handle in its place. Null for an unknown
/// handle, and for a function of another context than `context` where that is given.
std::shared_ptr<Kernel> find_kernel(CUfunction handle, const Context* context = nullptr);

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
