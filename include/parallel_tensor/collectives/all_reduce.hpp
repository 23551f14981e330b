/// @file
/// All-reduce in place on the memory that a ParallelBuffer holds on every rank.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "parallel_tensor/collectives/algorithm.hpp"
#include "parallel_tensor/collectives/kernels.hpp"
#include "parallel_tensor/collectives/launcher.hpp"
#include "parallel_tensor/device/all_reduce.cuh"
#include "parallel_tensor/dtype.hpp"
#include "parallel_tensor/parallel_buffer.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// What all_reduce_() reduces, and how; the same on all ranks.
struct AllReduceOptions {
  DType dtype;
  std::size_t count = 0;         ///< elements per rank
  std::size_t offset_bytes = 0;  ///< from the start of the buffer to the first element
  Reduction op = Reduction::sum;
  Algorithm algorithm = Algorithm::automatic;
};

namespace collectives {
namespace detail {

inline const KernelsBySize two_shot_f32{{"all_reduce", "pt_all_reduce_two_shot_f32_2"},
                                        {"all_reduce", "pt_all_reduce_two_shot_f32_4"},
                                        {"all_reduce", "pt_all_reduce_two_shot_f32_8"},
                                        {"all_reduce", "pt_all_reduce_two_shot_f32"}};
inline const KernelsBySize two_shot_bf16{{"all_reduce", "pt_all_reduce_two_shot_bf16_2"},
                                         {"all_reduce", "pt_all_reduce_two_shot_bf16_4"},
                                         {"all_reduce", "pt_all_reduce_two_shot_bf16_8"},
                                         {"all_reduce", "pt_all_reduce_two_shot_bf16"}};

inline constexpr unsigned int all_reduce_threads = 512;
/// Enough to saturate an H200: its two-shot kernels ran best with 16 to 64 blocks (measured).
inline constexpr int all_reduce_blocks = 64;

/// One pack per thread while there are blocks for it; depends on nothing that ranks could see
/// differently.
inline unsigned int two_shot_blocks(std::size_t bytes, int size, int limit) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  const std::size_t per_block = ranks * all_reduce_threads * sizeof(device::Pack);
  const std::size_t wanted = bytes / per_block + (bytes % per_block != 0);
  const int most = std::max(1, std::min(limit, all_reduce_blocks));
  return static_cast<unsigned int>(
      std::clamp(wanted, std::size_t{1}, static_cast<std::size_t>(most)));
}

inline const KernelsBySize& kernels_for(const AllReduceOptions& options) {
  if (options.op != Reduction::sum) {
    throw NotSupportedError("all_reduce_ with op=\"" + std::string(name_of(options.op)) +
                            "\": this version reduces with \"sum\".");
  }
  if (options.algorithm != Algorithm::automatic && options.algorithm != Algorithm::two_shot) {
    throw NotSupportedError("all_reduce_ with algorithm=\"" +
                            std::string(name_of(options.algorithm)) +
                            "\": this version has \"two_shot\", which \"auto\" chooses.");
  }
  if (options.dtype == DType{2, 32}) return two_shot_f32;
  if (options.dtype == DType{4, 16}) return two_shot_bf16;
  throw NotSupportedError("all_reduce_ of " + name_of(options.dtype) +
                          ": this version reduces float32 and bfloat16.");
}

inline void check_range(const ParallelBuffer& buffer, const AllReduceOptions& options) {
  const std::size_t size = options.dtype.size();
  if (options.offset_bytes > buffer.bytes() ||
      options.count > (buffer.bytes() - options.offset_bytes) / size) {
    throw ArgumentError("all_reduce_ of " + std::to_string(options.count) + " elements of " +
                        name_of(options.dtype) + " from byte " +
                        std::to_string(options.offset_bytes) + " on: the buffer has " +
                        std::to_string(buffer.bytes()) + " bytes per rank.");
  }
  for (int rank = 0; rank < buffer.size(); ++rank) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.peer(rank)) + options.offset_bytes;
    if (options.count > 0 && address % size != 0) {
      throw ArgumentError("all_reduce_ of " + name_of(options.dtype) + ": the elements of rank " +
                          std::to_string(rank) + " begin at an address that is no multiple of " +
                          std::to_string(size) + " bytes. Share a tensor that is aligned.");
    }
  }
}

inline std::string signature_of(const AllReduceOptions& options) {
  return name_of(options.dtype) + ", " + std::to_string(options.count) + " elements from byte " +
         std::to_string(options.offset_bytes) + ", op " + std::string(name_of(options.op)) +
         ", algorithm " + std::string(name_of(options.algorithm));
}

template <int N>
device::AllReduceArguments<N> arguments_of(const Launcher& launcher, const ParallelBuffer& buffer,
                                           const AllReduceOptions& options) {
  device::AllReduceArguments<N> arguments{launcher.workspace_view<N>(),
                                          peer_view<std::byte, N>(buffer), options.count,
                                          launcher.limits()};
  for (int rank = 0; rank < buffer.size(); ++rank) {
    arguments.buffer.pointers[rank] += options.offset_bytes;
  }
  return arguments;
}

}  // namespace detail
}  // namespace collectives

/// Replaces the elements of every rank by their sum over all ranks, bitwise equal everywhere.
/// Collective: every rank calls it with the same options, in the same order among the group's
/// all-reduces, on a buffer made by the same call. Ordered on the stream like a kernel; does not
/// wait on the host, except on the emulated driver, where it is done when this returns. May be
/// captured in a CUDA graph, not as the group's first use; the caller orders replays of that graph
/// with other calls. Any thread; ranks that are threads of one process pass streams of their own.
/// The buffer has to live until the work is done.
/// @throws ArgumentError for a range outside the buffer
/// @throws NotSupportedError for what this version does not reduce, or a driver before CUDA 13.0
/// @throws MismatchError, PeerError where arguments are compared: on the emulated driver, and with
///     PARALLEL_TENSOR_DEBUG=1
/// @throws TimeoutError, PeerError of an earlier operation, or of this one on the emulated driver
/// @throws DriverError from the launch
inline void all_reduce_(const ParallelBuffer& buffer, const AllReduceOptions& options,
                        CUstream stream) {
  Group& group = *buffer.group();
  group.check();
  const auto launcher = collectives::Launcher::of(group);
  const auto turn = launcher->turn(device::Channel::all_reduce);
  const collectives::Kernel* kernel = nullptr;
  launcher->agree(
      group, "all_reduce_", [&] { return collectives::detail::signature_of(options); },
      [&] {
        kernel = &collectives::detail::kernels_for(options).of(buffer.size());
        collectives::detail::check_range(buffer, options);
        kernel->get();
      });
  if (options.count == 0 || buffer.size() == 1) return;
  const driver::LaunchShape shape{
      collectives::detail::two_shot_blocks(options.count * options.dtype.size(), buffer.size(),
                                           launcher->workspace().block_limit()),
      collectives::detail::all_reduce_threads};
  collectives::with_size(buffer.size(), [&]<int N>() {
    launcher->launch(group, turn, device::Channel::all_reduce, *kernel, shape, stream,
                     collectives::detail::arguments_of<N>(*launcher, buffer, options));
  });
}

}  // namespace v1
}  // namespace parallel_tensor
