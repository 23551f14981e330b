/// @file
/// Descriptor: an owned file descriptor, and PrivateDescriptor, one that a forked child gives up.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/fork.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// The text of an errno value. Any thread.
inline std::string error_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

/// The soft limit of open descriptors of this process. Any thread.
inline unsigned long descriptor_limit() noexcept {
  ::rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<unsigned long>(limit.rlim_cur);
}

/// The sentence that explains EMFILE and says what to do.
inline std::string descriptor_limit_hint() {
  return "this process is at its limit of " + std::to_string(descriptor_limit()) +
         " open descriptors; raise it (ulimit -n) or close some";
}

/// Throws the Error of a failed system call: what was tried, what came back, and the way out.
[[noreturn]] inline void throw_errno(const std::string& what, int error = errno) {
  std::string text = what + ": " + error_text(error);
  if (error == EMFILE) text += "; " + descriptor_limit_hint();
  if (error == ENFILE) text += "; the machine is at its limit of open files (fs.file-max)";
  throw Error(text);
}

/// Owns one file descriptor. Move-only; -1 means none.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  /// Takes ownership of `descriptor`.
  explicit Descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  ~Descriptor() { reset(); }

  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  /// A new, close-on-exec descriptor of the same open file as a borrowed one.
  /// @throws ArgumentError when `descriptor` is not open, Error at the descriptor limit
  static Descriptor duplicate_of(int descriptor) {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) return Descriptor(copy);
    const int error = errno;
    if (error == EBADF) {
      throw ArgumentError("descriptor " + std::to_string(descriptor) + " is not open");
    }
    throw_errno("duplicating descriptor " + std::to_string(descriptor), error);
  }

  /// Borrows the number.
  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

  /// Gives the number and its ownership to the caller.
  [[nodiscard]] int release() noexcept { return std::exchange(descriptor_, -1); }

  /// Closes what is held and takes ownership of `descriptor`.
  void reset(int descriptor = -1) noexcept {
    const int old = std::exchange(descriptor_, descriptor);
    // No second attempt on EINTR: Linux has freed the number by then.
    if (old >= 0) ::close(old);
  }

  /// A new, close-on-exec descriptor of the same open file. @throws as `duplicate_of`
  Descriptor duplicate() const { return duplicate_of(descriptor_); }

 private:
  int descriptor_ = -1;
};

/// Owns a descriptor that must not live on in a forked child: a socket, a lifeline.
class PrivateDescriptor {
 public:
  PrivateDescriptor() noexcept = default;
  /// Takes over what `descriptor` owns.
  explicit PrivateDescriptor(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
    if (descriptor_) forget_in_child(descriptor_.get());
  }
  ~PrivateDescriptor() { reset(); }

  PrivateDescriptor(PrivateDescriptor&& other) noexcept = default;
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    descriptor_ = std::move(other.descriptor_);
    return *this;
  }

  int get() const noexcept { return descriptor_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

  void reset() noexcept {
    if (descriptor_) keep_in_child(descriptor_.get());
    descriptor_.reset();
  }

 private:
  Descriptor descriptor_;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
