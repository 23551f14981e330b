/// @file
/// One function of the driver: found by name at its first call, checked at every call.
#pragma once

#include <cuda.h>

#include <atomic>
#include <string>

#include "parallel_tensor/driver/library.hpp"
#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

/// The name of a result code: "CUDA_ERROR_INVALID_VALUE". Never throws.
inline std::string result_name(CUresult code) noexcept {
  const char* name = nullptr;
  if (library_loaded() && library().get_error_name(code, &name) == CUDA_SUCCESS && name)
    return name;
  return "CUDA_ERROR_" + std::to_string(static_cast<int>(code));
}

/// Throws what a result code means; does nothing for CUDA_SUCCESS.
/// @param call the driver function, without a version suffix.
/// @param detail what was tried with which numbers: "64 MiB on device 0"; may be empty.
/// @throws OutOfMemoryError for CUDA_ERROR_OUT_OF_MEMORY, DriverError for every other failure.
inline void check(CUresult code, const char* call, const std::string& detail = {}) {
  if (code == CUDA_SUCCESS) return;
  const int number = static_cast<int>(code);
  const std::string name = result_name(code);
  std::string message = std::string(call) + (detail.empty() ? "" : " (" + detail + ")") +
                        " returned " + std::to_string(number) + " " + name + ".";
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      message += " Free device memory, or ask for less.";
      throw OutOfMemoryError(message, call, number, name);
    case CUDA_ERROR_NOT_INITIALIZED:
      message +=
          " In a process that was forked after CUDA was initialised no call works: start "
          "workers with spawn or forkserver, or fork before the first use.";
      break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
      message += " A thread of this process is capturing a CUDA graph; do this before the capture.";
      break;
    default:
      break;
  }
  throw DriverError(message, call, number, name);
}

template <typename Signature>
class Function;

/// A driver function. Calling it throws what a failure means; `result` returns the code instead.
/// @tparam Arguments the argument types as cuda.h declares them.
template <typename... Arguments>
class Function<CUresult(Arguments...)> {
 public:
  /// @param name without a version suffix; @param version the CUDA version of this signature.
  constexpr Function(const char* name, int version) : name_(name), version_(version) {}
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// Calls the function.
  /// @throws DriverError, OutOfMemoryError as check(); NotSupportedError when the driver lacks it.
  void operator()(Arguments... arguments) const { check(pointer()(arguments...), name_); }

  /// Calls the function and returns its result code.
  /// @throws NotSupportedError when the driver lacks the function; nothing else.
  CUresult result(Arguments... arguments) const { return pointer()(arguments...); }

  /// Whether this driver has the function.
  bool available() const { return find() != nullptr; }

  constexpr const char* name() const noexcept { return name_; }

 private:
  using Pointer = CUresult (*)(Arguments...);

  Pointer find() const {
    if (Pointer found = found_.load(std::memory_order_acquire)) return found;
    void* symbol = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult code =
        library().get_proc_address(name_, &symbol, version_, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    if (code != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS) return nullptr;
    found_.store(reinterpret_cast<Pointer>(symbol), std::memory_order_release);
    return reinterpret_cast<Pointer>(symbol);
  }

  Pointer pointer() const {
    if (Pointer found = find()) return found;
    throw NotSupportedError(std::string(name_) + " is missing from " + library().origin +
                            ", which is CUDA " + version_text(library().version) + "; it needs " +
                            version_text(version_) + ". Install a newer driver.");
  }

  static std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  const char* name_;
  int version_;
  mutable std::atomic<Pointer> found_{nullptr};
};

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
