/// @file
/// What a rank offers to its peers: its pieces of memory, and the form in which they cross.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/exchange/message.hpp"
#include "parallel_tensor/memory/allocation.hpp"
#include "parallel_tensor/memory/legacy_handle.hpp"
#include "parallel_tensor/memory/pointer_info.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"
#include "parallel_tensor/spares.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// A piece of this rank's memory, ready to be offered.
struct OwnPiece {
  std::size_t bytes = 0;
  std::optional<memory::Allocation> allocation{};  ///< of new memory, which has no address yet
  std::vector<MappedMemory> spares{};              ///< or what could be used again in its place
  std::string pattern{};                ///< repeated over new memory before any peer can see it
  void* pointer = nullptr;              ///< of existing memory
  std::shared_ptr<const void> owner{};  ///< keeps existing memory alive
  memory::PointerInfo info{};           ///< flavor none: nothing to map
  posix::Descriptor descriptor{};
  memory::LegacyHandle legacy{};

  /// New memory of this device, `bytes` rounded up to the granularity.
  /// @param pattern its initial contents; empty leaves them as they are.
  /// @param from where memory to use again is looked for; may be null.
  static OwnPiece make(const driver::Device& device, std::size_t bytes, std::string pattern,
                       Spares* from) {
    OwnPiece own{.bytes = bytes, .pattern = std::move(pattern)};
    if (bytes == 0) return own;
    own.info.range = memory::round_up(bytes, memory::allocation_granularity(device));
    if (from) own.spares = from->take(own.info.range);
    if (own.spares.empty()) own.allocate(device);
    return own;
  }

  /// Allocates new memory in place of spare memory that could not be used again.
  void allocate(const driver::Device& device) {
    spares.clear();
    allocation = memory::Allocation::create(device, info.range);
    descriptor = allocation->export_descriptor();
    info.flavor = memory::Flavor::descriptor;
  }

  /// Existing device memory. @param owner keeps it alive while anything of the result lives.
  static OwnPiece existing(const driver::Device& device, void* pointer, std::size_t bytes,
                           std::shared_ptr<const void> owner) {
    OwnPiece own{.bytes = bytes, .pointer = pointer};
    // Our kernels may still use the memory when it is dropped, and the owner may be an object that
    // must not be released just anywhere: both are what the reclaimer is for.
    own.owner = memory::reclaimed(std::move(owner), device);
    if (bytes == 0) return own;
    driver::ContextGuard guard(device);
    own.info = memory::pointer_info(pointer, bytes);
    if (own.info.ordinal != device.ordinal()) {
      throw ArgumentError("share: the memory is on device " + std::to_string(own.info.ordinal) +
                          ", this rank works on device " + std::to_string(device.ordinal()) + ".");
    }
    if (own.info.flavor == memory::Flavor::legacy) {
      own.legacy = memory::LegacyHandle::of(device, own.info.base, own.info.id);
    } else {
      own.descriptor = memory::Allocation::retain(pointer, own.info.range).export_descriptor();
    }
    return own;
  }
};

namespace detail {

// The wire form of the offers of one rank: a header, then one entry per piece; the descriptors
// follow in the order of the pieces that have one.
struct OfferHeader {
  std::uint32_t form = 1;
  std::uint32_t pieces = 0;
  std::uint64_t process = 0;
  unsigned char uuid[16] = {};
  std::uint32_t multiprocessors = 0;
  std::uint32_t reserved = 0;
};
struct OfferEntry {
  memory::Flavor flavor = memory::Flavor::none;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t range = 0;
  std::uint64_t base = 0;
  std::uint64_t spares[Spares::most] = {};  // numbers of memory that could be used again
  memory::LegacyHandle legacy;
};
static_assert(std::is_trivially_copyable_v<OfferHeader> &&
              std::is_trivially_copyable_v<OfferEntry>);

inline std::string serialize(const driver::Device& device, const std::vector<OwnPiece>& pieces) {
  OfferHeader header;
  header.pieces = static_cast<std::uint32_t>(pieces.size());
  header.process = memory::process_identity();
  std::memcpy(header.uuid, device.uuid().bytes.data(), sizeof header.uuid);
  header.multiprocessors =
      static_cast<std::uint32_t>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const OwnPiece& own : pieces) {
    OfferEntry entry;
    entry.flavor = own.info.flavor;
    entry.bytes = own.bytes;
    entry.offset = own.info.offset;
    entry.range = own.info.range;
    entry.base = own.info.base;
    for (std::size_t i = 0; i < own.spares.size(); ++i) entry.spares[i] = own.spares[i].number;
    entry.legacy = own.legacy;
    bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  return bytes;
}

struct Offers {
  OfferHeader header;
  std::vector<OfferEntry> entries;
};

inline Offers parse(const Answer& answer, int rank, std::size_t expected) {
  Offers offers;
  const std::string& bytes = answer.payload;
  bool right = bytes.size() >= sizeof(OfferHeader);
  if (right) {
    std::memcpy(&offers.header, bytes.data(), sizeof(OfferHeader));
    right = offers.header.form == 1 && offers.header.pieces == expected &&
            bytes.size() == sizeof(OfferHeader) + expected * sizeof(OfferEntry);
  }
  if (!right) {
    throw ExchangeError("Rank " + std::to_string(rank) +
                            " sent offers in another form; all ranks must "
                            "use the same version of parallel-tensor.",
                        "exchange");
  }
  offers.entries.resize(offers.header.pieces);
  std::size_t descriptors = 0;
  for (std::size_t i = 0; i < offers.entries.size(); ++i) {
    std::memcpy(&offers.entries[i], bytes.data() + sizeof(OfferHeader) + i * sizeof(OfferEntry),
                sizeof(OfferEntry));
    descriptors += offers.entries[i].flavor == memory::Flavor::descriptor;
  }
  if (descriptors != answer.descriptors.size()) {
    throw ExchangeError("Rank " + std::to_string(rank) + " offered " + std::to_string(descriptors) +
                            " descriptors and " + std::to_string(answer.descriptors.size()) +
                            " arrived.",
                        "exchange");
  }
  return offers;
}

}  // namespace detail
}  // namespace v1
}  // namespace parallel_tensor
