#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "parallel_tensor/interop/dlpack.hpp"
#include "parallel_tensor/memory/device_memory.hpp"
#include "parallel_tensor/parallel_buffer.hpp"

namespace py = pybind11;

namespace parallel_tensor::binding {
namespace {

// Keeps a Python object alive; may be let go on any thread, with or without the GIL.
std::shared_ptr<const void> owner_of(py::object object) {
  if (object.is_none()) return nullptr;
  return std::shared_ptr<const void>(object.release().ptr(), [](const void* pointer) {
    if (!Py_IsInitialized()) return;  // the interpreter is gone, and the object with it
    py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(const_cast<void*>(pointer)));
  });
}

template <typename Managed>
py::capsule capsule(const char* name, Managed* managed) {
  return py::capsule(managed, name, [](PyObject* object) {
    // A consumer renames the capsule and calls the deleter itself.
    const char* current = PyCapsule_GetName(object);
    if (std::string(current).rfind("used_", 0) == 0) return;
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(object, current));
    unused->deleter(unused);
  });
}

py::capsule export_dlpack(const ParallelBuffer& buffer, int rank, std::size_t offset,
                          const std::string& dtype, std::vector<std::int64_t> shape) {
  auto* data = static_cast<std::byte*>(buffer.peer(rank)) + offset;
  return capsule("dltensor", dlpack::make_tensor<dlpack::ManagedTensor>(
                                 data, buffer.device(), dtype_from_name(dtype), std::move(shape),
                                 buffer.owner(rank)));
}

// Memory that share() takes, for programs and tests without an allocator of their own.
py::capsule allocate_plain(int ordinal, std::size_t bytes) {
  const driver::Device device = driver::Device::at(ordinal);
  auto memory = memory::reclaimed(memory::DeviceMemory(device, bytes), device);
  return capsule("dltensor", dlpack::make_tensor<dlpack::ManagedTensor>(
                                 memory->pointer(), device, dtype_from_name("uint8"),
                                 {static_cast<std::int64_t>(bytes)}, memory));
}

std::string flavor_name(memory::Flavor flavor) {
  return flavor == memory::Flavor::legacy ? "legacy" : "fd";
}

using Existing = std::tuple<std::uintptr_t, std::size_t, py::object>;

}  // namespace

void bind_parallel_buffer(py::module_& module) {
  using py::literals::operator""_a;
  using Release = py::call_guard<py::gil_scoped_release>;
  py::enum_<MulticastPolicy>(module, "MulticastPolicy")
      .value("off", MulticastPolicy::off)
      .value("required", MulticastPolicy::required)
      .value("automatic", MulticastPolicy::automatic);
  module.def("allocate_plain", &allocate_plain, "device"_a, "bytes"_a);
  py::class_<ParallelBuffer>(module, "ParallelBuffer")
      .def_static(
          "create",
          [](std::shared_ptr<Group> group, std::size_t bytes, MulticastPolicy multicast,
             std::optional<int> device, const std::string& signature, const py::bytes& pattern) {
            const BufferOptions options{multicast, device, signature, pattern};
            py::gil_scoped_release release;
            return ParallelBuffer::create(std::move(group), bytes, options);
          },
          "group"_a, "bytes"_a, "multicast"_a, "device"_a, "signature"_a, "pattern"_a)
      .def_static(
          "share",
          [](std::shared_ptr<Group> group, std::vector<Existing> list, MulticastPolicy multicast,
             std::optional<int> device, const std::string& signature) {
            std::vector<ExistingMemory> memories;
            for (auto& [pointer, bytes, owner] : list) {
              memories.push_back({reinterpret_cast<void*>(pointer), bytes, owner_of(owner)});
            }
            const BufferOptions options{multicast, device, signature, {}};
            py::gil_scoped_release release;
            return ParallelBuffer::share(std::move(group), memories, options);
          },
          "group"_a, "memories"_a, "multicast"_a, "device"_a, "signature"_a)
      .def("pointer", [](const ParallelBuffer& buffer,
                         int rank) { return reinterpret_cast<std::uintptr_t>(buffer.peer(rank)); })
      .def("dlpack", &export_dlpack, "rank"_a, "offset"_a, "dtype"_a, "shape"_a)
      .def("close", &ParallelBuffer::close, Release())
      .def("release", &ParallelBuffer::release)
      .def_property_readonly("closed", &ParallelBuffer::closed)
      .def_property_readonly("group", &ParallelBuffer::group)
      .def_property_readonly("rank", &ParallelBuffer::rank)
      .def_property_readonly("size", &ParallelBuffer::size)
      .def_property_readonly("bytes", &ParallelBuffer::bytes)
      .def_property_readonly("device", [](const ParallelBuffer& b) { return b.device().ordinal(); })
      .def_property_readonly("flavor",
                             [](const ParallelBuffer& b) { return flavor_name(b.flavor()); })
      .def_property_readonly("multicast_pointer", &ParallelBuffer::multicast_pointer)
      .def_property_readonly("multicast_reason", &ParallelBuffer::multicast_reason)
      .def_property_readonly("timings", &ParallelBuffer::timings);
}

}  // namespace parallel_tensor::binding
