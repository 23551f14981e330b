#include <chrono>
#include <string>

#include "binding.hpp"
#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/dtype.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace py = pybind11;

namespace parallel_tensor::binding {
namespace {

py::dict describe(const driver::Device& device) {
  py::dict result;
  result["ordinal"] = device.ordinal();
  result["name"] = device.name();
  result["uuid"] = device.uuid().text();
  result["memory"] = device.total_memory();
  result["compute_capability"] =
      py::make_tuple(device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                     device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  result["multiprocessors"] = device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  return result;
}

}  // namespace

void bind_driver(py::module_& module) {
  using py::literals::operator""_a;
  module.def("use_driver", &driver::use_driver, "name"_a, "devices"_a = 0);
  module.def("driver_name", &driver::driver_name);
  module.def("driver_loaded", &driver::library_loaded);
  module.def("driver_origin", [] { return driver::library().origin; });
  module.def("driver_version", [] { return driver::library().version; });
  module.def("device_count", &driver::Device::count);
  module.def("current_device", [] { return driver::Device::current().ordinal(); });
  module.def("describe_device", [](int ordinal) { return describe(driver::Device::at(ordinal)); });
  module.def(
      "reclaim",
      [](double patience) {
        if (!driver::library_loaded()) return std::size_t{0};
        return memory::Reclaimer::instance().collect(
            std::chrono::microseconds(static_cast<long long>(patience * 1e6)));
      },
      "patience"_a, py::call_guard<py::gil_scoped_release>());
  module.def("dtype_size", [](const std::string& name) { return dtype_from_name(name).size(); });
}

}  // namespace parallel_tensor::binding
