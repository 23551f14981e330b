/// @file
/// MeetingPlaces: the few socket names at which the ranks of a job look for each other.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/environment.hpp"
#include "parallel_tensor/posix/descriptor.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// How many names a job can fall back to.
inline constexpr int name_count = 8;

/// FNV-1a: names only have to differ, nobody is kept from computing them.
inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325U ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

/// The names of one job: abstract ones, or files in the private directory that
/// `PARALLEL_TENSOR_SOCKET_DIR` names.
class MeetingPlaces {
 public:
  /// @throws Error when the directory cannot be used
  explicit MeetingPlaces(std::string job) : job_(std::move(job)) {
    std::string identity = job_;
    identity.push_back('\0');
    identity += std::to_string(::geteuid());
    identity.push_back('\0');
    identity += boot_id();
    std::array<char, 33> key{};
    std::snprintf(key.data(), key.size(), "%016llx%016llx",
                  static_cast<unsigned long long>(hash_text(identity, 0)),
                  static_cast<unsigned long long>(hash_text(identity, 0x9e3779b97f4a7c15U)));
    key_ = key.data();
    const std::string configured = variable("PARALLEL_TENSOR_SOCKET_DIR");
    if (!configured.empty()) open_directory(configured);
  }

  const std::string& job() const noexcept { return job_; }
  /// Empty for abstract names.
  const std::string& directory() const noexcept { return directory_; }
  std::string file(int i) const { return directory_ + "/" + key_ + "." + std::to_string(i); }

  posix::SocketAddress address(int i) const {
    if (directory_.empty()) {
      return posix::SocketAddress::abstract("parallel_tensor/" + key_ + "/" + std::to_string(i));
    }
    return file_address(key_ + "." + std::to_string(i));
  }

  /// The address of a file in the directory, whatever the length of its path.
  posix::SocketAddress file_address(const std::string& file_name) const {
    std::string path = directory_ + "/" + file_name;
    if (path.size() > posix::SocketAddress::max_length) {
      path = "/proc/self/fd/" + std::to_string(directory_descriptor_.get()) + "/" + file_name;
    }
    return posix::SocketAddress::path(path);
  }

  /// For error messages.
  std::string text() const {
    return directory_.empty() ? "abstract sockets of this network namespace"
                              : "the directory " + directory_;
  }

 private:
  // A directory that others can write to (/tmp) gets a private one inside.
  void open_directory(const std::string& configured) {
    directory_ = configured;
    if (!make_private(directory_)) {
      directory_ += "/parallel_tensor_" + std::to_string(::geteuid());
      if (!make_private(directory_)) {
        throw Error("PARALLEL_TENSOR_SOCKET_DIR: " + directory_ +
                    " is not a directory of this user that nobody else can enter (mode 0700). "
                    "Remove it or name another directory.");
      }
    }
    directory_descriptor_.reset(::open(directory_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory_descriptor_) {
      posix::throw_errno("PARALLEL_TENSOR_SOCKET_DIR: opening " + directory_);
    }
  }

  static bool make_private(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      posix::throw_errno("PARALLEL_TENSOR_SOCKET_DIR: making the directory " + path);
    }
    struct ::stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == ::geteuid() && (status.st_mode & 0077) == 0;
  }

  std::string job_;
  std::string key_;
  std::string directory_;
  posix::Descriptor directory_descriptor_;
};

/// The lock that proves whose a socket file is: the kernel drops it with the process, so a file
/// whose lock can be had belongs to nobody.
class FileLock {
 public:
  /// Empty when a live process holds it. @throws Error
  static std::optional<FileLock> try_lock(const std::string& path, bool create) {
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    while (true) {
      posix::Descriptor file(::open(path.c_str(), flags, 0600));
      if (!file && errno == ENOENT) return std::nullopt;
      if (!file) posix::throw_errno("opening " + path);
      if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return std::nullopt;
        posix::throw_errno("locking " + path);
      }
      // Its last owner may have removed the file between our two calls.
      struct ::stat opened {};
      struct ::stat named {};
      if (::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
          opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
        return FileLock(path, posix::PrivateDescriptor(std::move(file)));
      }
    }
  }

  /// Removes the file; the lock ends with this object.
  void remove_file() const noexcept { ::unlink(path_.c_str()); }

 private:
  FileLock(std::string path, posix::PrivateDescriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  std::string path_;
  posix::PrivateDescriptor descriptor_;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
