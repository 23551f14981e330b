// What stands for each kernel on the emulated driver: the same protocol on a host thread, the
// blocks of a launch one after the other. All ranks take them in the same order, so a block never
// waits for one that cannot come.
#include <dlfcn.h>

#include <cstring>

#include "emulator/emulator.h"
#include "parallel_tensor/collectives/kernels.hpp"
#include "parallel_tensor/device/all_reduce.cuh"
#include "parallel_tensor/device/barrier.cuh"

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {
namespace {

template <typename Arguments, void (*protocol)(const device::HostBlock&, const Arguments&)>
void run_blocks(const pt_emulator_launch* launch) {
  Arguments arguments;
  if (launch->argument_bytes < sizeof(arguments)) return;
  std::memcpy(&arguments, launch->argument, sizeof(arguments));
  for (unsigned int block = 0; block < launch->grid[0]; ++block) {
    protocol(device::HostBlock{block, launch->grid[0]}, arguments);
  }
}

template <int N>
constexpr pt_emulator_kernel barrier_function =
    run_blocks<device::BarrierArguments<N>, device::barrier<device::HostBlock, N>>;

template <typename Element, int N>
constexpr pt_emulator_kernel all_reduce_two_shot_function =
    run_blocks<device::AllReduceArguments<N>,
               device::all_reduce_two_shot<device::HostBlock, Element, N>>;

struct NamedFunction {
  const char* name;
  pt_emulator_kernel function;
};

using device::BFloat16;

constexpr NamedFunction host_functions[] = {
    {"pt_barrier_2", barrier_function<2>},
    {"pt_barrier_4", barrier_function<4>},
    {"pt_barrier_8", barrier_function<8>},
    {"pt_barrier", barrier_function<run_time_size>},
    {"pt_all_reduce_two_shot_f32_2", all_reduce_two_shot_function<float, 2>},
    {"pt_all_reduce_two_shot_f32_4", all_reduce_two_shot_function<float, 4>},
    {"pt_all_reduce_two_shot_f32_8", all_reduce_two_shot_function<float, 8>},
    {"pt_all_reduce_two_shot_f32", all_reduce_two_shot_function<float, run_time_size>},
    {"pt_all_reduce_two_shot_bf16_2", all_reduce_two_shot_function<BFloat16, 2>},
    {"pt_all_reduce_two_shot_bf16_4", all_reduce_two_shot_function<BFloat16, 4>},
    {"pt_all_reduce_two_shot_bf16_8", all_reduce_two_shot_function<BFloat16, 8>},
    {"pt_all_reduce_two_shot_bf16", all_reduce_two_shot_function<BFloat16, run_time_size>},
};

}  // namespace

bool register_host_functions(void* emulated_driver) noexcept {
  const auto register_kernel = reinterpret_cast<decltype(&pt_emulator_register_kernel)>(
      dlsym(emulated_driver, "pt_emulator_register_kernel"));
  if (!register_kernel) return false;
  for (const NamedFunction& entry : host_functions) {
    if (register_kernel(entry.name, entry.function) != 0) return false;
  }
  return true;
}

}  // namespace collectives
}  // namespace v1
}  // namespace parallel_tensor
