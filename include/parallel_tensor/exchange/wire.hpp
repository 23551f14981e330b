/// @file
/// The wire: messages of any size cut into frames that a Unix socket accepts, and put together
/// again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// What a message is.
enum class MessageKind : std::uint16_t {
  hello = 1,   ///< a rank asks the hub to be let in
  admit = 2,   ///< the hub lets it in
  refuse = 3,  ///< the hub says why not
  request = 4,
  answer = 5,
};

/// The first bytes of every frame. All frames of a message say the totals of the message.
struct FrameHeader {
  static constexpr std::uint32_t expected_magic = 0x70745831;  // changes with the layout

  std::uint32_t magic = expected_magic;
  MessageKind kind{};
  std::uint16_t descriptors = 0;  ///< of this frame
  std::uint32_t bytes = 0;        ///< of this frame, after the header
  std::uint32_t total_descriptors = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t sequence = 0;
};
static_assert(sizeof(FrameHeader) == 32);

/// A message of more than about 208 KiB is refused by the kernel with the default buffer sizes.
inline constexpr std::size_t max_frame_bytes = 64 * 1024;
inline constexpr std::size_t max_frame_body = max_frame_bytes - sizeof(FrameHeader);

/// The largest message that a receiver lets grow.
struct MessageLimits {
  std::uint64_t bytes;
  std::uint32_t descriptors;
};

/// A message on its way out. Borrows body and descriptors.
class OutgoingMessage {
 public:
  OutgoingMessage(MessageKind kind, std::uint64_t sequence, std::string_view body,
                  std::vector<int> descriptors)
      : body_(body), descriptors_(std::move(descriptors)) {
    header_.kind = kind;
    header_.sequence = sequence;
    header_.total_bytes = body_.size();
    header_.total_descriptors = static_cast<std::uint32_t>(descriptors_.size());
  }

  bool done() const noexcept {
    return started_ && bytes_sent_ == body_.size() && descriptors_sent_ == descriptors_.size();
  }
  std::size_t descriptors_sent() const noexcept { return descriptors_sent_; }

  /// Sends frames until the message is out (done) or the socket wants a pause.
  posix::SocketResult send(const posix::Socket& socket) {
    while (!done()) {
      const posix::SocketResult result = send_frame(socket);
      if (result != posix::SocketResult::done) return result;
    }
    return posix::SocketResult::done;
  }

 private:
  posix::SocketResult send_frame(const posix::Socket& socket) {
    const std::size_t bytes = std::min(max_frame_body, body_.size() - bytes_sent_);
    const std::size_t descriptors =
        std::min(posix::max_descriptors_per_frame, descriptors_.size() - descriptors_sent_);
    header_.bytes = static_cast<std::uint32_t>(bytes);
    header_.descriptors = static_cast<std::uint16_t>(descriptors);
    const std::array<::iovec, 2> parts{
        {{&header_, sizeof header_}, {const_cast<char*>(body_.data()) + bytes_sent_, bytes}}};
    const posix::SocketResult result = socket.send(
        parts.data(), parts.size(), descriptors_.data() + descriptors_sent_, descriptors);
    if (result != posix::SocketResult::done) return result;
    started_ = true;
    bytes_sent_ += bytes;
    descriptors_sent_ += descriptors;
    return result;
  }

  FrameHeader header_;
  std::string_view body_;
  std::vector<int> descriptors_;
  std::size_t bytes_sent_ = 0;
  std::size_t descriptors_sent_ = 0;
  bool started_ = false;
};

/// Room for one frame, shared by the receivers of one thread.
using FrameBuffer = std::array<char, max_frame_bytes>;

/// A message on its way in. Memory grows with what has arrived, never with what was announced.
class IncomingMessage {
 public:
  explicit IncomingMessage(const MessageLimits& limits) : limits_(limits) {}

  bool done() const noexcept { return done_; }
  bool started() const noexcept { return started_; }
  MessageKind kind() const noexcept { return header_.kind; }
  std::uint64_t sequence() const noexcept { return header_.sequence; }
  const std::string& body() const noexcept { return body_; }
  /// The number of descriptors that the sender sent.
  std::size_t descriptor_count() const noexcept { return header_.total_descriptors; }
  /// True when this process could not take some of them: its limit is reached. None is kept then.
  bool descriptors_lost() const noexcept { return descriptors_lost_; }
  std::vector<posix::Descriptor> take_descriptors() { return std::move(descriptors_); }

  /// Receives frames until the message is complete (done), nothing more is there, or the sender is
  /// gone (closed). @throws ExchangeError at a frame that breaks the rules
  posix::SocketResult receive(const posix::Socket& socket, FrameBuffer& buffer) {
    while (!done_) {
      std::vector<posix::Descriptor> arrived;
      const auto received = socket.receive(buffer.data(), buffer.size(), arrived);
      if (received.result != posix::SocketResult::done) return received.result;
      if (received.bytes_lost) malformed("a frame longer than 64 KiB");
      accept_frame({buffer.data(), received.bytes}, std::move(arrived), received.descriptors_lost);
    }
    return posix::SocketResult::done;
  }

  /// Takes one frame as it came from the socket. @throws ExchangeError at one that breaks the rules
  void accept_frame(std::string_view frame, std::vector<posix::Descriptor> descriptors, bool lost) {
    FrameHeader header;
    if (done_ || frame.size() < sizeof header) malformed("a frame without a header");
    std::memcpy(&header, frame.data(), sizeof header);
    frame.remove_prefix(sizeof header);
    if (header.magic != FrameHeader::expected_magic) malformed("an unknown frame");
    if (header.total_bytes > limits_.bytes || header.total_descriptors > limits_.descriptors) {
      malformed("a message of " + std::to_string(header.total_bytes) + " bytes and " +
                std::to_string(header.total_descriptors) + " descriptors");
    }
    if (started_ && (header.kind != header_.kind || header.sequence != header_.sequence ||
                     header.total_bytes != header_.total_bytes ||
                     header.total_descriptors != header_.total_descriptors)) {
      malformed("frames of two messages mixed up");
    }
    started_ = true;
    header_ = header;
    if (header.bytes != frame.size() || frame.size() > header.total_bytes - body_.size()) {
      malformed("a frame with a wrong number of bytes");
    }
    if (header.descriptors > header.total_descriptors - descriptors_seen_) {
      malformed("a frame with too many descriptors");
    }
    if (descriptors.size() > header.descriptors) malformed("a frame with unannounced descriptors");
    body_.append(frame);
    descriptors_seen_ += header.descriptors;
    // A process at its limit gets fewer than were sent, not on every kernel with a flag that says
    // so.
    const bool fewer = descriptors.size() < header.descriptors;
    take(std::move(descriptors), lost || fewer);
    done_ = body_.size() == header.total_bytes && descriptors_seen_ == header.total_descriptors;
    if (!done_ && header.bytes == 0 && header.descriptors == 0) malformed("an empty frame");
  }

 private:
  [[noreturn]] static void malformed(const std::string& what) {
    throw ExchangeError("the other side of a socket sent " + what, "protocol");
  }

  void take(std::vector<posix::Descriptor> descriptors, bool lost) {
    descriptors_lost_ = descriptors_lost_ || lost;
    if (descriptors_lost_) {
      descriptors_.clear();
      return;
    }
    for (posix::Descriptor& one : descriptors) descriptors_.push_back(std::move(one));
  }

  MessageLimits limits_;
  FrameHeader header_;
  std::string body_;
  std::vector<posix::Descriptor> descriptors_;
  std::size_t descriptors_seen_ = 0;
  bool started_ = false;
  bool done_ = false;
  bool descriptors_lost_ = false;
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
