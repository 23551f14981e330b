/// @file
/// The list of the driver functions that are emulated, each with the CUDA version that brought it.
#pragma once

#include "cuda_abi.hpp"

// Kept in the order of the files that define them. `name` is never expanded where it is pasted or
// quoted, so that cuda.h's renaming macros ("cuMemFree" to "cuMemFree_v2") act only where a
// function is meant.
#define PARALLEL_TENSOR_EMULATED_CALLS(X)              \
  X(cuInit, 2000)                                      \
  X(cuDriverGetVersion, 2020)                          \
  X(cuDeviceGet, 2000)                                 \
  X(cuDeviceGetCount, 2000)                            \
  X(cuDeviceGetName, 2000)                             \
  X(cuDeviceGetUuid, 9020)                             \
  X(cuDeviceGetAttribute, 2000)                        \
  X(cuDeviceTotalMem, 2000)                            \
  X(cuGetProcAddress, 11030)                           \
  X(cuGetErrorName, 6000)                              \
  X(cuGetErrorString, 6000)                            \
  X(cuDevicePrimaryCtxRetain, 7000)                    \
  X(cuDevicePrimaryCtxRelease, 7000)                   \
  X(cuDevicePrimaryCtxGetState, 7000)                  \
  X(cuCtxCreate, 2000)                                 \
  X(cuCtxDestroy, 4000)                                \
  X(cuCtxGetCurrent, 4000)                             \
  X(cuCtxSetCurrent, 4000)                             \
  X(cuCtxPushCurrent, 4000)                            \
  X(cuCtxPopCurrent, 4000)                             \
  X(cuCtxGetDevice, 2000)                              \
  X(cuCtxSynchronize, 2000)                            \
  X(cuDeviceCanAccessPeer, 4000)                       \
  X(cuCtxEnablePeerAccess, 4000)                       \
  X(cuCtxDisablePeerAccess, 4000)                      \
  X(cuMemGetInfo, 2000)                                \
  X(cuMemAlloc, 2000)                                  \
  X(cuMemFree, 2000)                                   \
  X(cuMemHostAlloc, 2020)                              \
  X(cuMemFreeHost, 2000)                               \
  X(cuMemHostGetDevicePointer, 2020)                   \
  X(cuMemGetAddressRange, 2000)                        \
  X(cuPointerGetAttribute, 4000)                       \
  X(cuPointerGetAttributes, 7000)                      \
  X(cuMemGetAllocationGranularity, 10020)              \
  X(cuMemCreate, 10020)                                \
  X(cuMemRelease, 10020)                               \
  X(cuMemRetainAllocationHandle, 11000)                \
  X(cuMemExportToShareableHandle, 10020)               \
  X(cuMemImportFromShareableHandle, 10020)             \
  X(cuMemGetAllocationPropertiesFromHandle, 10020)     \
  X(cuMemAddressReserve, 10020)                        \
  X(cuMemAddressFree, 10020)                           \
  X(cuMemMap, 10020)                                   \
  X(cuMemUnmap, 10020)                                 \
  X(cuMemSetAccess, 10020)                             \
  X(cuMemGetAccess, 10020)                             \
  X(cuIpcGetMemHandle, 4010)                           \
  X(cuIpcOpenMemHandle, 4010)                          \
  X(cuIpcCloseMemHandle, 4010)                         \
  X(cuStreamCreate, 2000)                              \
  X(cuStreamCreateWithPriority, 5050)                  \
  X(cuStreamDestroy, 2000)                             \
  X(cuStreamSynchronize, 2000)                         \
  X(cuStreamQuery, 2000)                               \
  X(cuStreamWaitEvent, 3020)                           \
  X(cuStreamIsCapturing, 10000)                        \
  X(cuStreamGetCaptureInfo, 10010)                     \
  X(cuStreamGetCtx, 9020)                              \
  X(cuLaunchHostFunc, 10000)                           \
  X(cuThreadExchangeStreamCaptureMode, 10010)          \
  X(cuEventCreate, 2000)                               \
  X(cuEventDestroy, 2000)                              \
  X(cuEventRecord, 2000)                               \
  X(cuCtxRecordEvent, 12050)                           \
  X(cuEventQuery, 2000)                                \
  X(cuEventSynchronize, 2000)                          \
  X(cuEventElapsedTime, 2000)                          \
  X(cuMemcpy, 4000)                                    \
  X(cuMemcpyAsync, 4000)                               \
  X(cuMemcpyHtoD, 2000)                                \
  X(cuMemcpyHtoDAsync, 2000)                           \
  X(cuMemcpyDtoH, 2000)                                \
  X(cuMemcpyDtoHAsync, 2000)                           \
  X(cuMemcpyDtoD, 2000)                                \
  X(cuMemcpyDtoDAsync, 3000)                           \
  X(cuMemsetD8, 2000)                                  \
  X(cuMemsetD8Async, 3020)                             \
  X(cuMemsetD32, 2000)                                 \
  X(cuMemsetD32Async, 3020)                            \
  X(cuLibraryLoadData, 12000)                          \
  X(cuLibraryUnload, 12000)                            \
  X(cuLibraryGetKernel, 12000)                         \
  X(cuKernelGetFunction, 12000)                        \
  X(cuKernelGetAttribute, 12000)                       \
  X(cuFuncGetAttribute, 2020)                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050) \
  X(cuLaunchKernel, 4000)                              \
  X(cuLaunchKernelEx, 11060)

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// One driver function, by its name without a version suffix.
enum class Call : int {
#define PARALLEL_TENSOR_CALL_ENUMERATOR(name, version) call_##name,
  PARALLEL_TENSOR_EMULATED_CALLS(PARALLEL_TENSOR_CALL_ENUMERATOR)
#undef PARALLEL_TENSOR_CALL_ENUMERATOR
};

inline constexpr int call_count = 0
#define PARALLEL_TENSOR_CALL_ONE(name, version) +1
    PARALLEL_TENSOR_EMULATED_CALLS(PARALLEL_TENSOR_CALL_ONE)
#undef PARALLEL_TENSOR_CALL_ONE
    ;

/// "cuMemFree" for Call::call_cuMemFree.
const char* call_name(Call call) noexcept;
/// Sets `*call` and returns true when there is a call of this name.
bool find_call(const char* name, Call* call) noexcept;

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

/// The Call of a driver function whose name cuda.h may rename.
#define PARALLEL_TENSOR_CALL(name) ::parallel_tensor::emulator::Call::call_##name
