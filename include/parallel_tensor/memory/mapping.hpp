/// @file
/// Physical memory mapped at addresses, accessible to one device.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/memory/allocation.hpp"
#include "parallel_tensor/memory/reservation.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// Owns a mapping of a whole allocation, and with it the allocation and a share of the addresses,
/// so that they go in the right order.
class Mapping {
 public:
  /// Maps allocations one after the other at new addresses, readable and writable by `accessor`.
  /// One call gives access to all of them: for several that is faster than a call for each.
  /// A failure releases what had been done, the allocations too.
  /// @param describe says what the allocation at an index is, for the errors.
  /// @return one mapping per allocation, in their order.
  /// @throws OutOfMemoryError, DriverError.
  static std::vector<Mapping> map(std::vector<Allocation> allocations,
                                  const driver::Device& accessor,
                                  const std::function<std::string(std::size_t)>& describe) {
    std::vector<Mapping> mappings;
    if (allocations.empty()) return mappings;
    std::size_t bytes = 0;
    for (const Allocation& allocation : allocations) bytes += allocation.bytes();
    const auto reservation = std::make_shared<const Reservation>(bytes);
    mappings.reserve(allocations.size());
    CUdeviceptr address = reservation->address();
    for (std::size_t i = 0; i < allocations.size(); ++i) {
      const std::size_t size = allocations[i].bytes();
      driver::check(driver::api.cuMemMap.result(address, size, 0, allocations[i].handle(), 0),
                    "cuMemMap", describe(i));
      mappings.push_back(Mapping(reservation, address, std::move(allocations[i])));
      address += size;
    }
    if (const CUresult code = give_access(reservation->address(), bytes, accessor)) {
      // Which one it is can only be found by asking for each alone.
      for (std::size_t i = 0; i < mappings.size(); ++i) {
        driver::check(give_access(mappings[i].address_, mappings[i].bytes(), accessor),
                      "cuMemSetAccess", describe(i));
      }
      driver::check(code, "cuMemSetAccess",
                    std::to_string(bytes) + " bytes for device " +
                        std::to_string(accessor.ordinal()) + ", " + accessor.uuid().text());
    }
    return mappings;
  }

  /// Maps one allocation.
  Mapping(Allocation allocation, const driver::Device& accessor)
      : Mapping(std::move(map(one(std::move(allocation)), accessor, [&](std::size_t) {
                            return "for device " + std::to_string(accessor.ordinal());
                          }).front())) {}

  ~Mapping() {
    if (address_) driver::api.cuMemUnmap.result(address_, allocation_.bytes());
  }
  Mapping(Mapping&& other) noexcept
      : reservation_(std::move(other.reservation_)),
        address_(std::exchange(other.address_, 0)),
        allocation_(std::move(other.allocation_)) {}
  Mapping& operator=(Mapping&&) = delete;
  Mapping(const Mapping&) = delete;

  void* pointer() const noexcept { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const noexcept { return allocation_.bytes(); }
  const Allocation& allocation() const noexcept { return allocation_; }

 private:
  Mapping(std::shared_ptr<const Reservation> reservation, CUdeviceptr address,
          Allocation allocation)
      : reservation_(std::move(reservation)),
        address_(address),
        allocation_(std::move(allocation)) {}

  static std::vector<Allocation> one(Allocation allocation) {
    std::vector<Allocation> list;
    list.push_back(std::move(allocation));
    return list;
  }

  static CUresult give_access(CUdeviceptr address, std::size_t bytes,
                              const driver::Device& accessor) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = accessor.ordinal();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver::api.cuMemSetAccess.result(address, bytes, &access, 1);
  }

  std::shared_ptr<const Reservation> reservation_;
  CUdeviceptr address_;
  Allocation allocation_;
};

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
