#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "parallel_tensor/exchange/payload.hpp"
#include "parallel_tensor/exchange/wire.hpp"

namespace parallel_tensor::exchange {
namespace {

constexpr MessageLimits limits{1 << 20, 300};

std::string frame(FrameHeader header, const std::string& body) {
  header.bytes = static_cast<std::uint32_t>(body.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

FrameHeader header_of(std::uint64_t total_bytes, std::uint32_t total_descriptors = 0) {
  FrameHeader header;
  header.kind = MessageKind::request;
  header.sequence = 5;
  header.total_bytes = total_bytes;
  header.total_descriptors = total_descriptors;
  return header;
}

std::vector<posix::Descriptor> files(int count) {
  std::vector<posix::Descriptor> made;
  for (int i = 0; i < count; ++i) made.emplace_back(::memfd_create("test", MFD_CLOEXEC));
  return made;
}

TEST(Wire, AMessageOfSeveralFramesIsPutTogether) {
  IncomingMessage message(limits);
  message.accept_frame(frame(header_of(6), "abc"), {}, false);
  EXPECT_FALSE(message.done());
  message.accept_frame(frame(header_of(6), "def"), {}, false);
  EXPECT_TRUE(message.done());
  EXPECT_EQ(message.body(), "abcdef");
  EXPECT_EQ(message.sequence(), 5U);
}

TEST(Wire, AnEmptyMessageIsOneFrame) {
  IncomingMessage message(limits);
  message.accept_frame(frame(header_of(0), ""), {}, false);
  EXPECT_TRUE(message.done());
}

TEST(Wire, DescriptorsThatAreMissingAreReportedAndNoneIsKept) {
  IncomingMessage message(limits);
  FrameHeader header = header_of(1, 4);
  header.descriptors = 2;
  message.accept_frame(frame(header, ""), files(2), false);
  message.accept_frame(frame(header, "x"), files(1), false);
  EXPECT_TRUE(message.done());
  EXPECT_TRUE(message.descriptors_lost());
  EXPECT_TRUE(message.take_descriptors().empty());
}

TEST(Wire, MalformedFramesAreRefused) {
  const auto refuse = [](const std::string& bytes, int descriptors = 0) {
    IncomingMessage message(limits);
    EXPECT_THROW(message.accept_frame(bytes, files(descriptors), false), ExchangeError);
  };
  refuse("");
  refuse("short");
  refuse(std::string(sizeof(FrameHeader), '\xff'));
  FrameHeader header = header_of(3);
  header.magic ^= 1;
  refuse(frame(header, "abc"));
  refuse(frame(header_of(2), "abc"));
  refuse(frame(header_of(1 << 21), "abc"));
  refuse(frame(header_of(3, 301), "abc"));
  refuse(frame(header_of(3), ""));
  refuse(frame(header_of(3), "abc"), 1);
  header = header_of(3, 1);
  header.descriptors = 2;
  refuse(frame(header, "abc"), 2);
  std::string wrong_length = frame(header_of(9), "abc");
  wrong_length += "d";
  refuse(wrong_length);
}

TEST(Wire, FramesOfTwoMessagesDoNotMix) {
  for (int field = 0; field < 4; ++field) {
    IncomingMessage message(limits);
    message.accept_frame(frame(header_of(6, 0), "abc"), {}, false);
    FrameHeader other = header_of(6, 0);
    if (field == 0) other.kind = MessageKind::answer;
    if (field == 1) other.sequence = 6;
    if (field == 2) other.total_bytes = 7;
    if (field == 3) other.total_descriptors = 1;
    EXPECT_THROW(message.accept_frame(frame(other, "def"), {}, false), ExchangeError);
  }
  IncomingMessage complete(limits);
  complete.accept_frame(frame(header_of(3), "abc"), {}, false);
  EXPECT_THROW(complete.accept_frame(frame(header_of(3), "abc"), {}, false), ExchangeError);
}

TEST(Wire, DamagedBytesNeverDoMoreThanThrow) {
  Contribution own;
  own.operation = "create";
  own.signature = "signature";
  own.payload = "payload";
  const std::string body = encode_request(own);
  const std::string whole = frame(header_of(body.size()), body);
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = whole;
    for (unsigned i = 0; i <= random() % 4; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    IncomingMessage message(limits);
    try {
      message.accept_frame(damaged, {}, false);
      if (message.done()) decode_request(message);
    } catch (const ExchangeError&) {
    }
  }
}

TEST(Compare, EqualRequestsPassAndDifferentOnesAreListed) {
  std::vector<Contribution> ranks(3);
  for (Contribution& one : ranks) {
    one.operation = "create";
    one.signature = "f32[4]";
  }
  EXPECT_TRUE(compare(ranks).ok());
  ranks[2].signature = "f32[5]";
  const Status verdict = compare(ranks);
  EXPECT_EQ(verdict.kind, "MismatchError");
  EXPECT_NE(verdict.message.find("rank 0: create(f32[4])"), std::string::npos);
  EXPECT_NE(verdict.message.find("rank 2: create(f32[5])"), std::string::npos);
}

TEST(Compare, ARankThatFailedNeedNoSignatureButTheSameOperation) {
  std::vector<Contribution> ranks(3);
  for (Contribution& one : ranks) {
    one.operation = "create";
    one.signature = "f32[4]";
  }
  ranks[0].signature.clear();
  ranks[0].status = {"ArgumentError", "no such type"};
  EXPECT_TRUE(compare(ranks).ok());
  ranks[0].operation = "barrier";
  EXPECT_EQ(compare(ranks).kind, "MismatchError");
}

}  // namespace
}  // namespace parallel_tensor::exchange
