#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <type_traits>

#include "parallel_tensor/posix/descriptor.hpp"
#include "parallel_tensor/posix/shared_memory.hpp"

namespace parallel_tensor::posix {
namespace {

static_assert(!std::is_copy_constructible_v<Descriptor>);
static_assert(!std::is_copy_assignable_v<Descriptor>);
static_assert(std::is_nothrow_move_constructible_v<Descriptor>);
static_assert(std::is_nothrow_move_assignable_v<Descriptor>);
static_assert(!std::is_copy_constructible_v<PrivateDescriptor>);
static_assert(!std::is_copy_constructible_v<SharedMemory>);

Descriptor make() { return Descriptor(::memfd_create("test", MFD_CLOEXEC)); }
bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

TEST(Descriptor, ClosesWhatItOwns) {
  int number = -1;
  {
    const Descriptor owner = make();
    number = owner.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(Descriptor, MovesItsOwnership) {
  Descriptor first = make();
  const int number = first.get();
  Descriptor second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): the empty state is documented
  EXPECT_EQ(second.get(), number);
  Descriptor third = make();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(third.get(), number);
  Descriptor& same = third;
  third = std::move(same);
  EXPECT_TRUE(is_open(number));
}

TEST(Descriptor, ReleaseGivesTheNumberAway) {
  Descriptor owner = make();
  const int number = owner.release();
  owner.reset();
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

TEST(Descriptor, ADuplicateIsCloseOnExecAndRefersToTheSameFile) {
  const Descriptor owner(::memfd_create("test", 0));
  const Descriptor copy = owner.duplicate();
  EXPECT_NE(copy.get(), owner.get());
  EXPECT_NE(::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::pwrite(owner.get(), "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(::pread(copy.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(Descriptor, DuplicatingAClosedOneIsAnArgumentError) {
  EXPECT_THROW(Descriptor::duplicate_of(987654), ArgumentError);
  EXPECT_THROW(Descriptor().duplicate(), ArgumentError);
}

TEST(Descriptor, TheLimitIsNamed) {
  const Descriptor owner = make();
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const ::rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string text;
  try {
    owner.duplicate();
  } catch (const Error& error) {
    // First: the undefined-behaviour sanitizer opens a pipe to look at the object of a call.
    ::setrlimit(RLIMIT_NOFILE, &before);
    text = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(text.find("limit of 3 open descriptors"), std::string::npos) << text;
}

TEST(SharedMemory, IsSeenThroughEveryMapping) {
  Descriptor descriptor;
  const SharedMemory mine = SharedMemory::create(8192, descriptor);
  const SharedMemory theirs = SharedMemory::open(descriptor, 8192);
  EXPECT_NE(mine.data(), theirs.data());
  static_cast<char*>(mine.data())[8191] = 7;
  EXPECT_EQ(static_cast<char*>(theirs.data())[8191], 7);
}

TEST(SharedMemory, CannotBeCutOffAndOtherFilesAreRefused) {
  Descriptor descriptor;
  const SharedMemory memory = SharedMemory::create(8192, descriptor);
  EXPECT_NE(::ftruncate(descriptor.get(), 0), 0);
  EXPECT_THROW(SharedMemory::open(descriptor, 4096), Error);
  EXPECT_THROW(SharedMemory::open(make(), 0), Error);
  EXPECT_THROW(SharedMemory::open(Descriptor(), 4096), Error);
}

}  // namespace
}  // namespace parallel_tensor::posix
