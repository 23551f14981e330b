// Launches: the host function of a kernel runs as work of a stream.
#include <array>
#include <cstring>
#include <new>

#include "gate.hpp"
#include "kernels.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

constexpr unsigned int shared_limit = 232448;

// The argument buffer of one launch.
class Argument {
 public:
  static constexpr std::align_val_t alignment{64};
  Argument(const void* bytes, size_t size) : size_(size) {
    if (size == 0) return;
    bytes_ = ::operator new(size, alignment);
    std::memcpy(bytes_, bytes, size);
  }
  ~Argument() {
    if (bytes_) ::operator delete(bytes_, alignment);
  }
  Argument(const Argument&) = delete;
  Argument& operator=(const Argument&) = delete;

  const void* bytes() const noexcept { return bytes_; }
  size_t size() const noexcept { return size_; }

 private:
  void* bytes_ = nullptr;
  size_t size_;
};

CUresult read_argument(void** parameters, void** extra, const void** bytes, size_t* size) {
  *bytes = nullptr;
  *size = 0;
  if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  if (parameters) {
    complain("cuLaunchKernel",
             "the sizes of kernelParams are not known here; pass the argument by extra with "
             "CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!extra) return CUDA_SUCCESS;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      *bytes = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1]) {
      *size = *static_cast<const size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  constexpr size_t size_limit = 32764;
  return (*size > 0 && !*bytes) || *size > size_limit ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool valid_shape(const std::array<unsigned int, 3>& grid, const std::array<unsigned int, 3>& block,
                 unsigned int shared_bytes) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return false;
  if (block[0] == 0 || block[1] == 0 || block[2] == 0) return false;
  if (grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535) return false;
  if (block[0] > threads_per_block_limit || block[1] > threads_per_block_limit || block[2] > 64)
    return false;
  return block[0] * block[1] * block[2] <= threads_per_block_limit && shared_bytes <= shared_limit;
}

struct Launch {
  std::array<unsigned int, 3> grid;
  std::array<unsigned int, 3> block;
  unsigned int shared_bytes;
};

CUresult launch(CUfunction handle, const Launch& shape, CUstream stream_handle, void** parameters,
                void** extra) {
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(stream_handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->context() != context) return CUDA_ERROR_INVALID_HANDLE;
  const auto kernel = find_kernel(handle, context.get());
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!valid_shape(shape.grid, shape.block, shape.shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const void* bytes = nullptr;
  size_t size = 0;
  if (CUresult result = read_argument(parameters, extra, &bytes, &size); result != CUDA_SUCCESS) {
    return result;
  }
  pt_emulator_launch description{};
  for (size_t i = 0; i < 3; ++i) {
    description.grid[i] = shape.grid[i];
    description.block[i] = shape.block[i];
  }
  description.shared_bytes = shape.shared_bytes;
  description.device = context->device();
  auto argument = std::make_shared<Argument>(bytes, size);
  description.argument = argument->bytes();
  description.argument_bytes = argument->size();
  Work work;
  work.action = [description, argument, function = kernel->host_function] {
    function->function.load(std::memory_order_acquire)(&description);
  };
  context->submit(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                void** parameters, void** extra) {
  return gate(PARALLEL_TENSOR_CALL(cuLaunchKernel), [&] {
    const Launch shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return launch(function, shape, stream, parameters, extra);
  });
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                  void** parameters, void** extra) {
  return gate(PARALLEL_TENSOR_CALL(cuLaunchKernelEx), [&] {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    const Launch shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                       {config->blockDimX, config->blockDimY, config->blockDimZ},
                       config->sharedMemBytes};
    return launch(function, shape, config->hStream, parameters, extra);
  });
}
