/// @file
/// Socket: a Unix socket of whole messages (SOCK_SEQPACKET) that also carries descriptors.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// The most descriptors that one message carries (the kernel's own limit is 253).
inline constexpr std::size_t max_descriptors_per_frame = 128;

/// A Unix socket address: a path, or a name in the abstract namespace of the network namespace.
class SocketAddress {
 public:
  static constexpr std::size_t max_length = sizeof(::sockaddr_un::sun_path) - 1;

  /// @throws ArgumentError when the name is longer than an address can hold
  static SocketAddress abstract(const std::string& name) {
    return SocketAddress(std::string(1, '\0') + name, 0);
  }
  /// @throws ArgumentError when the path is longer than an address can hold
  static SocketAddress path(const std::string& path) { return SocketAddress(path, 1); }

  const ::sockaddr* get() const noexcept { return reinterpret_cast<const ::sockaddr*>(&address_); }
  ::socklen_t length() const noexcept { return length_; }
  /// For messages; an abstract name begins with '@'.
  std::string text() const {
    const std::size_t bytes = length_ - offsetof(::sockaddr_un, sun_path);
    if (address_.sun_path[0] != '\0') return std::string(address_.sun_path);
    return "@" + std::string(address_.sun_path + 1, bytes - 1);
  }

 private:
  SocketAddress(const std::string& text, std::size_t terminator) {
    if (text.size() > max_length) {
      throw ArgumentError("the socket name '" + text.substr(1 - terminator) + "' is longer than " +
                          std::to_string(max_length) + " characters");
    }
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path, text.data(), text.size());
    length_ =
        static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + text.size() + terminator);
  }

  ::sockaddr_un address_{};
  ::socklen_t length_ = 0;
};

/// How a call on a socket ended that did not throw.
enum class SocketResult {
  done,
  would_block,  ///< nothing happened; wait for readiness and repeat
  exhausted,    ///< nothing happened: a limit of the kernel is reached; repeat after a pause
  refused,      ///< nobody listens at the address
  closed,       ///< the other side is gone
};

/// An owned, non-blocking socket. A forked child gives it up. Move-only; one thread at a time,
/// except `shut`, which any thread may call.
class Socket {
 public:
  Socket() noexcept = default;

  /// A new, unconnected socket. @throws Error at a limit of descriptors or memory
  static Socket create() {
    Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) throw_errno("creating a Unix socket");
    return Socket(std::move(made));
  }

  int get() const noexcept { return descriptor_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }
  void reset() noexcept { descriptor_.reset(); }

  /// Binds and listens. False when the address is taken. @throws Error
  bool listen(const SocketAddress& address, int backlog) {
    if (::bind(get(), address.get(), address.length()) != 0) {
      if (errno == EADDRINUSE) return false;
      throw_errno("binding the Unix socket " + address.text());
    }
    if (::listen(get(), backlog) != 0)
      throw_errno("listening on the Unix socket " + address.text());
    return true;
  }

  /// done, refused (nobody there) or would_block (its queue is full). @throws Error
  SocketResult connect(const SocketAddress& address) {
    while (::connect(get(), address.get(), address.length()) != 0) {
      switch (errno) {
        case EINTR:
          continue;
        case EISCONN:
          return SocketResult::done;
        case EAGAIN:
          return SocketResult::would_block;
        case ENOBUFS:
        case ENOMEM:
          return SocketResult::exhausted;
        case ENOENT:
        case ECONNREFUSED:
        case EPROTOTYPE:  // a socket of another kind has the name
        case EACCES:      // a path of another user
        case EPERM:
          return SocketResult::refused;
        default:
          throw_errno("connecting to the Unix socket " + address.text());
      }
    }
    return SocketResult::done;
  }

  /// The next connection, or an empty socket when none waits. @throws Error
  Socket accept() const {
    while (true) {
      Descriptor accepted(::accept4(get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted) return Socket(std::move(accepted));
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == ECONNABORTED || errno == EINVAL) return Socket();
      throw_errno("accepting a connection");
    }
  }

  /// The process that connected; on the connecting side, the one that listened. @throws Error
  ::ucred peer() const {
    ::ucred credentials{};
    ::socklen_t length = sizeof credentials;
    if (::getsockopt(get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
      throw_errno("reading the peer of a Unix socket");
    }
    return credentials;
  }

  /// Sends one message of at least one byte with at most 128 borrowed descriptors, whole or not at
  /// all. @throws Error for anything but done, would_block, exhausted, closed
  SocketResult send(const ::iovec* parts, std::size_t count, const int* descriptors,
                    std::size_t descriptor_count) const {
    ControlBuffer control;
    ::msghdr message{};
    message.msg_iov = const_cast<::iovec*>(parts);
    message.msg_iovlen = count;
    if (descriptor_count > 0) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = CMSG_SPACE(descriptor_count * sizeof(int));
      ::cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptor_count * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors, descriptor_count * sizeof(int));
    }
    while (::sendmsg(get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      switch (errno) {
        case EINTR:
          continue;
        case EAGAIN:
          return SocketResult::would_block;
        // More descriptors of this user are in flight than it may have open.
        case ETOOMANYREFS:
        case ENOBUFS:
        case ENOMEM:
          return SocketResult::exhausted;
        case EPIPE:
        case ECONNRESET:
        case ENOTCONN:
          return SocketResult::closed;
        default:
          throw_errno("sending a message with " + std::to_string(descriptor_count) +
                      " descriptors");
      }
    }
    return SocketResult::done;
  }

  /// What `receive` got.
  struct Received {
    SocketResult result = SocketResult::done;  ///< done, would_block or closed
    std::size_t bytes = 0;
    bool bytes_lost = false;        ///< the message was longer than the buffer
    bool descriptors_lost = false;  ///< this process is at its limit of open descriptors
  };

  /// Receives one message into a buffer and appends its descriptors, close-on-exec, to
  /// `descriptors`. Of a message that lost some, those that arrived are closed. @throws Error
  Received receive(void* buffer, std::size_t capacity, std::vector<Descriptor>& descriptors) const {
    ControlBuffer control;
    ::iovec part{buffer, capacity};
    ::msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    bool reset_seen = false;
    ::ssize_t length = -1;
    while ((length = ::recvmsg(get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        return {reset_seen ? SocketResult::closed : SocketResult::would_block, 0, false, false};
      }
      if (errno == ECONNRESET && !reset_seen) {
        // Reported once, and before what was queued when the other side closed.
        reset_seen = true;
        continue;
      }
      if (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE) {
        return {SocketResult::closed, 0, false, false};
      }
      throw_errno("receiving a message");
    }
    std::vector<Descriptor> arrived = take_descriptors(message);
    if (length == 0) return {SocketResult::closed, 0, false, false};
    const bool bytes_lost = (message.msg_flags & MSG_TRUNC) != 0;
    const bool descriptors_lost = (message.msg_flags & MSG_CTRUNC) != 0;
    if (!bytes_lost && !descriptors_lost) {
      for (Descriptor& one : arrived) descriptors.push_back(std::move(one));
    }
    return {SocketResult::done, static_cast<std::size_t>(length), bytes_lost, descriptors_lost};
  }

  /// Ends the connection for both sides; what is queued can still be read. The number stays owned.
  void shut() const noexcept {
    if (*this) ::shutdown(get(), SHUT_RDWR);
  }

 private:
  struct ControlBuffer {
    alignas(
        ::cmsghdr) std::array<char, CMSG_SPACE(max_descriptors_per_frame * sizeof(int))> bytes{};
  };

  explicit Socket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  static std::vector<Descriptor> take_descriptors(::msghdr& message) {
    std::vector<Descriptor> taken;
    taken.reserve(max_descriptors_per_frame);
    for (::cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        taken.emplace_back(descriptor);
      }
    }
    return taken;
  }

  PrivateDescriptor descriptor_;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
