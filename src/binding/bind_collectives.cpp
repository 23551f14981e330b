#include <cstdint>
#include <string>

#include "binding.hpp"
#include "parallel_tensor/collectives/all_reduce.hpp"
#include "parallel_tensor/collectives/barrier.hpp"

namespace py = pybind11;

namespace parallel_tensor::binding {
namespace {

CUstream stream_at(std::uintptr_t address) { return reinterpret_cast<CUstream>(address); }

void all_reduce_in_place(const ParallelBuffer& buffer, std::size_t offset, std::size_t count,
                         const std::string& dtype, const std::string& op,
                         const std::string& algorithm, std::uintptr_t stream) {
  py::gil_scoped_release release;
  AllReduceOptions options{.dtype = dtype_from_name(dtype), .count = count, .offset_bytes = offset};
  try {
    options.op = reduction_from_name(op);
    options.algorithm = algorithm_from_name(algorithm);
  } catch (const ArgumentError&) {
    // Where the ranks compare their arguments the others are waiting to hear of this one's.
    Group& group = *buffer.group();
    const auto launcher = collectives::Launcher::of(group);
    const auto turn = launcher->turn(device::Channel::all_reduce);
    launcher->agree(group, "all_reduce_", [] { return std::string(); }, [] { throw; });
  }
  all_reduce_(buffer, options, stream_at(stream));
}

}  // namespace

void bind_collectives(py::module_& module) {
  using py::literals::operator""_a;
  module.def("all_reduce_", &all_reduce_in_place, "buffer"_a, "offset"_a, "count"_a, "dtype"_a,
             "op"_a, "algorithm"_a, "stream"_a);
  module.def(
      "barrier",
      [](Group& group, std::uintptr_t stream) {
        py::gil_scoped_release release;
        barrier(group, stream_at(stream));
      },
      "group"_a, "stream"_a);
}

}  // namespace parallel_tensor::binding
