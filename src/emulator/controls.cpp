// The controls of emulator.h.
#include <bit>

#include "devices.hpp"
#include "gate.hpp"
#include "kernels.hpp"
#include "live.hpp"
#include "physical.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

// Controls that need devices: refused as a driver call would be.
template <typename Body>
int control(Body body) noexcept {
  if (forked() || !initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  try {
    return body();
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

int pt_emulator_abi(void) { return 1; }

int pt_emulator_register_kernel(const char* name, pt_emulator_kernel function) {
  if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
  try {
    return register_kernel(name, function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

int pt_emulator_fail(const char* call, int code, long nth, int this_thread_only) {
  if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
  Call found;
  if (!find_call(call, &found)) return CUDA_ERROR_INVALID_VALUE;
  try {
    return add_fault(found, code, nth, this_thread_only != 0) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

int pt_emulator_clear(void) {
  if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
  clear_faults();
  return CUDA_SUCCESS;
}

int pt_emulator_live(pt_emulator_counts* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
  *out = live_counts();
  return CUDA_SUCCESS;
}

int pt_emulator_calls(pt_emulator_visit visit, void* context) {
  if (!visit) return CUDA_ERROR_INVALID_VALUE;
  visit_calls(visit, context);
  return CUDA_SUCCESS;
}

int pt_emulator_reset_calls(void) {
  reset_calls();
  return CUDA_SUCCESS;
}

int pt_emulator_set_attribute(int device, const char* name, int value) {
  return control([&]() -> int {
    if (!name || !Devices::instance().valid(device)) return CUDA_ERROR_INVALID_VALUE;
    return Devices::instance().set_attribute(device, name, value);
  });
}

int pt_emulator_set_granularity(size_t minimum, size_t recommended, size_t multicast) {
  return control([&]() -> int {
    for (size_t size : {minimum, recommended, multicast}) {
      if (!std::has_single_bit(size) || size < page_size()) return CUDA_ERROR_INVALID_VALUE;
    }
    if (recommended < minimum) return CUDA_ERROR_INVALID_VALUE;
    Devices::instance().set_granularity({minimum, recommended, multicast});
    return CUDA_SUCCESS;
  });
}

int pt_emulator_set_peer_access(int device, int peer, int possible) {
  return control([&]() -> int {
    auto& devices = Devices::instance();
    if (!devices.valid(device) || !devices.valid(peer) || device == peer) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    devices.set_reaches(device, peer, possible != 0);
    return CUDA_SUCCESS;
  });
}

int pt_emulator_set_memory(int device, size_t bytes) {
  return control([&]() -> int {
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_VALUE;
    Devices::instance().set_memory(device, bytes);
    return CUDA_SUCCESS;
  });
}

int pt_emulator_set_multicast_slots(int slots) {
  return control([&]() -> int {
    if (slots < 0) return CUDA_ERROR_INVALID_VALUE;
    Devices::instance().set_multicast_slots(slots);
    return CUDA_SUCCESS;
  });
}
