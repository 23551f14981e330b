// The entry points of the barrier between ranks: specialised for common numbers of ranks, and the
// run-time form.
#include "parallel_tensor/device/barrier.cuh"

using parallel_tensor::run_time_size;
using namespace parallel_tensor::device;

#define PARALLEL_TENSOR_BARRIER(name, ranks)                            \
  extern "C" __global__ void __launch_bounds__(128)                     \
      name(const __grid_constant__ BarrierArguments<ranks> arguments) { \
    barrier<GpuBlock, ranks>(GpuBlock{}, arguments);                    \
  }

PARALLEL_TENSOR_BARRIER(pt_barrier_2, 2)
PARALLEL_TENSOR_BARRIER(pt_barrier_4, 4)
PARALLEL_TENSOR_BARRIER(pt_barrier_8, 8)
PARALLEL_TENSOR_BARRIER(pt_barrier, run_time_size)
