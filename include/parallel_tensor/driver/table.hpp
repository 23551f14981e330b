/// @file
/// The table of driver functions: the only place that names what is loaded from the driver library.
///
///     driver::api.cuMemRelease(handle);                    // throws DriverError
///     if (driver::api.cuEventQuery.result(event) == ...)   // returns the code
#pragma once

#include <cuda.h>

#include "parallel_tensor/driver/function.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

// cuda.h spells the current form of some names with a suffix by macro; the type follows the macro
// (`::name` is expanded) and the name that is looked up does not (`#name` is not).
#define PARALLEL_TENSOR_DRIVER_FUNCTION(name, version) \
  Function<decltype(::name)> name { #name, version }

/// Every driver function that this library calls, each with the CUDA version of its signature.
struct Table {
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceGet, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceGetCount, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceGetName, 2000);
  Function<CUresult(CUuuid*, CUdevice)> cuDeviceGetUuid{"cuDeviceGetUuid", 11040};
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceGetAttribute, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceTotalMem, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDeviceCanAccessPeer, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuDevicePrimaryCtxRetain, 7000);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuCtxGetCurrent, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuCtxPushCurrent, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuCtxPopCurrent, 4000);
  Function<CUresult(CUdevice*)> cuCtxGetDevice{"cuCtxGetDevice", 2000};
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuCtxSynchronize, 2000);
  Function<CUresult(CUcontext, CUevent)> cuCtxRecordEvent{"cuCtxRecordEvent", 12050};

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemCreate, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemRelease, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemRetainAllocationHandle, 11000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemGetAllocationGranularity, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemExportToShareableHandle, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemImportFromShareableHandle, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemAddressReserve, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemAddressFree, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemMap, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemUnmap, 10020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemSetAccess, 10020);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemAlloc, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemFree, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemHostAlloc, 2020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemFreeHost, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemGetAddressRange, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuPointerGetAttribute, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemsetD8Async, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemcpyHtoDAsync, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemcpyDtoHAsync, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuMemcpyDtoDAsync, 3020);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuIpcGetMemHandle, 4010);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuIpcOpenMemHandle, 11000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuIpcCloseMemHandle, 4010);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamCreate, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamDestroy, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamQuery, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamSynchronize, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamWaitEvent, 3020);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuStreamIsCapturing, 10000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuThreadExchangeStreamCaptureMode, 10010);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuEventCreate, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuEventDestroy, 4000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuEventRecord, 2000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuEventQuery, 2000);

  PARALLEL_TENSOR_DRIVER_FUNCTION(cuLibraryLoadData, 12000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuLibraryUnload, 12000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuLibraryGetKernel, 12000);
  PARALLEL_TENSOR_DRIVER_FUNCTION(cuLaunchKernel, 4000);
};

#undef PARALLEL_TENSOR_DRIVER_FUNCTION

/// The table of this process.
inline const Table api{};

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
