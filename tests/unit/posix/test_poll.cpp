#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "parallel_tensor/posix/poll.hpp"

namespace parallel_tensor::posix {
namespace {

using std::chrono::milliseconds;

std::atomic<int> hook_calls{0};

class WaitTest : public ::testing::Test {
 protected:
  void SetUp() override { hook_calls = 0; }
  void TearDown() override { set_interrupt_hook(nullptr); }
};

TEST(Deadline, ExpiresAndCapsWhatPollIsGiven) {
  EXPECT_TRUE(Deadline::after(milliseconds(0)).expired());
  EXPECT_TRUE(Deadline::after(milliseconds(-5)).expired());
  EXPECT_EQ(Deadline::after(milliseconds(0)).remaining().count(), 0);
  const Deadline far = Deadline::after(milliseconds::max());
  EXPECT_FALSE(far.expired());
  EXPECT_EQ(far.poll_timeout(milliseconds(100)), 100);
  EXPECT_LE(Deadline::after(milliseconds(5)).poll_timeout(milliseconds(100)), 5);
  EXPECT_TRUE(far.at_most(milliseconds(0)).expired());
  EXPECT_EQ(Deadline::after(milliseconds(1500)).duration_text(), "1.5 s");
  EXPECT_EQ(Deadline::after(milliseconds(60000)).duration_text(), "60 s");
  EXPECT_EQ(Deadline::after(milliseconds(0)).duration_text(), "0 s");
}

TEST_F(WaitTest, ReturnsWhatIsReady) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  std::vector<::pollfd> entries{{reading.get(), POLLIN, 0}};
  Wait wait(Deadline::after(milliseconds(20)));
  while (!wait.expired()) EXPECT_EQ(wait.step(entries), 0);
  ASSERT_EQ(::write(writing.get(), "x", 1), 1);
  EXPECT_EQ(wait.step(entries), 1);
  EXPECT_NE(entries[0].revents & POLLIN, 0);
}

TEST_F(WaitTest, CallsTheHookEveryHundredMilliseconds) {
  set_interrupt_hook([] { hook_calls.fetch_add(1); });
  Wait wait(Deadline::after(milliseconds(450)));
  while (!wait.expired()) wait.pause(milliseconds(7));
  EXPECT_GE(hook_calls.load(), 2);
  EXPECT_LE(hook_calls.load(), 4);
}

TEST_F(WaitTest, EndsWithWhatTheHookThrows) {
  set_interrupt_hook([] { throw std::runtime_error("stop"); });
  Wait wait(Deadline::after(milliseconds(5000)));
  EXPECT_THROW(
      {
        while (!wait.expired()) wait.pause(milliseconds(100));
      },
      std::runtime_error);
  EXPECT_FALSE(wait.expired());
}

TEST_F(WaitTest, CallsTheHookAtOnceAfterASignal) {
  struct ::sigaction action {};
  struct ::sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  set_interrupt_hook([] { hook_calls.fetch_add(1); });
  ::ualarm(20000, 0);
  Wait wait(Deadline::after(milliseconds(5000)));
  std::vector<::pollfd> none;
  EXPECT_EQ(wait.step(none), 0);
  EXPECT_EQ(hook_calls.load(), 1);
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST_F(WaitTest, SettingTheHookReturnsTheOneBefore) {
  const InterruptHook hook = [] {};
  EXPECT_EQ(set_interrupt_hook(hook), nullptr);
  EXPECT_EQ(set_interrupt_hook(nullptr), hook);
}

}  // namespace
}  // namespace parallel_tensor::posix
