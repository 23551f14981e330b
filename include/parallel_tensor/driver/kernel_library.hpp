/// @file
/// A set of compiled kernels, loaded through the driver table and launched by name.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "parallel_tensor/driver/table.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

/// The size of a launch, in blocks and threads.
struct LaunchShape {
  unsigned int blocks = 1;
  unsigned int threads = 1;
};

/// Owns a CUlibrary. Not tied to a context: a kernel of it runs on any device of the process.
class KernelLibrary {
 public:
  /// Loads a fatbin, a cubin or PTX text. The image must live as long as this object.
  /// @throws DriverError; NotSupportedError when the driver has no cuLibraryLoadData.
  explicit KernelLibrary(const void* image) {
    check(api.cuLibraryLoadData.result(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
          "cuLibraryLoadData", "the kernels of this library");
  }
  ~KernelLibrary() {
    if (library_) api.cuLibraryUnload.result(library_);
  }
  KernelLibrary(KernelLibrary&& other) noexcept
      : library_(std::exchange(other.library_, nullptr)) {}
  KernelLibrary& operator=(KernelLibrary&&) = delete;
  KernelLibrary(const KernelLibrary&) = delete;

  /// The kernel of this name. @throws DriverError (500) when there is none.
  CUkernel kernel(const std::string& name) const {
    CUkernel kernel = nullptr;
    check(api.cuLibraryGetKernel.result(&kernel, library_, name.c_str()), "cuLibraryGetKernel",
          name);
    return kernel;
  }

 private:
  CUlibrary library_ = nullptr;
};

/// Launches a kernel that takes one argument, a plain struct, on a stream of the current context.
/// @throws DriverError. Asynchronous: the argument is copied before the call returns.
template <typename Argument>
void launch(CUkernel kernel, LaunchShape shape, CUstream stream, const Argument& argument) {
  static_assert(std::is_trivially_copyable_v<Argument> && sizeof(Argument) <= 4096);
  std::size_t bytes = sizeof(Argument);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<Argument*>(&argument),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  check(api.cuLaunchKernel.result(reinterpret_cast<CUfunction>(kernel), shape.blocks, 1, 1,
                                  shape.threads, 1, 1, 0, stream, nullptr, extra),
        "cuLaunchKernel",
        std::to_string(shape.blocks) + " blocks of " + std::to_string(shape.threads) + " threads");
}

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
