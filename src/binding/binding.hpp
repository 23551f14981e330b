/// @file
/// What the files of the Python module share.
#pragma once

#include <pybind11/pybind11.h>

namespace parallel_tensor::binding {

/// Translates exceptions to the classes of parallel_tensor.errors and installs the interrupt hook.
void bind_exceptions(pybind11::module_& module);
void bind_driver(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_parallel_buffer(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);

}  // namespace parallel_tensor::binding
