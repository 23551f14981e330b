#include <pybind11/stl.h>

#include <string>

#include "binding.hpp"
#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/interrupt.hpp"

namespace py = pybind11;

namespace parallel_tensor::binding {
namespace {

template <typename... Arguments>
void raise(const char* name, Arguments&&... arguments) {
  // The classes live in Python, so that they pickle and can be read; they are looked up here
  // because an exception is no place to be fast.
  try {
    py::object type = py::module_::import("parallel_tensor.errors").attr(name);
    py::object error = type(std::forward<Arguments>(arguments)...);
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (py::error_already_set& instead) {
    // A Ctrl-C that is handled while the object is made. Left to pybind11 it would be lost.
    instead.restore();
  }
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const OutOfMemoryError& error) {
    raise("OutOfMemoryError", error.what(), error.call(), error.code(), error.name());
  } catch (const DriverError& error) {
    raise("DriverError", error.what(), error.call(), error.code(), error.name());
  } catch (const ArgumentError& error) {
    raise("ArgumentError", error.what());
  } catch (const NotSupportedError& error) {
    raise("NotSupportedError", error.what());
  } catch (const PeerError& error) {
    raise("PeerError", error.what(), error.rank(), error.pid(), error.phase());
  } catch (const TimeoutError& error) {
    raise("TimeoutError", error.what(), error.phase(), py::cast(error.missing()));
  } catch (const MismatchError& error) {
    raise("MismatchError", error.what(), error.phase());
  } catch (const ExchangeError& error) {
    raise("ExchangeError", error.what(), error.phase());
  } catch (const Error& error) {
    raise("Error", error.what());
  }
}

void check_signals() {
  // At exit the interpreter takes the GIL away for good: asking for it would end the thread.
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace

void bind_exceptions(py::module_&) {
  py::register_local_exception_translator(&translate);
  posix::set_interrupt_hook(&check_signals);
}

}  // namespace parallel_tensor::binding
