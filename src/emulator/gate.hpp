/// @file
/// The one gate in front of every emulated driver function.
///
/// In this order: refuse in a forked child, refuse before cuInit, count the call, return an
/// injected fault before any effect, run the call, trace it.
#pragma once

#include <new>
#include <system_error>
#include <utility>

#include "calls.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

namespace gate_detail {
/// CUDA_SUCCESS when the call may go on.
CUresult enter(Call call) noexcept;
void leave(Call call, CUresult result) noexcept;
}  // namespace gate_detail

/// Runs `body` behind the gate and gives its result; what it throws becomes a result code.
template <typename Body>
CUresult gate(Call call, Body&& body) noexcept {
  CUresult result = gate_detail::enter(call);
  if (result == CUDA_SUCCESS) {
    try {
      result = std::forward<Body>(body)();
    } catch (const std::bad_alloc&) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::system_error&) {
      result = CUDA_ERROR_OPERATING_SYSTEM;
    } catch (...) {
      result = CUDA_ERROR_UNKNOWN;
    }
  }
  gate_detail::leave(call, result);
  return result;
}

/// Marks the driver as initialised; from then on a forked child's calls return 3.
void set_initialized() noexcept;
bool initialized() noexcept;
/// Whether this process was forked after its parent had initialised the driver.
bool forked() noexcept;

/// Arms a fault; false when a value makes no sense.
bool add_fault(Call call, int code, long nth, bool this_thread_only);
void clear_faults();

using CallVisit = void (*)(const char* name, unsigned long count, void* context);
void visit_calls(CallVisit visit, void* context);
void reset_calls() noexcept;

/// Descriptors that the gate holds open: the trace file.
long gate_descriptors() noexcept;

/// One line on stderr about a misuse that a real driver answers with a crash or with silence.
void complain(const char* call, const char* what) noexcept;

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
