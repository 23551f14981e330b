/// @file
/// A range of device addresses.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <utility>

#include "parallel_tensor/driver/table.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// Owns a range of device addresses in which nothing is mapped yet.
class Reservation {
 public:
  /// @param bytes a multiple of the granularity. @throws OutOfMemoryError, DriverError.
  explicit Reservation(std::size_t bytes) : bytes_(bytes) {
    driver::check(driver::api.cuMemAddressReserve.result(&address_, bytes, 0, 0, 0),
                  "cuMemAddressReserve", std::to_string(bytes) + " bytes");
  }
  ~Reservation() {
    if (address_) driver::api.cuMemAddressFree.result(address_, bytes_);
  }
  Reservation(Reservation&& other) noexcept
      : address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&&) = delete;
  Reservation(const Reservation&) = delete;

  CUdeviceptr address() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
