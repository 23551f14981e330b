/// @file
/// Deadline: the one point in time at which a whole operation gives up.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

namespace parallel_tensor {
inline namespace v1 {
namespace posix {

/// A point on the monotonic clock. A value; any thread.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  /// The point `duration` from now; longer than 30 days counts as 30 days.
  static Deadline after(Milliseconds duration) {
    const Milliseconds most = std::chrono::hours(24 * 30);
    const Milliseconds taken = std::clamp(duration, Milliseconds(0), most);
    return Deadline(Clock::now() + taken, taken);
  }

  bool expired() const noexcept { return Clock::now() >= point_; }

  /// The time left, never negative.
  Clock::duration remaining() const noexcept {
    return std::max(Clock::duration(0), point_ - Clock::now());
  }

  /// The time left for poll(2), rounded up, at most `most`.
  int poll_timeout(Milliseconds most) const noexcept {
    const auto left = std::chrono::ceil<Milliseconds>(remaining());
    return static_cast<int>(std::min(left, most).count());
  }

  /// The earlier of this point and `duration` from now.
  Deadline at_most(Milliseconds duration) const {
    const Deadline other = after(duration);
    return other.point_ < point_ ? other : *this;
  }

  /// The duration it was made with, for messages: "1.5 s".
  std::string duration_text() const {
    std::string text = std::to_string(static_cast<double>(duration_.count()) / 1000.0);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text + " s";
  }

 private:
  Deadline(Clock::time_point point, Milliseconds duration) : point_(point), duration_(duration) {}

  Clock::time_point point_;
  Milliseconds duration_;
};

}  // namespace posix
}  // namespace v1
}  // namespace parallel_tensor
