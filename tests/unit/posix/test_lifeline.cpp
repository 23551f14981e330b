#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "parallel_tensor/posix/fork.hpp"
#include "parallel_tensor/posix/lifeline.hpp"

namespace parallel_tensor::posix {
namespace {

/// Runs `function` in a forked child and returns its exit code.
template <typename Function>
int in_child(const Function& function) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(function());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool readable(int descriptor, int milliseconds) {
  ::pollfd entry{descriptor, POLLIN, 0};
  return ::poll(&entry, 1, milliseconds) == 1;
}

TEST(Lifeline, OfALivingProcessIsNotReadable) {
  const int own = Lifelines::instance().own();
  EXPECT_EQ(Lifelines::instance().own(), own);
  EXPECT_FALSE(readable(own, 0));
}

TEST(Lifeline, ShowsTheDeathOfAProcess) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::poll(nullptr, 0, 30000);
    ::_exit(0);
  }
  auto& lifelines = Lifelines::instance();
  auto line = lifelines.adopt(42, Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))));
  LifelineSet set;
  set.add(3, line);
  set.add(4, line);
  EXPECT_FALSE(set.dead_rank());
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(readable(set.get(), 10000));
  EXPECT_EQ(set.dead_rank(), 3);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(set.dead_rank(), 3);
}

TEST(Lifeline, IsSharedByAllWhoKnowTheProcess) {
  auto& lifelines = Lifelines::instance();
  const auto first = lifelines.adopt(7, Descriptor(::dup(0)));
  const int number = ::dup(0);
  EXPECT_EQ(lifelines.adopt(7, Descriptor(number)), first);
  EXPECT_LT(::fcntl(number, F_GETFD), 0) << "the second copy is closed";
  EXPECT_NE(lifelines.adopt(8, Descriptor(::dup(0))), first);
}

TEST(Fork, AChildHasATokenAndALifelineOfItsOwn) {
  const std::uint64_t token = Lifelines::instance().token();
  EXPECT_EQ(in_child([&] { return Lifelines::instance().token() == token ? 1 : 0; }), 0);
  EXPECT_EQ(Lifelines::instance().token(), token);
}

TEST(Fork, TheGenerationTellsAChildFromItsParent) {
  const std::uint64_t generation = process_generation();
  EXPECT_NO_THROW(require_process(generation, "it"));
  EXPECT_EQ(in_child([&] {
              try {
                require_process(generation, "it");
              } catch (const Error&) {
                return forked() ? 0 : 2;
              }
              return 1;
            }),
            0);
  EXPECT_EQ(process_generation(), generation);
}

TEST(Fork, AChildGivesPrivateDescriptorsUpAndKeepsTheOthers) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reading(ends[0]);
  PrivateDescriptor writing{Descriptor(ends[1])};
  const pid_t pid = ::fork();
  if (pid == 0) {
    // The number is still taken, so that its owner can close it.
    const bool taken = ::fcntl(writing.get(), F_GETFD) >= 0;
    writing.reset();
    ::poll(nullptr, 0, taken ? 30000 : 0);
    ::_exit(0);
  }
  EXPECT_FALSE(readable(reading.get(), 50));
  writing.reset();
  EXPECT_TRUE(readable(reading.get(), 10000)) << "the child holds no write end";
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0) << "the child lives";
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(Fork, AClosedPrivateDescriptorIsForgotten) {
  int number = -1;
  {
    const PrivateDescriptor once{Descriptor(::dup(0))};
    number = once.get();
  }
  const Descriptor reused(::dup(0));
  ASSERT_EQ(reused.get(), number);
  EXPECT_EQ(in_child([&] {
              struct ::stat here {};
              struct ::stat original {};
              ::fstat(number, &here);
              ::fstat(0, &original);
              return here.st_ino == original.st_ino ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace parallel_tensor::posix
