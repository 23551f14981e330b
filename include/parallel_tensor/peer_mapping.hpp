/// @file
/// Makes every rank's piece of a memory addressable here, from what the ranks offered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/memory/fill.hpp"
#include "parallel_tensor/memory/legacy_handle.hpp"
#include "parallel_tensor/memory/mapping.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"
#include "parallel_tensor/offer.hpp"
#include "parallel_tensor/spares.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// The memory of one rank as it is addressed here; the owner keeps it addressable.
struct PeerPiece {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<const void> owner;
};

/// One piece per rank.
struct PeerMemory {
  std::vector<PeerPiece> pieces;
  std::shared_ptr<MappedMemory> mapped;          ///< what owns all pieces, where we made them all
  memory::Flavor flavor = memory::Flavor::none;  ///< of this rank's piece
  bool legacy_anywhere = false;                  ///< whether any rank's piece is legacy memory
  std::uint64_t number = 0;  ///< the same on all ranks, another one for each memory of a group
};

/// What a rank knows about each rank's device, from the same exchange.
struct PeerDevice {
  driver::DeviceUuid uuid;
  std::uint32_t multiprocessors = 0;
};

namespace detail {

// Which path failed, for the errors of the driver, which speak of ordinals of this process only.
inline std::string path_text(const driver::Device& device, const driver::DeviceUuid& exporter,
                             int rank) {
  return " It was rank " + std::to_string(rank) + "'s memory on " + exporter.text() +
         ", to be mapped for " + device.uuid().text() +
         (exporter == device.uuid() ? "."
                                    : "; check that the two can reach each other (nvidia-smi "
                                      "topo -p2p r).");
}

// Runs a step on another rank's memory and adds to its errors whose it was.
template <typename Step>
auto on_path(const driver::Device& device, const driver::DeviceUuid& exporter, int rank,
             Step step) {
  try {
    return step();
  } catch (const OutOfMemoryError& error) {
    throw OutOfMemoryError(error.what() + path_text(device, exporter, rank), error.call(),
                           error.code(), error.name());
  } catch (const DriverError& error) {
    throw DriverError(error.what() + path_text(device, exporter, rank), error.call(), error.code(),
                      error.name());
  }
}

inline PeerPiece open_legacy(const driver::Device& device, const OfferHeader& header,
                             const OfferEntry& entry) {
  PeerPiece piece{nullptr, entry.bytes, nullptr};
  if (header.process == memory::process_identity()) {
    // The driver refuses to open a handle in the process that made it: ranks that are threads of
    // one process use the address itself.
    piece.pointer = reinterpret_cast<std::byte*>(entry.base) + entry.offset;
    return piece;
  }
  auto opened = memory::open_legacy_handle(entry.legacy, device);
  piece.pointer = static_cast<std::byte*>(opened->pointer()) + entry.offset;
  piece.owner = std::move(opened);
  return piece;
}

// What every rank offered for one memory: the entry, and its descriptor where it has one.
struct RankOffer {
  const OfferHeader* header;
  const OfferEntry* entry;
  posix::Descriptor descriptor;
};

// The number of the memory that every rank could use again; 0 when there is none.
inline std::uint64_t common_spare(const std::vector<const OfferEntry*>& entries) {
  std::uint64_t best = 0;
  for (const std::uint64_t number : entries.front()->spares) {
    const bool everywhere =
        std::all_of(entries.begin(), entries.end(), [&](const OfferEntry* entry) {
          return std::count(std::begin(entry->spares), std::end(entry->spares), number) > 0;
        });
    if (everywhere) best = std::max(best, number);
  }
  return best;
}

// Lets the pieces of a memory point into mappings of all ranks' memory, which they own together.
inline void use_mapped(MappedMemory mapped, const driver::Device& device, PeerMemory& memory) {
  memory.mapped = memory::reclaimed(std::move(mapped), device);
  for (std::size_t rank = 0; rank < memory.pieces.size(); ++rank) {
    memory.pieces[rank].pointer = memory.mapped->mappings[rank].pointer();
    memory.pieces[rank].owner = memory.mapped;
  }
}

// Takes memory that all ranks have dropped as the new one.
inline PeerMemory use_again(const driver::Device& device, std::size_t own_rank, OwnPiece& own,
                            const std::vector<const OfferEntry*>& entries, std::uint64_t number) {
  PeerMemory result;
  result.flavor = memory::Flavor::descriptor;
  for (const OfferEntry* entry : entries) {
    result.pieces.push_back({nullptr, static_cast<std::size_t>(entry->bytes), nullptr});
  }
  const auto spare = std::find_if(own.spares.begin(), own.spares.end(),
                                  [&](const auto& one) { return one.number == number; });
  spare->number = 0;
  use_mapped(std::move(*spare), device, result);
  const PeerPiece& mine = result.pieces[own_rank];
  memory::fill(device, mine.pointer, mine.bytes, own.pattern);
  return result;
}

// Addresses every rank's piece of one memory. `own` is this rank's, the others' come by `offers`.
inline PeerMemory map_memory(const driver::Device& device, std::size_t own_rank, OwnPiece& own,
                             std::vector<RankOffer>& offers,
                             const std::vector<PeerDevice>& devices) {
  const std::size_t ranks = offers.size();
  PeerMemory result;
  result.flavor = own.info.flavor;
  result.pieces.resize(ranks);
  std::vector<std::optional<memory::Allocation>> imported(ranks);
  // Each rank begins with the next one, so that not all of them ask for the same memory at once.
  for (std::size_t step = 0; step < ranks; ++step) {
    const std::size_t rank = (own_rank + step) % ranks;
    RankOffer& offer = offers[rank];
    PeerPiece& piece = result.pieces[rank];
    piece.bytes = offer.entry->bytes;
    result.legacy_anywhere |= offer.entry->flavor == memory::Flavor::legacy;
    if (rank == own_rank) {
      imported[rank] = std::move(own.allocation);
      piece = {own.pointer, own.bytes, std::move(own.owner)};
    } else if (offer.entry->flavor == memory::Flavor::descriptor) {
      on_path(device, devices[rank].uuid, static_cast<int>(rank), [&] {
        imported[rank].emplace(memory::Allocation::import(offer.descriptor, offer.entry->range));
      });
    } else if (offer.entry->flavor == memory::Flavor::legacy) {
      piece = on_path(device, devices[rank].uuid, static_cast<int>(rank),
                      [&] { return open_legacy(device, *offer.header, *offer.entry); });
    }
    offer.descriptor.reset();  // an open descriptor keeps the memory taken
  }

  std::vector<memory::Allocation> allocations;
  std::vector<std::size_t> their_rank;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (!imported[rank]) continue;
    allocations.push_back(std::move(*imported[rank]));
    their_rank.push_back(rank);
  }
  MappedMemory mapped{.mappings =
                          memory::Mapping::map(std::move(allocations), device, [&](std::size_t i) {
                            const std::size_t rank = their_rank[i];
                            return std::to_string(offers[rank].entry->range) + " bytes;" +
                                   path_text(device, devices[rank].uuid, static_cast<int>(rank));
                          })};
  if (mapped.mappings.size() == ranks) {
    use_mapped(std::move(mapped), device, result);
  } else {
    for (std::size_t i = 0; i < mapped.mappings.size(); ++i) {
      const std::size_t rank = their_rank[i];
      PeerPiece& piece = result.pieces[rank];
      piece.pointer =
          static_cast<std::byte*>(mapped.mappings[i].pointer()) + offers[rank].entry->offset;
      piece.owner = memory::reclaimed(std::move(mapped.mappings[i]), device);
    }
  }
  // After it is the reclaimer's: a fill that fails may leave work behind that still runs.
  const PeerPiece& mine = result.pieces[own_rank];
  memory::fill(device, mine.pointer, mine.bytes, own.pattern);
  return result;
}

}  // namespace detail
}  // namespace v1
}  // namespace parallel_tensor
