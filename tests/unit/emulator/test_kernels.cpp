#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

struct AddArgument {
  CUdeviceptr data;
  int count;
  int value;
};

void add(const pt_emulator_launch* launch) {
  const auto& argument = *static_cast<const AddArgument*>(launch->argument);
  auto* data = reinterpret_cast<int*>(argument.data);
  for (int i = 0; i < argument.count; ++i) data[i] += argument.value;
}

void store_shape(const pt_emulator_launch* launch) {
  **static_cast<pt_emulator_launch* const*>(launch->argument) = *launch;
}

constexpr char image[] = "any image";

class EmulatedKernels : public Driver {
 protected:
  void SetUp() override {
    Driver::SetUp();
    ASSERT_EQ(CONTROL(pt_emulator_register_kernel)("test_add", add), 0);
    ASSERT_EQ(CONTROL(pt_emulator_register_kernel)("test_shape", store_shape), 0);
    ASSERT_EQ(
        EMULATED(cuLibraryLoadData)(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(EMULATED(cuLibraryUnload)(library_), CUDA_SUCCESS);
    Driver::TearDown();
  }

  CUkernel kernel(const char* name) const {
    CUkernel kernel = nullptr;
    EXPECT_EQ(EMULATED(cuLibraryGetKernel)(&kernel, library_, name), CUDA_SUCCESS);
    return kernel;
  }

  template <typename Argument>
  static CUresult launch(CUfunction function, const Argument& argument, unsigned int blocks = 1,
                         unsigned int threads = 32, CUstream stream = nullptr) {
    size_t bytes = sizeof argument;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<Argument*>(&argument),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    return EMULATED(cuLaunchKernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, nullptr,
                                    extra);
  }

  CUlibrary library_ = nullptr;
};

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

}  // namespace

TEST_F(EmulatedKernels, ARegisteredKernelRunsOncePerLaunchOnTheStream) {
  CUdeviceptr data = 0;
  ASSERT_EQ(EMULATED(cuMemAlloc)(&data, 4096), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemsetD32)(data, 5, 1024), CUDA_SUCCESS);
  EXPECT_EQ(launch(as_function(kernel("test_add")), AddArgument{data, 1024, 3}, 132, 512),
            CUDA_SUCCESS);
  int result[1024];
  ASSERT_EQ(EMULATED(cuMemcpyDtoH)(result, data, sizeof result), CUDA_SUCCESS);
  EXPECT_EQ(result[0], 8);
  EXPECT_EQ(result[1023], 8);
  EXPECT_EQ(EMULATED(cuMemFree)(data), CUDA_SUCCESS);
}

TEST_F(EmulatedKernels, TheArgumentIsCopiedAtLaunch) {
  CUdeviceptr data = 0;
  ASSERT_EQ(EMULATED(cuMemAlloc)(&data, 4096), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(nullptr);
  AddArgument argument{data, 1, 40};
  EXPECT_EQ(launch(as_function(kernel("test_add")), argument), CUDA_SUCCESS);
  argument = {};
  lock.open();
  int result = 0;
  ASSERT_EQ(EMULATED(cuMemcpyDtoH)(&result, data, sizeof result), CUDA_SUCCESS);
  EXPECT_EQ(result, 40);
  EXPECT_EQ(EMULATED(cuMemFree)(data), CUDA_SUCCESS);
}

TEST_F(EmulatedKernels, AFunctionOfAKernelLaunchesInItsContextOnly) {
  CUfunction function = nullptr;
  CUfunction again = nullptr;
  ASSERT_EQ(EMULATED(cuKernelGetFunction)(&function, kernel("test_shape")), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuKernelGetFunction)(&again, kernel("test_shape")), CUDA_SUCCESS);
  EXPECT_EQ(function, again);
  pt_emulator_launch seen{};
  EXPECT_EQ(launch(function, &seen), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(seen.device, 0);
  CUcontext other = nullptr;
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxPushCurrent)(other), CUDA_SUCCESS);
  EXPECT_EQ(launch(function, &seen), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(as_function(kernel("test_shape")), &seen), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(seen.device, 1);
  EXPECT_EQ(EMULATED(cuCtxPopCurrent)(&other), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(1), CUDA_SUCCESS);
}

TEST_F(EmulatedKernels, TheHostFunctionSeesTheWholeLaunch) {
  pt_emulator_launch seen{};
  pt_emulator_launch* argument = &seen;
  size_t bytes = sizeof argument;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &argument, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUlaunchConfig config{};
  config.gridDimX = 7;
  config.gridDimY = 3;
  config.gridDimZ = 2;
  config.blockDimX = 64;
  config.blockDimY = 2;
  config.blockDimZ = 4;
  config.sharedMemBytes = 1000;
  ASSERT_EQ(EMULATED(cuLaunchKernelEx)(&config, as_function(kernel("test_shape")), nullptr, extra),
            CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(seen.grid[0], 7U);
  EXPECT_EQ(seen.grid[2], 2U);
  EXPECT_EQ(seen.block[2], 4U);
  EXPECT_EQ(seen.shared_bytes, 1000U);
  EXPECT_EQ(seen.argument_bytes, sizeof argument);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(seen.argument) % 64, 0U);
}

TEST_F(EmulatedKernels, BadLaunchesAreRefused) {
  const CUfunction function = as_function(kernel("test_add"));
  const AddArgument argument{};
  EXPECT_EQ(launch(function, argument, 0, 32), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(function, argument, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(function, argument, 1, 1025), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(nullptr, argument), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(reinterpret_cast<CUfunction>(0x1234567), argument), CUDA_ERROR_INVALID_HANDLE);
  void* parameters[] = {const_cast<AddArgument*>(&argument)};
  EXPECT_EQ(EMULATED(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
  void* unknown[] = {reinterpret_cast<void*>(77), nullptr, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(EMULATED(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, unknown),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, unknown),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedKernels, AStreamOfAnotherContextIsRefused) {
  CUcontext other = nullptr;
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxPushCurrent)(other), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(EMULATED(cuStreamCreate)(&stream, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxPopCurrent)(&other), CUDA_SUCCESS);
  EXPECT_EQ(launch(as_function(kernel("test_add")), AddArgument{}, 1, 1, stream),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuStreamDestroy)(stream), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(1), CUDA_SUCCESS);
}

TEST_F(EmulatedKernels, NamesAreFoundOnlyWhenRegistered) {
  CUkernel found = nullptr;
  EXPECT_EQ(EMULATED(cuLibraryGetKernel)(&found, library_, "test_unknown"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(EMULATED(cuLibraryGetKernel)(&found, nullptr, "test_add"), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CONTROL(pt_emulator_register_kernel)("test_null", nullptr), 1);
  EXPECT_EQ(CONTROL(pt_emulator_register_kernel)("", add), 1);
  CUlibrary none = nullptr;
  EXPECT_EQ(EMULATED(cuLibraryLoadData)(&none, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedKernels, ALaterRegistrationReplacesTheFunction) {
  static int called = 0;
  ASSERT_EQ(CONTROL(pt_emulator_register_kernel)("test_replaced",
                                                 [](const pt_emulator_launch*) { called = 1; }),
            0);
  const CUfunction function = as_function(kernel("test_replaced"));
  ASSERT_EQ(CONTROL(pt_emulator_register_kernel)("test_replaced",
                                                 [](const pt_emulator_launch*) { called = 2; }),
            0);
  EXPECT_EQ(EMULATED(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(called, 2);
}

TEST_F(EmulatedKernels, KernelsOfAnUnloadedLibraryAreGone) {
  CUlibrary library = nullptr;
  ASSERT_EQ(EMULATED(cuLibraryLoadData)(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel gone = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(EMULATED(cuLibraryGetKernel)(&gone, library, "test_add"), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuKernelGetFunction)(&function, gone), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuLibraryUnload)(library), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuLibraryUnload)(library), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(as_function(gone), AddArgument{}), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(function, AddArgument{}), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EmulatedKernels, AttributesAndOccupancyHaveAnswers) {
  int value = 0;
  EXPECT_EQ(EMULATED(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                           kernel("test_add"), 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 1024);
  EXPECT_EQ(EMULATED(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                         as_function(kernel("test_add"))),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 1024);
  EXPECT_EQ(EMULATED(cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &value, as_function(kernel("test_add")), 512, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 2);
}

TEST_F(EmulatedKernels, AHostFunctionThatThrowsFailsItsContextAndNoOther) {
  CUcontext context = nullptr;
  auto* create_context = symbol<CUresult(CUcontext*, unsigned int, CUdevice)>("cuCtxCreate_v2");
  ASSERT_EQ(create_context(&context, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(
      CONTROL(pt_emulator_register_kernel)(
          "test_throws", [](const pt_emulator_launch*) { throw std::runtime_error("wrong"); }),
      0);
  EXPECT_EQ(EMULATED(cuLaunchKernel)(as_function(kernel("test_throws")), 1, 1, 1, 1, 1, 1, 0,
                                     nullptr, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_ERROR_LAUNCH_FAILED);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, 16), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(EMULATED(cuCtxDestroy)(context), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
}
