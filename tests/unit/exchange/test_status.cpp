#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/status.hpp"

namespace parallel_tensor {
namespace {

TEST(Status, NamesTheMostDerivedClass) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status::of(Error("x")).kind, "Error");
  EXPECT_EQ(Status::of(ArgumentError("x")).kind, "ArgumentError");
  EXPECT_EQ(Status::of(NotSupportedError("x")).kind, "NotSupportedError");
  EXPECT_EQ(Status::of(DriverError("x", "cuInit", 3, "N")).kind, "DriverError");
  EXPECT_EQ(Status::of(OutOfMemoryError("x", "cuMemCreate", 2, "N")).kind, "OutOfMemoryError");
  EXPECT_EQ(Status::of(ExchangeError("x")).kind, "ExchangeError");
  EXPECT_EQ(Status::of(PeerError("x", 1, 2, "p")).kind, "PeerError");
  EXPECT_EQ(Status::of(TimeoutError("x", "p", {1})).kind, "TimeoutError");
  EXPECT_EQ(Status::of(MismatchError("x")).kind, "MismatchError");
  EXPECT_EQ(Status::of(std::bad_alloc()).kind, "MemoryError");
  EXPECT_EQ(Status::of(std::runtime_error("x")).kind, "Exception");
  EXPECT_EQ(Status::of(std::runtime_error("text")).message, "text");
}

TEST(Status, OfWhatIsBeingHandled) {
  EXPECT_TRUE(Status::of_current().ok());
  EXPECT_TRUE(Status::of(std::exception_ptr()).ok());
  try {
    throw ArgumentError("bad");
  } catch (...) {
    EXPECT_EQ(Status::of_current().kind, "ArgumentError");
  }
  try {
    throw 7;
  } catch (...) {
    EXPECT_EQ(Status::of_current().kind, "Exception");
  }
}

TEST(Board, KeepsTheFirstCauseForAllRanks) {
  posix::Descriptor descriptor;
  exchange::Board hub = exchange::Board::create(4, descriptor);
  exchange::Board client = exchange::Board::open(4, descriptor);
  EXPECT_FALSE(client.cause());
  const auto publish = [](exchange::Board& board, const std::exception_ptr& error, int rank) {
    board.publish(exchange::BreakRecord::of(error, rank, 100 + rank, "create"));
  };
  publish(client, std::make_exception_ptr(TimeoutError("late", "barrier", {2, 3})), 1);
  publish(hub, std::make_exception_ptr(Error("second")), 0);
  ASSERT_TRUE(hub.broken());
  try {
    std::rethrow_exception(hub.cause()->to_exception());
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.phase(), "barrier");
    EXPECT_EQ(error.missing(), (std::vector<int>{2, 3}));
    EXPECT_NE(std::string(error.what()).find("rank 1 (pid 101)"), std::string::npos);
  }
}

TEST(Board, ADeathKeepsTheRankItIsAboutAndAnythingElseBlamesTheBreaker) {
  const auto relay = [](const std::exception_ptr& error) {
    posix::Descriptor descriptor;
    exchange::Board board = exchange::Board::create(2, descriptor);
    board.publish(exchange::BreakRecord::of(error, 0, 10, "create"));
    try {
      std::rethrow_exception(board.cause()->to_exception());
    } catch (const PeerError& relayed) {
      return std::pair(relayed.rank(), relayed.pid());
    }
  };
  EXPECT_EQ(relay(std::make_exception_ptr(PeerError("x", 1, 11, "p"))), std::pair(1, 11));
  EXPECT_EQ(relay(std::make_exception_ptr(Error("x"))), std::pair(0, 10));
  EXPECT_EQ(relay(std::make_exception_ptr(std::runtime_error("x"))), std::pair(0, 10));
}

TEST(Board, AMessageOfAnyLengthCanBePublished) {
  posix::Descriptor descriptor;
  exchange::Board board = exchange::Board::create(2, descriptor);
  std::vector<int> missing(5000, 1);
  const std::string text(100000, 'x');
  board.publish(exchange::BreakRecord::of(
      std::make_exception_ptr(TimeoutError(text, text, missing)), 0, 10, "create"));
  ASSERT_TRUE(board.cause());
  EXPECT_GT(board.cause()->status.message.size(), 1000U);
}

TEST(Board, KnowsWhoIsMissing) {
  posix::Descriptor descriptor;
  exchange::Board board = exchange::Board::create(3, descriptor);
  board.enter(0, 10, 4);
  board.enter(2, 12, 5);
  EXPECT_EQ(board.missing(4), std::vector<int>{1});
  EXPECT_EQ(board.missing(5), (std::vector<int>{0, 1}));
  EXPECT_EQ(board.pid(2), 12);
  EXPECT_FALSE(board.answered(1));
  board.set_answered(1);
  EXPECT_TRUE(board.answered(1));
}

}  // namespace
}  // namespace parallel_tensor
