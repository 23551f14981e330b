/// @file
/// The version of parallel-tensor, the only place that states it (CMake and the wheel read it
/// here).
#pragma once

#define PARALLEL_TENSOR_VERSION_MAJOR 0
#define PARALLEL_TENSOR_VERSION_MINOR 1
#define PARALLEL_TENSOR_VERSION_PATCH 0
#define PARALLEL_TENSOR_VERSION "0.1.0"
