/// @file
/// SharedMemory: a few pages that several processes map, made without a name.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// A mapping of an anonymous file of fixed size. Move-only.
class SharedMemory {
 public:
  SharedMemory() noexcept = default;

  /// New zeroed memory; `descriptor` gets what peers need to `open` it. @throws Error
  static SharedMemory create(std::size_t bytes, Descriptor& descriptor) {
    descriptor.reset(::memfd_create("parallel_tensor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!descriptor) throw_errno("creating " + std::to_string(bytes) + " bytes of shared memory");
    // Reserved now: a page that cannot be had later would be a SIGBUS.
    if (::fallocate(descriptor.get(), 0, 0, static_cast<::off_t>(bytes)) != 0) {
      throw_errno("reserving " + std::to_string(bytes) + " bytes of shared memory");
    }
    // Nobody can cut it off under a peer's mapping, which would be a SIGBUS there.
    if (::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      throw_errno("sealing shared memory");
    }
    return map(descriptor, bytes);
  }

  /// Maps memory that a peer created. @throws Error when it is not of that size and sealed
  static SharedMemory open(const Descriptor& descriptor, std::size_t bytes) {
    struct ::stat status {};
    const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor.get(), &status) != 0 ||
        static_cast<std::size_t>(status.st_size) != bytes) {
      throw Error("a descriptor that a peer sent is not sealed shared memory of " +
                  std::to_string(bytes) + " bytes");
    }
    return map(descriptor, bytes);
  }

  ~SharedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  static SharedMemory map(const Descriptor& descriptor, std::size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
    if (data == MAP_FAILED) throw_errno("mapping " + std::to_string(bytes) + " shared bytes");
    SharedMemory memory;
    memory.data_ = data;
    memory.bytes_ = bytes;
    return memory;
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
