/// @file
/// CUDA_VISIBLE_DEVICES as the real driver reads it.
#pragma once

#include <string>
#include <vector>

#include "cuda_abi.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// The UUID of a physical device of the emulated machine: the same in every process.
CUuuid device_uuid(int physical_index);

/// "GPU-01234567-89ab-cdef-0123-456789abcdef"
std::string uuid_text(const CUuuid& uuid);

/// The physical indices that are visible, in order.
/// @param variable the value of CUDA_VISIBLE_DEVICES, null when it is not set.
/// The list ends before the first entry that names no device, two devices, or one that is listed
/// already.
std::vector<int> visible_devices(const char* variable, int physical_count);

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
