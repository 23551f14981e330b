/// @file
/// How the functions of the device headers are declared: with nvcc they are device code, with a
/// host compiler the same text is an ordinary inline function, so that a protocol has one source.
#pragma once

#if defined(__CUDACC__)
/// Code that runs inside a kernel (with nvcc), or in the host function that stands for one.
#define PARALLEL_TENSOR_DEVICE __device__ __forceinline__
/// Code that the host and kernels may both call.
#define PARALLEL_TENSOR_HOST_DEVICE __host__ __device__ __forceinline__
/// Before a loop: unrolled as often as said, wholly when nothing is said.
#define PARALLEL_TENSOR_UNROLL(times) PARALLEL_TENSOR_PRAGMA(unroll times)
#define PARALLEL_TENSOR_PRAGMA(text) _Pragma(#text)
#else
#define PARALLEL_TENSOR_DEVICE inline
#define PARALLEL_TENSOR_HOST_DEVICE inline
#define PARALLEL_TENSOR_UNROLL(times)
#endif
