/// @file
/// Physical device memory of the driver's virtual memory management.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

namespace detail {

inline CUmemAllocationProp shareable_properties(const driver::Device& device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace detail

/// The multiple in bytes that sizes of physical memory on this device must be of.
inline std::size_t allocation_granularity(const driver::Device& device) {
  const CUmemAllocationProp properties = detail::shareable_properties(device);
  std::size_t granularity = 0;
  driver::check(driver::api.cuMemGetAllocationGranularity.result(
                    &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "cuMemGetAllocationGranularity", "device " + std::to_string(device.ordinal()));
  return granularity;
}

/// `bytes` rounded up to a multiple of `granularity`. @throws ArgumentError when that overflows.
inline std::size_t round_up(std::size_t bytes, std::size_t granularity) {
  if (bytes > SIZE_MAX - granularity) {
    throw ArgumentError(std::to_string(bytes) + " bytes are more than an address can count.");
  }
  return (bytes + granularity - 1) / granularity * granularity;
}

/// Owns one handle to physical memory. The memory itself lives as long as any handle, mapping or
/// exported descriptor of it, in any process.
class Allocation {
 public:
  /// New memory on a device that other processes can map.
  /// @param bytes a multiple of allocation_granularity(device).
  /// @throws OutOfMemoryError, DriverError.
  static Allocation create(const driver::Device& device, std::size_t bytes) {
    const CUmemAllocationProp properties = detail::shareable_properties(device);
    CUmemGenericAllocationHandle handle = 0;
    driver::check(driver::api.cuMemCreate.result(&handle, bytes, &properties, 0), "cuMemCreate",
                  std::to_string(bytes) + " bytes on device " + std::to_string(device.ordinal()));
    return Allocation(handle, bytes);
  }

  /// Memory that another rank exported. The descriptor stays the caller's.
  static Allocation import(const posix::Descriptor& descriptor, std::size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    driver::check(
        driver::api.cuMemImportFromShareableHandle.result(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle", std::to_string(bytes) + " bytes");
    return Allocation(handle, bytes);
  }

  /// One more handle to the memory that is mapped at an address, whoever mapped it.
  static Allocation retain(const void* mapped, std::size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    driver::api.cuMemRetainAllocationHandle(&handle, const_cast<void*>(mapped));
    return Allocation(handle, bytes);
  }

  /// A descriptor that a peer process can import; while it is open the memory stays taken.
  posix::Descriptor export_descriptor() const {
    int descriptor = -1;
    driver::check(driver::api.cuMemExportToShareableHandle.result(
                      &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  "cuMemExportToShareableHandle", std::to_string(bytes_) + " bytes");
    return posix::Descriptor(descriptor);
  }

  ~Allocation() {
    if (handle_) driver::api.cuMemRelease.result(handle_);
  }
  Allocation(Allocation&& other) noexcept
      : handle_(std::exchange(other.handle_, 0)), bytes_(other.bytes_) {}
  Allocation& operator=(Allocation&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Allocation(const Allocation&) = delete;

  CUmemGenericAllocationHandle handle() const noexcept { return handle_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Allocation(CUmemGenericAllocationHandle handle, std::size_t bytes)
      : handle_(handle), bytes_(bytes) {}

  CUmemGenericAllocationHandle handle_;
  std::size_t bytes_;
};

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
