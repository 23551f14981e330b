/// @file
/// Counts of what is alive, and PARALLEL_TENSOR_EMULATED_LEAKS=report|fatal: what is alive when the
/// process ends.
#pragma once

#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

pt_emulator_counts live_counts();

/// Reads the variable; called by every successful cuInit, acts once.
void arrange_exit_report();

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
