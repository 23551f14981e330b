/// @file
/// The shipped kernels: embedded in the library parallel_tensor_collectives, loaded through the
/// driver table at their first use.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/driver/kernel_library.hpp"
#include "parallel_tensor/driver/library.hpp"
#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {

/// The fatbin of the kernels of src/kernels/STEM.cu; null when there is none. Lives as long as the
/// process.
const void* kernel_image(std::string_view stem) noexcept;

/// Gives every shipped kernel its host function. False when the library is not the emulated driver.
bool register_host_functions(void* emulated_driver) noexcept;

namespace detail {

/// The first CUDA version whose driver takes the images that nvcc 13 makes.
inline constexpr int kernels_need_driver = 13000;

inline void prepare_driver() {
  const driver::Library& library = driver::library();
  if (library.emulated) {
    if (!register_host_functions(library.handle)) {
      throw NotSupportedError(
          library.origin +
          " is an emulated driver that does not take host functions of kernels. "
          "Use the one that this version of parallel-tensor brings along.");
    }
  } else if (library.version < kernels_need_driver) {
    throw NotSupportedError(
        "The kernels of parallel-tensor need a driver of CUDA 13.0 (580 or newer); " +
        library.origin + " is CUDA " + std::to_string(library.version / 1000) + "." +
        std::to_string(library.version % 1000 / 10) +
        ". Sharing tensors works with it; for collectives install a newer driver.");
  }
}

/// The loaded libraries by stem. Each is loaded once per process and left to its end.
inline const driver::KernelLibrary& kernel_library(const char* stem) {
  static std::mutex& mutex = *new std::mutex;
  static auto& libraries = *new std::map<std::string, std::unique_ptr<driver::KernelLibrary>>;
  std::lock_guard lock(mutex);
  auto& library = libraries[stem];
  if (!library) {
    prepare_driver();
    library = std::make_unique<driver::KernelLibrary>(kernel_image(stem));
  }
  return *library;
}

}  // namespace detail

/// One kernel, found at its first use. Meant for static objects; any thread may use it.
class Kernel {
 public:
  /// @param stem the source that holds it: src/kernels/STEM.cu. @param name its entry point.
  constexpr Kernel(const char* stem, const char* name) : stem_(stem), name_(name) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// The kernel; it runs on any device of the process.
  /// @throws NotSupportedError when the driver is older than CUDA 13.0; DriverError from loading.
  CUkernel get() const {
    if (CUkernel loaded = loaded_.load(std::memory_order_acquire)) return loaded;
    CUkernel kernel = detail::kernel_library(stem_).kernel(name_);
    loaded_.store(kernel, std::memory_order_release);
    return kernel;
  }

 private:
  const char* stem_;
  const char* name_;
  mutable std::atomic<CUkernel> loaded_{nullptr};
};

/// The kernels of one operation: specialised for common numbers of ranks, and the run-time form.
struct KernelsBySize {
  Kernel ranks_2;
  Kernel ranks_4;
  Kernel ranks_8;
  Kernel any;

  /// The kernel for this number of ranks.
  const Kernel& of(int size) const noexcept {
    return size == 2 ? ranks_2 : size == 4 ? ranks_4 : size == 8 ? ranks_8 : any;
  }
};

/// Calls `function.operator()<N>()` with the N of the kernel that KernelsBySize has for `size`
/// ranks.
template <typename Function>
void with_size(int size, Function function) {
  switch (size) {
    case 2:
      return function.template operator()<2>();
    case 4:
      return function.template operator()<4>();
    case 8:
      return function.template operator()<8>();
    default:
      return function.template operator()<run_time_size>();
  }
}

}  // namespace collectives
}  // namespace v1
}  // namespace parallel_tensor
