/// @file
/// Initial contents of device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "parallel_tensor/driver/stream.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// Repeats a pattern over device memory and waits until it is there.
/// @param bytes a multiple of the pattern's length.
inline void fill(const driver::Device& device, void* pointer, std::size_t bytes,
                 const std::string& pattern) {
  if (bytes == 0 || pattern.empty()) return;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  driver::ContextGuard guard(device);
  driver::Stream stream;
  if (pattern.find_first_not_of(pattern[0]) == std::string::npos) {
    driver::api.cuMemsetD8Async(address, static_cast<unsigned char>(pattern[0]), bytes,
                                stream.get());
  } else {
    driver::api.cuMemcpyHtoDAsync(address, pattern.data(), pattern.size(), stream.get());
    for (std::size_t filled = pattern.size(); filled < bytes;) {
      const std::size_t more = std::min(filled, bytes - filled);
      driver::api.cuMemcpyDtoDAsync(address + filled, address, more, stream.get());
      filled += more;
    }
  }
  stream.synchronize();
}

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
