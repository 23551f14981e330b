/// @file
/// The tensor of every rank as a kernel sees it: one pointer per rank, passed by value.
#pragma once

#include "parallel_tensor/device/qualifiers.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"

namespace parallel_tensor {
inline namespace v1 {

/// In place of a number of ranks: known at run time only, at most `device::maximum_ranks`.
inline constexpr int run_time_size = 0;

/// The memory of N ranks. A plain struct: copy it, pass it to kernels by value. It owns nothing;
/// the buffer that it was made from has to outlive the kernels that use it.
template <typename T, int N = run_time_size>
struct PeerView {
  static_assert(N >= 1 && N <= device::maximum_ranks, "1 to 72 ranks, or run_time_size");

  T* pointers[N];        ///< The memory of each rank, `pointers[rank]` one's own.
  T* multicast_pointer;  ///< Reaches all of them, for multimem instructions only; null where there
                         ///< is none.
  int rank;              ///< The rank that this view belongs to.

  /// The number of ranks.
  PARALLEL_TENSOR_HOST_DEVICE static constexpr int size() { return N; }
};

/// The same for a number of ranks that is known at run time only.
template <typename T>
struct PeerView<T, run_time_size> {
  T* pointers[device::maximum_ranks];
  T* multicast_pointer;
  int rank;
  int rank_count;

  /// The number of ranks.
  PARALLEL_TENSOR_HOST_DEVICE constexpr int size() const { return rank_count; }
};

/// The view of a buffer: anything with `rank()`, `size()`, `peer(r)` and `multicast_pointer()`,
/// such as ParallelBuffer. N must be the buffer's size, or run_time_size. Local; any thread; throws
/// what `peer` throws.
template <typename T, int N = run_time_size, typename Buffer>
PeerView<T, N> peer_view(const Buffer& buffer) {
  PeerView<T, N> view{};
  for (int peer = 0; peer < buffer.size(); ++peer) {
    view.pointers[peer] = reinterpret_cast<T*>(buffer.peer(peer));
  }
  view.multicast_pointer = reinterpret_cast<T*>(buffer.multicast_pointer());
  view.rank = buffer.rank();
  if constexpr (N == run_time_size) {
    view.rank_count = buffer.size();
  }
  return view;
}

}  // namespace v1
}  // namespace parallel_tensor
