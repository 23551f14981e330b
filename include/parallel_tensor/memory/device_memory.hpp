/// @file
/// Plain device memory, as cudaMalloc gives it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <utility>

#include "parallel_tensor/driver/device.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// Owns memory of cuMemAlloc; peers reach it through a legacy IPC handle.
class DeviceMemory {
 public:
  /// @throws OutOfMemoryError, DriverError.
  DeviceMemory(const driver::Device& device, std::size_t bytes) : device_(device) {
    driver::ContextGuard guard(device);
    driver::check(driver::api.cuMemAlloc.result(&pointer_, bytes), "cuMemAlloc",
                  std::to_string(bytes) + " bytes on device " + std::to_string(device.ordinal()));
  }
  ~DeviceMemory() {
    if (pointer_) driver::api.cuMemFree.result(pointer_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), pointer_(std::exchange(other.pointer_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  DeviceMemory(const DeviceMemory&) = delete;

  void* pointer() const noexcept { return reinterpret_cast<void*>(pointer_); }

 private:
  driver::Device device_;
  CUdeviceptr pointer_ = 0;
};

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
