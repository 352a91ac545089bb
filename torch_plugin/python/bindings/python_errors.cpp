// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/python/bindings/python_errors.h"

#include "torch_plugin/library/last_failure.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/util/Exception.h>

#include <exception>

namespace py = pybind11;

namespace stillwake::pytorch {
namespace {

/// From a code's number to its class. Never destroyed: an error may be raised while the interpreter ends.
py::dict& classes() {
  static py::dict* dict = new py::dict;
  return *dict;
}

/// What Error::describe tells, but for the kind at its begin: the class is that, and tracebacks have its name.
std::string text_of(const Error& error) {
  const std::string text = error.describe();
  const std::string kind = std::string(to_string(error.code)) + ": ";
  return text.rfind(kind, 0) == 0 ? text.substr(kind.size()) : text;
}

py::object make(const Error& error) {
  py::object made = classes()[py::int_(static_cast<int>(error.code))](text_of(error));
  made.attr("driver_error") = error.driver_error;
  made.attr("call") = error.call;
  return made;
}

void raise(const py::object& error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr()); }

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const TorchError& error) {
    raise(make(error.error()));
  } catch (const FullDevice& full) {
    raise(make(full.error()));
  } catch (const c10::OutOfMemoryError& full) { // PyTorch's own
    Error error;
    error.code = ErrorCode::kOutOfDeviceMemory;
    error.message = full.what_without_backtrace();
    raise(make(error));
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

} // namespace

void bind_errors(py::module_& module) {
  module.def("set_error_classes", [](const py::dict& by_code) { classes() = by_code; });
  module.def("take_failure", [] {
    const std::optional<Error> failure = take_failure();
    return failure ? make(*failure) : py::none();
  });
  py::register_local_exception_translator(&translate);
}

} // namespace stillwake::pytorch
