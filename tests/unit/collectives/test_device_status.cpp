#include <gtest/gtest.h>

#include <cstdlib>

#include "parallel_tensor/collectives/barrier.hpp"
#include "parallel_tensor/collectives/device_status.hpp"
#include "ranks_on_devices.hpp"

namespace parallel_tensor::testing {
namespace {

// Read once by the library, before any test's first collective.
const bool short_timeout = [] { return setenv("PARALLEL_TENSOR_DEVICE_TIMEOUT", "0.3", 1) == 0; }();

// Takes part in the agreement on a barrier and launches nothing, as a rank whose GPU has stopped.
void agree_only(const RankOnDevice& own) {
  const auto launcher = collectives::Launcher::of(*own.group);
  launcher->agree(*own.group, "barrier on the device", [] { return std::string(); }, [] {});
}

TEST(DeviceTimeout, NamesTheRankThatDidNotComeAndBreaksTheGroup) {
  ASSERT_TRUE(short_timeout);
  std::atomic<int> timeouts{0};
  const auto errors = run_group(3, [&](const RankOnDevice& own) {
    collectives::Launcher::of(*own.group);
    if (own.rank() == 1) {
      agree_only(own);
      while (!own.group->lost_peer()) std::this_thread::yield();
      return;
    }
    try {
      barrier(*own.group, own.stream);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      ++timeouts;
      EXPECT_EQ(error.missing(), std::vector<int>{1}) << error.what();
      EXPECT_EQ(error.phase(), "device");
    } catch (const PeerError&) {
      // The other waiting rank ran out of time first, and said so.
    }
    EXPECT_TRUE(own.group->broken());
    message_of<ExchangeError>([&] { barrier(*own.group, own.stream); });
  });
  EXPECT_GE(timeouts, 1);
  // What is left is the helper's own closing barrier, on a group that is broken.
  for (const auto& error : errors) {
    EXPECT_NE(text_of(error).find("did not signal"), std::string::npos) << text_of(error);
  }
}

struct Interrupt {};
std::atomic<bool> interrupted{false};

TEST(Interrupt, EndsTheWaitOnTheDeviceWithItsOwnException) {
  interrupted = false;
  std::atomic<bool> passed_through{false};
  run_group(2, [&](const RankOnDevice& own) {
    collectives::Launcher::of(*own.group);
    if (own.rank() == 1) {
      agree_only(own);
      interrupted = true;
      while (!own.group->lost_peer()) std::this_thread::yield();
      return;
    }
    static const std::thread::id waiting = std::this_thread::get_id();
    const auto before = posix::set_interrupt_hook([] {
      if (interrupted && std::this_thread::get_id() == waiting) throw Interrupt{};
    });
    try {
      barrier(*own.group, own.stream);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Interrupt&) {
      passed_through = true;
    }
    posix::set_interrupt_hook(before);
    EXPECT_TRUE(own.group->broken());
  });
  EXPECT_TRUE(passed_through);
}

TEST(DeviceStatus, AWaitThatFailedEarlierIsRaisedByTheNextCall) {
  std::atomic<int> raised{0};
  run_group(2, [&](const RankOnDevice& own) {
    const auto launcher = collectives::Launcher::of(*own.group);
    own.group->barrier();
    if (own.rank() == 1) {
      while (!own.group->lost_peer()) std::this_thread::yield();
      return;
    }
    device::WaitStatus& status = *launcher->workspace().status();
    status.peer = 1;
    status.epoch = 8;
    status.seen = 7;
    std::atomic_ref(status.state).store(static_cast<std::uint32_t>(device::WaitState::timed_out));
    const std::string message = message_of<TimeoutError>([&] { barrier(*own.group, own.stream); });
    EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
    EXPECT_NE(status.abort, 0U);
    ++raised;
  });
  EXPECT_EQ(raised, 1);
}

}  // namespace
}  // namespace parallel_tensor::testing
