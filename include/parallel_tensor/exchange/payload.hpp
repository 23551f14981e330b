/// @file
/// The bodies of requests and answers: what the ranks say, and what the hub makes of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel_tensor/exchange/board.hpp"
#include "parallel_tensor/exchange/message.hpp"
#include "parallel_tensor/exchange/serialize.hpp"
#include "parallel_tensor/exchange/wire.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

inline constexpr std::size_t max_payload_bytes = 16 << 20;
inline constexpr std::size_t max_signature_bytes = 64 << 10;
inline constexpr std::size_t max_status_bytes = 16 << 10;
inline constexpr std::size_t max_descriptors = 1 << 16;

inline constexpr MessageLimits request_limits{
    max_payload_bytes + 2 * max_signature_bytes + 2 * max_status_bytes + 64, max_descriptors};

/// The largest answer: everything that the ranks may send, and a list of what each asked.
inline MessageLimits answer_limits(int size) {
  const auto ranks = static_cast<std::uint64_t>(size) + 1;
  return {ranks * request_limits.bytes, static_cast<std::uint32_t>(ranks * max_descriptors)};
}

/// One rank's part of an operation, checked and owned.
struct Contribution {
  std::string operation;
  std::string signature;
  std::string payload;
  Status status;
  std::vector<posix::Descriptor> descriptors;
};

inline std::string encode_request(const Contribution& own) {
  Writer writer;
  writer.reserve(own.payload.size() + own.signature.size() + 256);
  writer.text(own.operation);
  writer.text(own.signature);
  writer.text(std::string_view(own.status.kind).substr(0, max_status_bytes));
  writer.text(std::string_view(own.status.message).substr(0, max_status_bytes));
  writer.text(own.payload);
  return writer.take();
}

/// @throws ExchangeError when the body is something else
inline Contribution decode_request(IncomingMessage& message) {
  Reader reader(message.body());
  Contribution contribution;
  contribution.operation = reader.text();
  contribution.signature = reader.text();
  contribution.status.kind = reader.text();
  contribution.status.message = reader.text();
  contribution.payload = reader.text();
  reader.finish();
  contribution.descriptors = message.take_descriptors();
  return contribution;
}

/// What the hub decided: ok, "MismatchError" for all, or the hub's own failure to serve the ranks.
inline Status compare(const std::vector<Contribution>& ranks) {
  bool equal = true;
  const Contribution* first_ok = nullptr;
  for (const Contribution& one : ranks) {
    equal = equal && one.operation == ranks[0].operation;
    // A rank that failed may not have got as far as knowing its signature.
    if (!one.status.ok()) continue;
    if (first_ok == nullptr) first_ok = &one;
    equal = equal && one.signature == first_ok->signature;
  }
  if (equal) return {};
  std::string text = "the ranks called different things:";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Contribution& one = ranks[rank];
    text += " rank " + std::to_string(rank) + ": " + one.operation + "(" +
            one.signature.substr(0, 512) + ")";
    if (!one.status.ok()) text += " failed with " + one.status.kind;
    text += rank + 1 < ranks.size() ? ";" : ".";
  }
  text += " Make the same calls with the same arguments in the same order on every rank.";
  return {"MismatchError", text};
}

/// The body that every rank gets. Without a verdict of ok it holds the verdict alone.
inline std::string encode_answer(const Status& verdict, const std::vector<Contribution>& ranks) {
  Writer writer;
  std::size_t bytes = 256;
  for (const Contribution& one : ranks) bytes += one.payload.size() + 64;
  if (verdict.ok()) writer.reserve(bytes);
  writer.text(verdict.kind);
  writer.text(verdict.message);
  if (!verdict.ok()) return writer.take();
  for (const Contribution& one : ranks) {
    writer.text(one.status.kind);
    writer.text(one.status.message);
    writer.integer(static_cast<std::uint32_t>(one.descriptors.size()));
    writer.text(one.payload);
  }
  return writer.take();
}

/// Takes an answer apart; `own` supplies the descriptors of this rank, which the hub does not send
/// back. Returns the verdict; with a verdict of ok, `answers` has one entry per rank.
/// @throws ExchangeError when the body is something else
inline Status decode_answer(IncomingMessage& message, int rank, int size, Contribution& own,
                            std::vector<Answer>& answers) {
  Reader reader(message.body());
  Status verdict;
  verdict.kind = reader.text();
  verdict.message = reader.text();
  std::vector<posix::Descriptor> descriptors = message.take_descriptors();
  if (verdict.ok()) {
    std::size_t next = 0;
    answers.resize(static_cast<std::size_t>(size));
    for (int from = 0; from < size; ++from) {
      Answer& answer = answers[static_cast<std::size_t>(from)];
      answer.status.kind = reader.text();
      answer.status.message = reader.text();
      const auto count = reader.integer<std::uint32_t>();
      answer.payload = reader.text();
      if (from == rank) {
        answer.descriptors = std::move(own.descriptors);
        continue;
      }
      if (message.descriptors_lost()) continue;
      if (count > descriptors.size() - next) {
        throw ExchangeError("the hub sent fewer descriptors than it announced", "protocol");
      }
      for (std::uint32_t i = 0; i < count; ++i) {
        answer.descriptors.push_back(std::move(descriptors[next++]));
      }
    }
  }
  reader.finish();
  return verdict;
}

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
