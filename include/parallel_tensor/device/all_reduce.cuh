/// @file
/// All-reduce (sum) in place on the memory of every rank, two-shot: each rank reduces one shard of
/// the elements, reading it from all ranks, and stores the result to all ranks.
///
/// Every element is read and written by one thread of one rank, so it works in place, and the
/// results are bitwise equal on all ranks. Sums are accumulated in float, beginning with the
/// shard's own rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_tensor/device/barrier.cuh"
#include "parallel_tensor/device/element.cuh"
#include "parallel_tensor/device/memory_order.cuh"
#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/device/platform.cuh"
#include "parallel_tensor/device/qualifiers.cuh"
#include "parallel_tensor/device/wait.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// The argument of an all-reduce kernel.
template <int N>
struct AllReduceArguments {
  PeerView<std::byte, N> workspace;
  PeerView<std::byte, N> buffer;  ///< The elements of every rank, aligned to the element's size.
  std::uint64_t count;            ///< How many elements each rank has.
  WaitLimits limits;
};

/// The elements [begin, end) that a rank reduces.
struct Shard {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Cuts `count` elements into `size` shards of whole packs (but for the last element's), in rank
/// order; the last shards may be empty. It depends on nothing else, so all ranks agree.
template <typename Element>
PARALLEL_TENSOR_HOST_DEVICE constexpr Shard shard_of(std::uint64_t count, int rank, int size) {
  constexpr std::uint64_t per_pack = sizeof(Pack) / sizeof(Element);
  const std::uint64_t packs = (count + per_pack - 1) / per_pack;
  const std::uint64_t ranks = static_cast<std::uint64_t>(size);
  const std::uint64_t length = (packs + ranks - 1) / ranks * per_pack;
  const std::uint64_t begin = length * static_cast<std::uint64_t>(rank);
  const std::uint64_t end = begin + length;
  return Shard{begin < count ? begin : count, end < count ? end : count};
}

namespace detail {

/// How many packs of each peer one thread keeps in flight: about eight loads in all.
template <int N>
inline constexpr int packs_in_flight = N == run_time_size || N > 4 ? 1 : 8 / N;

/// Reduces one shard. One object per thread.
template <typename Platform, typename Element, int N>
class ShardReducer {
 public:
  PARALLEL_TENSOR_DEVICE ShardReducer(const Platform& platform,
                                      const PeerView<std::byte, N>& buffer)
      : stride_(static_cast<std::uint64_t>(platform.blocks()) * platform.threads()),
        first_(static_cast<std::uint64_t>(platform.block()) * platform.threads() +
               platform.thread()),
        buffer_(buffer) {}

  PARALLEL_TENSOR_DEVICE void reduce(const Shard& shard) const {
    const std::uint64_t length = shard.end - shard.begin;
    std::uint64_t head = elements_before_pack(shard.begin);
    head = head < length ? head : length;
    const std::uint64_t packs = (length - head) / per_pack;
    const std::uint64_t body = shard.begin + head;
    const std::uint64_t tail = body + packs * per_pack;
    reduce_packs(body * sizeof(Element), packs);
    reduce_elements(shard.begin, body);
    reduce_elements(tail, shard.end);
  }

 private:
  using Traits = ElementTraits<Element>;
  static constexpr std::uint64_t per_pack = sizeof(Pack) / sizeof(Element);

  /// The memory of the rank that comes `turn` places after this one: each rank starts with its own,
  /// so that they do not all read from one at the same time.
  PARALLEL_TENSOR_DEVICE std::byte* memory(int turn) const {
    const int next = buffer_.rank + turn;
    return buffer_.pointers[next < buffer_.size() ? next : next - buffer_.size()];
  }

  /// How many elements lie between `index` and the first 16-byte boundary, when that is the same on
  /// all ranks; else more than there are.
  PARALLEL_TENSOR_DEVICE std::uint64_t elements_before_pack(std::uint64_t index) const {
    const std::uint64_t own = misalignment(buffer_.pointers[buffer_.rank], index);
    for (int peer = 0; peer < buffer_.size(); ++peer) {
      if (misalignment(buffer_.pointers[peer], index) != own) {
        return ~std::uint64_t{0};
      }
    }
    return (sizeof(Pack) - own) % sizeof(Pack) / sizeof(Element);
  }

  PARALLEL_TENSOR_DEVICE static std::uint64_t misalignment(const std::byte* base,
                                                           std::uint64_t index) {
    return (reinterpret_cast<std::uintptr_t>(base) + index * sizeof(Element)) % sizeof(Pack);
  }

  PARALLEL_TENSOR_DEVICE void reduce_elements(std::uint64_t begin, std::uint64_t end) const {
    for (std::uint64_t index = begin + first_; index < end; index += stride_) {
      float sum = 0.0F;
      for (int turn = 0; turn < buffer_.size(); ++turn) {
        const float value = Traits::to_float(reinterpret_cast<const Element*>(memory(turn))[index]);
        sum = turn == 0 ? value : sum + value;
      }
      const Element result = Traits::from_float(sum);
      for (int turn = 0; turn < buffer_.size(); ++turn) {
        reinterpret_cast<Element*>(memory(turn))[index] = result;
      }
    }
  }

  /// Reduces `packs` packs that begin `offset` bytes into the memory of every rank.
  PARALLEL_TENSOR_DEVICE void reduce_packs(std::uint64_t offset, std::uint64_t packs) const {
    if constexpr (N == run_time_size) {
      for (std::uint64_t index = first_; index < packs; index += stride_) {
        reduce_pack(offset + index * sizeof(Pack));
      }
    } else {
      std::byte* memories[N];
      for (int turn = 0; turn < N; ++turn) {
        memories[turn] = memory(turn) + offset;
      }
      constexpr int batch = packs_in_flight<N>;
      for (std::uint64_t index = first_; index < packs; index += batch * stride_) {
        reduce_batch<batch>(memories, index, packs);
      }
    }
  }

  /// Reduces the packs index, index + stride, ... that lie below `packs`: all loads before the
  /// first sum.
  template <int Batch>
  PARALLEL_TENSOR_DEVICE void reduce_batch(std::byte* const (&memories)[N == 0 ? 1 : N],
                                           std::uint64_t index, std::uint64_t packs) const {
    Pack loaded[Batch][N == 0 ? 1 : N];
    PARALLEL_TENSOR_UNROLL()
    for (int item = 0; item < Batch; ++item) {
      if (index + item * stride_ < packs) {
        PARALLEL_TENSOR_UNROLL()
        for (int turn = 0; turn < N; ++turn) {
          loaded[item][turn] = load_pack(memories[turn] + (index + item * stride_) * sizeof(Pack));
        }
      }
    }
    PARALLEL_TENSOR_UNROLL()
    for (int item = 0; item < Batch; ++item) {
      if (index + item * stride_ < packs) {
        float sums[per_pack];
        unpack(loaded[item][0], sums);
        PARALLEL_TENSOR_UNROLL()
        for (int turn = 1; turn < N; ++turn) {
          accumulate(loaded[item][turn], sums);
        }
        const Pack result = pack(sums);
        PARALLEL_TENSOR_UNROLL()
        for (int turn = 0; turn < N; ++turn) {
          store_pack(memories[turn] + (index + item * stride_) * sizeof(Pack), result);
        }
      }
    }
  }

  PARALLEL_TENSOR_DEVICE void reduce_pack(std::uint64_t offset) const {
    float sums[per_pack];
    unpack(load_pack(memory(0) + offset), sums);
    PARALLEL_TENSOR_UNROLL(4)
    for (int turn = 1; turn < buffer_.size(); ++turn) {
      accumulate(load_pack(memory(turn) + offset), sums);
    }
    const Pack result = pack(sums);
    for (int turn = 0; turn < buffer_.size(); ++turn) {
      store_pack(memory(turn) + offset, result);
    }
  }

  PARALLEL_TENSOR_DEVICE static void unpack(const Pack& pack, float* values) {
    PARALLEL_TENSOR_UNROLL()
    for (int word = 0; word < 4; ++word) {
      Traits::unpack(pack.words[word], values + word * Traits::per_word);
    }
  }

  PARALLEL_TENSOR_DEVICE static void accumulate(const Pack& pack, float* sums) {
    float values[per_pack];
    unpack(pack, values);
    PARALLEL_TENSOR_UNROLL()
    for (std::uint64_t index = 0; index < per_pack; ++index) {
      sums[index] += values[index];
    }
  }

  PARALLEL_TENSOR_DEVICE static Pack pack(const float* sums) {
    Pack result;
    PARALLEL_TENSOR_UNROLL()
    for (int word = 0; word < 4; ++word) {
      result.words[word] = Traits::pack(sums + word * Traits::per_word);
    }
    return result;
  }

  const std::uint64_t stride_;
  const std::uint64_t first_;
  const PeerView<std::byte, N>& buffer_;
};

}  // namespace detail

/// The whole operation as one block does it. Every rank launches it with the same count and number
/// of blocks.
template <typename Platform, typename Element, int N>
PARALLEL_TENSOR_DEVICE void all_reduce_two_shot(const Platform& platform,
                                                const AllReduceArguments<N>& arguments) {
  BlockBarrier<Platform, N> ranks(platform, arguments.workspace, Channel::all_reduce,
                                  arguments.limits);
  if (!ranks.pass()) {
    return;
  }
  const detail::ShardReducer<Platform, Element, N> reducer(platform, arguments.buffer);
  reducer.reduce(
      shard_of<Element>(arguments.count, arguments.buffer.rank, arguments.buffer.size()));
  if (ranks.pass()) {
    ranks.finish();
  }
}

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
