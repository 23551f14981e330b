/// @file
/// One piece of memory per rank, all of them addressable here: the exchange on which buffers,
/// workspaces and arenas stand.
///
/// Every rank offers its own pieces, the offers cross in one all-gather, every rank maps its peers'
/// pieces, and a second round tells whether all succeeded: either every rank gets its result or
/// every rank raises and nothing is left behind.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/exchange/group.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"
#include "parallel_tensor/offer.hpp"
#include "parallel_tensor/peer_mapping.hpp"
#include "parallel_tensor/retirement.hpp"
#include "parallel_tensor/spares.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// Microseconds that each step of a creation took on this rank: "allocate", "exchange", "map",
/// "agree".
using Timings = std::map<std::string, double>;

/// The result of an exchange: one PeerMemory per offered piece, and every rank's device.
struct ExchangedMemory {
  driver::Device device;  ///< this rank's
  std::vector<PeerMemory> memories{};
  std::vector<PeerDevice> devices{};
};

/// Makes this rank's pieces on its device; it may take spare memory.
using PreparePieces = std::function<std::vector<OwnPiece>(const driver::Device&, Spares&)>;

namespace detail {

// One owner that holds two.
inline std::shared_ptr<const void> both(std::shared_ptr<const void> first,
                                        std::shared_ptr<const void> second) {
  using Pair = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  return std::make_shared<const Pair>(std::move(first), std::move(second));
}

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Runs one rank's part of a step that all ranks take, and keeps its error until all have answered.
template <typename Part>
std::exception_ptr attempt(Part part) {
  try {
    part();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

inline Status status_of(const std::exception_ptr& error) {
  return error ? Status::of(error) : Status{};
}

/// One exchange of memory on one rank, step by step. A step that fails here is kept, and told to
/// the others in the next round; only then is it raised.
class MemoryExchange {
 public:
  MemoryExchange(Group& group, const std::string& operation, const std::string& signature,
                 Timings& timings)
      : group_(group),
        own_rank_(static_cast<std::size_t>(group.rank())),
        operation_(operation),
        signature_(signature),
        retirement_(Retirement::of(group)),
        timings_(timings) {}

  ExchangedMemory run(std::optional<int> ordinal, const PreparePieces& prepare) {
    failure_ = attempt([&] {
      device_ = ordinal ? driver::Device::at(*ordinal) : driver::Device::current();
      driver::ContextGuard guard(*device_);
      Spares spares(retirement_->group_identity());
      own_ = prepare(*device_, spares);
    });
    timings_["allocate"] = watch_.lap();
    offer(operation_);
    if (!failure_ && must_allocate()) {
      failure_ = attempt([&] { allocate_in_place_of_spares(); });
      offer(operation_ + ": allocate");
    }
    for (OwnPiece& piece : own_) piece.descriptor.reset();
    timings_["exchange"] = watch_.lap();
    ExchangedMemory result{.device = *device_};
    if (!failure_) failure_ = attempt([&] { map(result); });
    timings_["map"] = watch_.lap();
    agree();
    timings_["agree"] = watch_.lap();
    number(result);
    return result;
  }

 private:
  // A round in which every rank tells what it offers, or how it failed.
  void offer(const std::string& step) {
    Request request{.operation = step, .signature = signature_};
    if (!failure_) {
      failure_ = attempt([&] {
        request.payload = serialize(*device_, own_);
        for (const OwnPiece& piece : own_) {
          if (piece.descriptor) request.descriptors.push_back(piece.descriptor.get());
        }
      });
    }
    request.status = status_of(failure_);
    try {
      answers_ = group_.all_gather(request);
    } catch (const ExchangeError& error) {
      // A rank at its descriptor limit may be the only one that did not get the answers: the others
      // go on to the next round, and hear of it there.
      const bool alone = error.phase() == "receive" && !group_.broken() && own_rank_ != 0;
      if (failure_ || !alone) throw;
      failure_ = std::current_exception();
      return;
    }
    if (failure_) std::rethrow_exception(failure_);
    group_.require_ok(answers_, operation_);
    failure_ = attempt([&] {
      offers_.clear();
      for (std::size_t rank = 0; rank < answers_.size(); ++rank) {
        offers_.push_back(parse(answers_[rank], static_cast<int>(rank), own_.size()));
      }
    });
  }

  std::vector<const OfferEntry*> entries_of(std::size_t piece) const {
    std::vector<const OfferEntry*> entries;
    for (const Offers& offers : offers_) entries.push_back(&offers.entries[piece]);
    return entries;
  }

  // Whether a rank waits with memory that not all can use again. All ranks decide alike.
  bool must_allocate() const {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      const auto entries = entries_of(i);
      const bool waits = std::any_of(entries.begin(), entries.end(),
                                     [](const OfferEntry* entry) { return entry->spares[0] != 0; });
      if (waits && common_spare(entries) == 0) return true;
    }
    return false;
  }

  void allocate_in_place_of_spares() {
    driver::ContextGuard guard(*device_);
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!own_[i].spares.empty() && common_spare(entries_of(i)) == 0) own_[i].allocate(*device_);
    }
  }

  void map(ExchangedMemory& result) {
    driver::ContextGuard guard(*device_);
    for (const Offers& offers : offers_) {
      PeerDevice& peer = result.devices.emplace_back();
      std::memcpy(peer.uuid.bytes.data(), offers.header.uuid, sizeof offers.header.uuid);
      peer.multiprocessors = offers.header.multiprocessors;
    }
    std::vector<std::size_t> next_descriptor(answers_.size(), 0);
    for (std::size_t i = 0; i < own_.size(); ++i) {
      const auto entries = entries_of(i);
      if (const std::uint64_t spare = common_spare(entries)) {
        result.memories.push_back(use_again(*device_, own_rank_, own_[i], entries, spare));
        continue;
      }
      std::vector<RankOffer> of_memory;
      for (std::size_t rank = 0; rank < answers_.size(); ++rank) {
        RankOffer& offer =
            of_memory.emplace_back(RankOffer{&offers_[rank].header, entries[rank], {}});
        if (entries[rank]->flavor != memory::Flavor::descriptor) continue;
        offer.descriptor = std::move(answers_[rank].descriptors[next_descriptor[rank]++]);
      }
      result.memories.push_back(
          map_memory(*device_, own_rank_, own_[i], of_memory, result.devices));
    }
  }

  // The round in which every rank tells how it ended.
  void agree() {
    const std::vector<Answer> answers =
        retirement_->all_gather(group_, {.operation = operation_ + ": map",
                                         .signature = signature_,
                                         .status = status_of(failure_)});
    if (failure_) std::rethrow_exception(failure_);
    group_.require_ok(answers, operation_);
  }

  // From here on every rank has the same memories: they are numbered alike.
  void number(ExchangedMemory& result) {
    for (PeerMemory& memory : result.memories) {
      memory.number = retirement_->number();
      if (memory.mapped) {
        memory.mapped->number = memory.number;
        memory.mapped->group = retirement_->group_identity();
        memory.mapped->range = memory.mapped->mappings[own_rank_].bytes();
        memory.mapped.reset();  // the pieces own it
      }
      if (!memory.legacy_anywhere) continue;
      std::shared_ptr<const void>& storage = memory.pieces[own_rank_].owner;
      auto token = retirement_->keep(memory.number, std::exchange(storage, nullptr), *device_);
      for (PeerPiece& piece : memory.pieces) piece.owner = both(token, std::move(piece.owner));
    }
  }

  Group& group_;
  const std::size_t own_rank_;
  const std::string& operation_;
  const std::string& signature_;
  const std::shared_ptr<Retirement> retirement_;
  Timings& timings_;
  Stopwatch watch_;
  std::optional<driver::Device> device_;
  std::vector<OwnPiece> own_;
  std::vector<Answer> answers_;
  std::vector<Offers> offers_;
  std::exception_ptr failure_;
};

}  // namespace detail

/// Offers this rank's pieces and maps every peer's. Collective.
/// @param ordinal this rank's device; the current one if there is none given.
/// @param operation,signature compared between ranks.
/// @param prepare what it throws is this rank's failure.
/// @throws what this rank's own part threw; PeerError when another rank failed; MismatchError,
///     TimeoutError. After a failure nothing is left behind on any rank.
inline ExchangedMemory exchange_memory(Group& group, std::optional<int> ordinal,
                                       const std::string& operation, const std::string& signature,
                                       const PreparePieces& prepare, Timings& timings) {
  group.check();
  try {
    return detail::MemoryExchange(group, operation, signature, timings).run(ordinal, prepare);
  } catch (...) {
    if (driver::library_loaded()) {
      detail::attempt([] { memory::Reclaimer::instance().collect(std::chrono::milliseconds(10)); });
    }
    throw;
  }
}

}  // namespace v1
}  // namespace parallel_tensor
