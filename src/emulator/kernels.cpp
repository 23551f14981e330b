// Libraries, and kernels found by name.
#include "kernels.hpp"

#include "devices.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<HostFunction>> functions;
};

Registry& registry() {
  static Registry* created = new Registry;
  return *created;
}

// A kernel in one context.
struct KernelFunction {
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Context> context;
};

struct Library {
  std::mutex mutex;
  std::map<std::string, CUkernel> kernels;
};

HandleTable<CUlibrary, Library>& libraries() {
  static auto* table = new HandleTable<CUlibrary, Library>;
  return *table;
}

HandleTable<CUkernel, Kernel>& kernels() {
  static auto* table = new HandleTable<CUkernel, Kernel>;
  return *table;
}

HandleTable<CUfunction, KernelFunction>& functions() {
  static auto* table = new HandleTable<CUfunction, KernelFunction>;
  return *table;
}

CUresult load(CUlibrary* library, const void* image) {
  if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
  *library = libraries().add(std::make_shared<Library>());
  return CUDA_SUCCESS;
}

CUresult unload(CUlibrary library) {
  if (!libraries().take(library)) return CUDA_ERROR_INVALID_HANDLE;
  functions().take_if(
      [&](const KernelFunction& function) { return function.kernel->library == library; });
  kernels().take_if([&](const Kernel& kernel) { return kernel.library == library; });
  return CUDA_SUCCESS;
}

CUresult get_kernel(CUkernel* handle, CUlibrary library_handle, const char* name) {
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const auto library = libraries().find(library_handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(library->mutex);
  if (const auto found = library->kernels.find(name); found != library->kernels.end()) {
    *handle = found->second;
    return CUDA_SUCCESS;
  }
  auto kernel = std::make_shared<Kernel>();
  kernel->library = library_handle;
  {
    std::lock_guard registry_lock(registry().mutex);
    const auto found = registry().functions.find(name);
    if (found == registry().functions.end()) return CUDA_ERROR_NOT_FOUND;
    kernel->host_function = found->second;
  }
  *handle = kernels().add(std::move(kernel));
  library->kernels.emplace(name, *handle);
  return CUDA_SUCCESS;
}

CUresult get_function(CUfunction* handle, CUkernel kernel_handle) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  const auto kernel = kernels().find(kernel_handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(kernel->mutex);
  CUfunction& function = kernel->functions[context->handle()];
  if (!function) {
    function = functions().add(
        std::make_shared<KernelFunction>(KernelFunction{kernel, std::move(context)}));
  }
  *handle = function;
  return CUDA_SUCCESS;
}

CUresult function_attribute(int* value, CUfunction_attribute attribute) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(threads_per_block_limit);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = 49152;
      return CUDA_SUCCESS;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *value = 0;
      return CUDA_SUCCESS;
  }
}

}  // namespace

std::shared_ptr<Kernel> find_kernel(CUfunction handle, const Context* context) {
  if (const auto function = functions().find(handle)) {
    return !context || function->context.get() == context ? function->kernel : nullptr;
  }
  return kernels().find(reinterpret_cast<CUkernel>(handle));
}

bool register_kernel(const char* name, pt_emulator_kernel function) {
  if (!name || !*name || !function) return false;
  std::lock_guard lock(registry().mutex);
  auto& slot = registry().functions[name];
  if (!slot) slot = std::make_shared<HostFunction>();
  slot->function.store(function, std::memory_order_release);
  return true;
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**,
                                   unsigned int, CUlibraryOption*, void**, unsigned int) {
  return gate(PARALLEL_TENSOR_CALL(cuLibraryLoadData), [&] { return load(library, image); });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  return gate(PARALLEL_TENSOR_CALL(cuLibraryUnload), [&] { return unload(library); });
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return gate(PARALLEL_TENSOR_CALL(cuLibraryGetKernel),
              [&] { return get_kernel(kernel, library, name); });
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return gate(PARALLEL_TENSOR_CALL(cuKernelGetFunction),
              [&] { return get_function(function, kernel); });
}

CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                      CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuKernelGetAttribute), [&] {
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!kernels().find(kernel)) return CUDA_ERROR_INVALID_HANDLE;
    return function_attribute(value, attribute);
  });
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                    CUfunction function) {
  return gate(PARALLEL_TENSOR_CALL(cuFuncGetAttribute), [&] {
    if (!find_kernel(function)) return CUDA_ERROR_INVALID_HANDLE;
    return function_attribute(value, attribute);
  });
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                             int block_size, size_t) {
  return gate(PARALLEL_TENSOR_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor), [&] {
    if (!blocks || block_size <= 0 || block_size > static_cast<int>(threads_per_block_limit)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!find_kernel(function)) return CUDA_ERROR_INVALID_HANDLE;
    *blocks = 2;
    return CUDA_SUCCESS;
  });
}
