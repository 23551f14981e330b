/// @file
/// Host memory that kernels can read and write.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "parallel_tensor/driver/device.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// Owns page-locked host memory, zeroed, at the same address for host and devices (unified
/// addressing; measured).
class HostMemory {
 public:
  HostMemory(const driver::Device& device, std::size_t bytes) {
    driver::ContextGuard guard(device);
    driver::check(driver::api.cuMemHostAlloc.result(
                      &pointer_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                  "cuMemHostAlloc", std::to_string(bytes) + " bytes");
    std::memset(pointer_, 0, bytes);
  }
  ~HostMemory() {
    if (pointer_) driver::api.cuMemFreeHost.result(pointer_);
  }
  HostMemory(HostMemory&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  HostMemory& operator=(HostMemory&&) = delete;
  HostMemory(const HostMemory&) = delete;

  void* pointer() const noexcept { return pointer_; }

 private:
  void* pointer_ = nullptr;
};

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
