// The entry points of all-reduce: specialised for common numbers of ranks, and the run-time form.
#include "parallel_tensor/device/all_reduce.cuh"

// One block per multiprocessor is all that a launch needs: the registers then hold every load that
// is in flight.
using parallel_tensor::run_time_size;
using namespace parallel_tensor::device;

#define PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(name, Element, ranks)         \
  extern "C" __global__ void __launch_bounds__(512, 1)                    \
      name(const __grid_constant__ AllReduceArguments<ranks> arguments) { \
    all_reduce_two_shot<GpuBlock, Element, ranks>(GpuBlock{}, arguments); \
  }

PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_f32_2, float, 2)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_f32_4, float, 4)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_f32_8, float, 8)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_f32, float, run_time_size)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_bf16_2, BFloat16, 2)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_bf16_4, BFloat16, 4)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_bf16_8, BFloat16, 8)
PARALLEL_TENSOR_ALL_REDUCE_TWO_SHOT(pt_all_reduce_two_shot_bf16, BFloat16, run_time_size)
