#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <utility>

#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor::posix {
namespace {

std::string unique_name() {
  static int counter = 0;
  return "parallel_tensor_test/" + std::to_string(::getpid()) + "/" + std::to_string(counter++);
}

/// A connected pair.
std::pair<Socket, Socket> connect_pair() {
  const SocketAddress address = SocketAddress::abstract(unique_name());
  Socket listener = Socket::create();
  if (!listener.listen(address, 1)) throw Error("taken");
  Socket client = Socket::create();
  if (client.connect(address) != SocketResult::done) throw Error("not connected");
  return {listener.accept(), std::move(client)};
}

SocketResult send_text(const Socket& socket, std::string text, std::vector<int> descriptors = {}) {
  const ::iovec part{text.data(), text.size()};
  return socket.send(&part, 1, descriptors.data(), descriptors.size());
}

int open_descriptors() {
  int count = 0;
  ::DIR* listing = ::opendir("/proc/self/fd");
  while (::readdir(listing) != nullptr) ++count;
  ::closedir(listing);
  return count;
}

TEST(Socket, KeepsMessagesApartAndCarriesDescriptors) {
  const auto [a, b] = connect_pair();
  const Descriptor file(::memfd_create("test", 0));
  EXPECT_EQ(send_text(a, "one", {file.get(), file.get()}), SocketResult::done);
  EXPECT_EQ(send_text(a, "two"), SocketResult::done);
  char buffer[16];
  std::vector<Descriptor> descriptors;
  auto received = b.receive(buffer, sizeof buffer, descriptors);
  EXPECT_EQ(received.result, SocketResult::done);
  EXPECT_EQ(std::string(buffer, received.bytes), "one");
  ASSERT_EQ(descriptors.size(), 2U);
  EXPECT_NE(::fcntl(descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  received = b.receive(buffer, sizeof buffer, descriptors);
  EXPECT_EQ(std::string(buffer, received.bytes), "two");
  EXPECT_EQ(descriptors.size(), 2U);
  EXPECT_EQ(b.receive(buffer, sizeof buffer, descriptors).result, SocketResult::would_block);
}

TEST(Socket, KnowsThePeer) {
  const auto [a, b] = connect_pair();
  EXPECT_EQ(a.peer().pid, ::getpid());
  EXPECT_EQ(a.peer().uid, ::geteuid());
  EXPECT_EQ(b.peer().pid, ::getpid());
}

TEST(Socket, AMessageLongerThanTheBufferLosesItsDescriptorsAndLeavesNoneOpen) {
  const auto [a, b] = connect_pair();
  const Descriptor file(::memfd_create("test", 0));
  const int before = open_descriptors();
  EXPECT_EQ(send_text(a, "much too long", {file.get()}), SocketResult::done);
  char buffer[4];
  std::vector<Descriptor> descriptors;
  const auto received = b.receive(buffer, sizeof buffer, descriptors);
  EXPECT_TRUE(received.bytes_lost);
  EXPECT_TRUE(descriptors.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Socket, AtTheDescriptorLimitTheMessageArrivesAndNothingIsLeftOpen) {
  const auto [a, b] = connect_pair();
  const Descriptor file(::memfd_create("test", 0));
  const int before = open_descriptors();
  EXPECT_EQ(send_text(a, "x", std::vector<int>(20, file.get())), SocketResult::done);
  ::rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const ::rlimit low{static_cast<::rlim_t>(file.get() + 8), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  char buffer[4];
  std::vector<Descriptor> descriptors;
  const auto received = b.receive(buffer, sizeof buffer, descriptors);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(received.result, SocketResult::done);
  EXPECT_EQ(received.bytes, 1U);
  EXPECT_TRUE(received.descriptors_lost);
  EXPECT_TRUE(descriptors.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Socket, WhatWasQueuedBeforeTheOtherSideClosedIsStillRead) {
  auto [a, b] = connect_pair();
  // Closing with something unread is a reset for the other side.
  EXPECT_EQ(send_text(b, "unread"), SocketResult::done);
  EXPECT_EQ(send_text(a, "last words"), SocketResult::done);
  a.reset();
  char buffer[16];
  std::vector<Descriptor> descriptors;
  const auto received = b.receive(buffer, sizeof buffer, descriptors);
  EXPECT_EQ(received.result, SocketResult::done);
  EXPECT_EQ(std::string(buffer, received.bytes), "last words");
  EXPECT_EQ(b.receive(buffer, sizeof buffer, descriptors).result, SocketResult::closed);
  EXPECT_EQ(send_text(b, "x"), SocketResult::closed);
}

TEST(Socket, ShutEndsBothSides) {
  const auto [a, b] = connect_pair();
  a.shut();
  char buffer[16];
  std::vector<Descriptor> descriptors;
  EXPECT_EQ(a.receive(buffer, sizeof buffer, descriptors).result, SocketResult::closed);
  EXPECT_EQ(b.receive(buffer, sizeof buffer, descriptors).result, SocketResult::closed);
  EXPECT_EQ(send_text(b, "x"), SocketResult::closed);
}

TEST(Socket, AFullSocketAsksToWait) {
  const auto [a, b] = connect_pair();
  SocketResult result = SocketResult::done;
  int sent = 0;
  while ((result = send_text(a, std::string(60000, 'x'))) == SocketResult::done) ++sent;
  EXPECT_EQ(result, SocketResult::would_block);
  EXPECT_GT(sent, 0);
}

TEST(Socket, ANameIsTakenOnceAndFreeWhenItsOwnerIsGone) {
  const SocketAddress address = SocketAddress::abstract(unique_name());
  Socket first = Socket::create();
  ASSERT_TRUE(first.listen(address, 1));
  Socket second = Socket::create();
  EXPECT_FALSE(second.listen(address, 1));
  first.reset();
  EXPECT_TRUE(second.listen(address, 1));
  EXPECT_FALSE(second.accept());
}

TEST(Socket, NobodyAtTheAddressIsRefused) {
  Socket socket = Socket::create();
  EXPECT_EQ(socket.connect(SocketAddress::abstract(unique_name())), SocketResult::refused);
  EXPECT_EQ(socket.connect(SocketAddress::path("/tmp/" + std::to_string(::getpid()) + ".none")),
            SocketResult::refused);
}

TEST(Socket, ANameThatIsTooLongIsAnArgumentError) {
  EXPECT_THROW(SocketAddress::path(std::string(108, 'x')), ArgumentError);
  EXPECT_THROW(SocketAddress::abstract(std::string(107, 'x')), ArgumentError);
  EXPECT_NO_THROW(SocketAddress::path(std::string(107, 'x')));
  EXPECT_NO_THROW(SocketAddress::abstract(std::string(106, 'x')));
}

}  // namespace
}  // namespace parallel_tensor::posix
