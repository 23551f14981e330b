/// @file
/// Where the words of the device protocols lie in the workspace memory of a rank, and the status
/// that a kernel leaves for the host.
///
/// A workspace starts zeroed. Its peers write the signal words, only its own rank writes the rest:
///
///     0                       failed word: the state of the first wait that ended without its
///     signal epochs_offset()         epoch[channel][block] signals_offset()
///     signal[channel][block][source rank], each row on cache lines of its own control_bytes(size)
///     end; scratch memory may follow
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_tensor/device/qualifiers.cuh"

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// The most ranks that a kernel argument can name.
inline constexpr int maximum_ranks = 72;
/// The most blocks of one launch that may take part in a protocol.
inline constexpr int maximum_blocks = 128;
/// The most kinds of operation that have signals of their own.
inline constexpr int maximum_channels = 8;

/// One kind of operation; its signals and epochs are never shared with another kind.
enum class Channel : std::uint32_t { barrier = 0, all_reduce = 1 };

namespace detail {
inline constexpr std::size_t line_bytes = 128;

PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t round_to_lines(std::size_t bytes) {
  return (bytes + line_bytes - 1) / line_bytes * line_bytes;
}

PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t row_index(Channel channel, unsigned int block) {
  return static_cast<std::size_t>(channel) * maximum_blocks + block;
}
}  // namespace detail

/// Byte offset of the failed word.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t failed_offset() { return 0; }

/// Byte offset of the first epoch.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t epochs_offset() { return detail::line_bytes; }

/// Byte offset of the epoch of one block of one channel.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t epoch_offset(Channel channel,
                                                               unsigned int block) {
  return epochs_offset() + detail::row_index(channel, block) * sizeof(std::uint32_t);
}

/// Byte offset of the first signal.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t signals_offset() {
  return epochs_offset() +
         detail::round_to_lines(sizeof(std::uint32_t) * maximum_channels * maximum_blocks);
}

/// Byte offset of the signals of one block of one channel: one word per source rank.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t signal_row_offset(Channel channel,
                                                                    unsigned int block, int size) {
  return signals_offset() +
         detail::row_index(channel, block) *
             detail::round_to_lines(static_cast<std::size_t>(size) * sizeof(std::uint32_t));
}

/// Byte offset of the word that `source` writes for one block of one channel.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t signal_offset(Channel channel, unsigned int block,
                                                                int source, int size) {
  return signal_row_offset(channel, block, size) +
         static_cast<std::size_t>(source) * sizeof(std::uint32_t);
}

/// Bytes that the failed word, the epochs and the signals take for a group of `size` ranks.
PARALLEL_TENSOR_HOST_DEVICE constexpr std::size_t control_bytes(int size) {
  return signals_offset() +
         static_cast<std::size_t>(maximum_channels) * maximum_blocks *
             detail::round_to_lines(static_cast<std::size_t>(size) * sizeof(std::uint32_t));
}

/// How a wait of a kernel ended.
enum class WaitState : std::uint32_t {
  none = 0,       ///< No wait has failed.
  timed_out = 1,  ///< The signal did not come within the limit.
  aborted = 2,    ///< The host set the abort word.
};

/// Memory that the host and the kernels of one rank share (mapped host memory), zero at the start.
/// The host writes `abort` only; the first wait that fails writes the rest once, `state` last and
/// with release order, so that a host that reads `state` with acquire order may read the other
/// fields.
struct alignas(64) WaitStatus {
  std::uint32_t abort;      ///< Not zero: every wait of this rank ends.
  std::uint32_t state;      ///< A WaitState.
  std::int32_t rank;        ///< The rank that waited.
  std::int32_t peer;        ///< The rank whose signal did not come.
  std::uint32_t channel;    ///< A Channel.
  std::uint32_t block;      ///< The block that waited.
  std::uint32_t epoch;      ///< The epoch that was waited for.
  std::uint32_t seen;       ///< The epoch that was there instead.
  std::uint64_t waited_ns;  ///< How long that wait took.
};
static_assert(sizeof(WaitStatus) == 64);

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
