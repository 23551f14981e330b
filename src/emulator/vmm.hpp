/// @file
/// What the files of virtual memory management share.
#pragma once

#include "cuda_abi.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// Nothing of this size or more can be asked for.
inline constexpr size_t address_space = size_t{1} << 47;

inline bool is_host_location(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST_NUMA || type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

inline void complain_of_handle(const char* call) {
  complain(call, "the allocation handle is not live; the real driver crashes on it");
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
