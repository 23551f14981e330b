/// @file
/// Which driver library this process uses: the real one, or the emulated driver.
///
/// The choice is made once, at first use: `use_driver()` if it was called, else the environment
/// variable PARALLEL_TENSOR_DRIVER, else `libcuda.so.1`. There is never a silent fall-back from one
/// to the other.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

/// The loaded driver library. Lives until the process ends: it is never unloaded.
struct Library {
  void* handle = nullptr;
  bool emulated = false;
  int version = 0;     ///< as cuDriverGetVersion gives it: 13000 is CUDA 13.0
  std::string origin;  ///< what was loaded: "libcuda.so.1" or a path
  decltype(::cuGetProcAddress)* get_proc_address = nullptr;
  decltype(::cuGetErrorName)* get_error_name = nullptr;
};

namespace detail {

struct LibraryState {
  std::mutex mutex;
  std::string choice;  // what use_driver() asked for
  std::atomic<const Library*> loaded{nullptr};
};

inline LibraryState& library_state() {
  // Left to the process's end: destructors that run at exit may still ask for the driver.
  static LibraryState* state = new LibraryState;
  return *state;
}

inline constexpr const char* emulated_library = "libparallel_tensor_emulated_driver.so";

/// The emulated driver lies beside the object that holds this code, else where the loader looks.
inline std::string emulated_library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_state), &info) != 0 && info.dli_fname) {
    std::string path = info.dli_fname;
    auto slash = path.rfind('/');
    if (slash != std::string::npos) {
      path = path.substr(0, slash + 1) + emulated_library;
      if (access(path.c_str(), R_OK) == 0) return path;
    }
  }
  return emulated_library;
}

inline std::string ways_on() {
  return "Ways on: install the NVIDIA driver on a machine with a GPU, or choose the emulated "
         "driver "
         "with PARALLEL_TENSOR_DRIVER=emulated or use_driver(\"emulated\").";
}

template <typename Pointer>
Pointer library_symbol(void* handle, const char* name) {
  return reinterpret_cast<Pointer>(dlsym(handle, name));
}

/// What to load for a choice; an empty one is the default.
inline std::string origin_of(const std::string& choice, const char* chooser) {
  if (choice.find('/') != std::string::npos) return choice;
  if (choice == "emulated") return emulated_library_path();
  if (choice.empty() || choice == "cuda") return "libcuda.so.1";
  throw ArgumentError(std::string(chooser) + " got \"" + choice +
                      "\": expected \"emulated\", \"cuda\" or the path of a driver library.");
}

inline Library* open_library(const std::string& choice) {
  const std::string origin = origin_of(choice, "PARALLEL_TENSOR_DRIVER");
  void* handle = dlopen(origin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = dlerror();
    throw NotSupportedError("No CUDA driver: loading " + origin + " failed (" +
                            (reason ? reason : "no reason given") + "). " + ways_on());
  }
  Library library;
  library.handle = handle;
  library.origin = origin;
  library.emulated = dlsym(handle, "pt_emulator_abi") != nullptr;
  library.get_proc_address =
      library_symbol<decltype(library.get_proc_address)>(handle, "cuGetProcAddress_v2");
  library.get_error_name =
      library_symbol<decltype(library.get_error_name)>(handle, "cuGetErrorName");
  auto init = library_symbol<decltype(&::cuInit)>(handle, "cuInit");
  auto get_version = library_symbol<decltype(&::cuDriverGetVersion)>(handle, "cuDriverGetVersion");
  if (!library.get_proc_address || !library.get_error_name || !init || !get_version) {
    throw NotSupportedError(origin + " has no cuGetProcAddress_v2: a driver of CUDA 12 or newer " +
                            "(550 or newer) is needed. " + ways_on());
  }
  if (CUresult code = init(0); code != CUDA_SUCCESS) {
    throw NotSupportedError("No usable CUDA device: cuInit of " + origin + " returned " +
                            std::to_string(static_cast<int>(code)) +
                            (code == CUDA_ERROR_NO_DEVICE ? " (no device is visible)" : "") + ". " +
                            ways_on());
  }
  get_version(&library.version);
  return new Library(library);
}

}  // namespace detail

/// The driver library of this process, loaded and initialised at the first call.
/// @throws NotSupportedError when there is no driver or no device; the message names both ways on.
/// @throws ArgumentError when PARALLEL_TENSOR_DRIVER holds something else than the three forms.
/// Any thread may call it.
inline const Library& library() {
  auto& state = detail::library_state();
  if (const Library* loaded = state.loaded.load(std::memory_order_acquire)) return *loaded;
  std::lock_guard lock(state.mutex);
  if (const Library* loaded = state.loaded.load(std::memory_order_acquire)) return *loaded;
  std::string choice = state.choice;
  if (const char* variable = std::getenv("PARALLEL_TENSOR_DRIVER"); choice.empty() && variable) {
    choice = variable;
  }
  const Library* opened = detail::open_library(choice);
  state.loaded.store(opened, std::memory_order_release);
  return *opened;
}

/// Whether a driver has been loaded; does not load one.
inline bool library_loaded() noexcept {
  return detail::library_state().loaded.load(std::memory_order_acquire) != nullptr;
}

/// "cuda" or "emulated": which kind of driver is in use. Loads it if that has not happened yet.
inline std::string driver_name() { return library().emulated ? "emulated" : "cuda"; }

/// Chooses the driver of this process; it is loaded at first use.
/// @param name "emulated", "cuda" or the path of a driver library.
/// @param devices how many devices the emulated driver shows; 0 leaves it to the environment.
/// @throws Error when another driver is in use already.
inline void use_driver(const std::string& name, int devices = 0) {
  if (name.empty()) throw ArgumentError("use_driver needs \"emulated\", \"cuda\" or a path.");
  if (devices < 0) {
    throw ArgumentError("use_driver: devices is " + std::to_string(devices) + ", below zero.");
  }
  detail::origin_of(name, "use_driver");
  auto& state = detail::library_state();
  std::lock_guard lock(state.mutex);
  if (const Library* loaded = state.loaded.load(std::memory_order_acquire)) {
    const std::string kind = loaded->emulated ? "emulated" : "cuda";
    if (name == kind || name == loaded->origin) return;
    throw Error("use_driver(\"" + name + "\"): this process already uses the driver " +
                loaded->origin + "; choose the driver before the first call.");
  }
  state.choice = name;
  if (devices > 0) {
    setenv("PARALLEL_TENSOR_EMULATED_DEVICES", std::to_string(devices).c_str(), 1);
  }
}

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
