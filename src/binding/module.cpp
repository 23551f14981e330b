#include "binding.hpp"
#include "parallel_tensor/version.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of parallel_tensor; use the names of the package instead.";
  module.attr("__version__") = PARALLEL_TENSOR_VERSION;
  parallel_tensor::binding::bind_exceptions(module);
  parallel_tensor::binding::bind_driver(module);
  parallel_tensor::binding::bind_group(module);
  parallel_tensor::binding::bind_parallel_buffer(module);
  parallel_tensor::binding::bind_collectives(module);
}
