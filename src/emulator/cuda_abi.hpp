/// @file
/// cuda.h, and the forms of functions that a given cuda.h does not declare.
#pragma once

#include <cuda.h>

#include "emulator.h"

extern "C" {
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies,
                                           size_t* dependency_count);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies,
                                           const CUgraphEdgeData** edges, size_t* dependency_count);
#if CUDA_VERSION < 12050
CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent event);
#endif
// cuda.h spells this name with its newer suffix by macro.
CUresult CUDAAPI get_proc_address_without_status(const char* symbol, void** function, int version,
                                                 cuuint64_t flags) __asm__("cuGetProcAddress");
}
