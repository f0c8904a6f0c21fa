// What all parts use: owned references, the functions in Python that native shares with nested, modes and hooks.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <structmember.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#ifdef Py_GIL_DISABLED
#error "impls.native relies on the GIL: what is rare has no locks of its own"
#endif

namespace reprise {

using Object = THPObjectPtr;  // an owned reference

// By their names in ``setup``. They are never let go: hooks may run until the interpreter ends.
#define REPRISE_SHARED(_)                                                                                          \
  _(StopRecomputation) _(RemovableHandle) _(default_generator) _(atoms) _(capture_inputs) _(capture_inner)         \
  _(current_modes) _(pass_through) _(process_wide) _(tensor_metadata) _(detach_without_modes) _(note_origin)       \
  _(settle_origins) _(recompute) _(refuse_changed) _(make_comparison) _(find_late_write) _(no_context) _(running)  \
  _(current_thread) _(current_graph_exec_group) _(process_lock) _(remove_thread_object)          \
  _(put_modes_back) _(inherit) _(refuse_difference) _(code_of_hooked_call) _(is_inside_hooks_always_called)        \
  _(Size) _(closed_over_results) _(find_changed) _(has_removed_hooks_for_now) _(unpack_later) _(Snapshot)  \
  _(Parameter) _(keeps_leaf)

struct Shared {
#define REPRISE_FIELD(name) PyObject* name = nullptr;
  REPRISE_SHARED(REPRISE_FIELD)
#undef REPRISE_FIELD
  int accelerator = -1;  // a device type, or -1
};
inline Shared shared;

// What Python calls returns ``failure`` with an exception of Python set, and throws nothing.
#define REPRISE_BEGIN try {
#define REPRISE_END(failure)                                          \
  }                                                                   \
  catch (...) {                                                       \
    set_exception();                                                  \
    return failure;                                                   \
  }

// Makes the C++ exception under way one of Python. What ends a thread at the interpreter's end is none, and goes on.
inline void set_exception() {
  try {
    throw;
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

inline PyObject* checked(PyObject* result) {
  if (!result) throw python_error();
  return result;
}

template <typename... Arguments>
Object call(PyObject* function, Arguments... arguments) {
  return Object(checked(PyObject_CallFunctionObjArgs(function, arguments..., nullptr)));
}

// A string that is made once.
#define REPRISE_NAME(text) ([] { static PyObject* const name = PyUnicode_InternFromString(text); return name; }())

inline Object attribute(PyObject* self, PyObject* name) { return Object(checked(PyObject_GetAttr(self, name))); }

template <typename... Arguments>
Object call_method(PyObject* self, PyObject* name, Arguments... arguments) {
  return Object(checked(PyObject_CallMethodObjArgs(self, name, arguments..., nullptr)));
}

inline Object integer(int64_t value) { return Object(checked(PyLong_FromLongLong(value))); }

inline int64_t as_integer(PyObject* object) {
  int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw python_error();
  return value;
}

inline PyObject* new_reference(PyObject* object) {
  Py_XINCREF(object);
  return object;
}

// A reference to an object of Python that may be copied and dropped without the GIL.
using Shareable = std::shared_ptr<PyObject>;

inline Shareable make_shareable(PyObject* object) {
  return {new_reference(object), [](PyObject* owned) {
            if (!Py_IsInitialized()) return;  // the interpreter has ended before the graph
            py::gil_scoped_acquire gil;
            Py_DECREF(owned);
          }};
}

// Calls a function with the GIL. An error of Python's is carried by the exception: a thread without Python loses its own.
template <typename Function>
auto with_gil(Function function) {
  py::gil_scoped_acquire gil;
  try {
    return function();
  } catch (python_error& error) {
    error.persist();
    throw;
  }
}

// What whoever has hooks on top needs for hooks that run without the GIL. Nothing runs under ``mutex`` that takes the GIL.
struct HookState {
  std::mutex mutex;
  Shareable on_top;  // the object itself, while its hooks are on top

  void set_on_top(Shareable object) {
    const std::lock_guard<std::mutex> lock(mutex);
    on_top.swap(object);  // what was there is dropped after the lock
  }
};

// Makes a reference if there is none: a thread that inherited the hooks may save tensors after they were taken off.
inline void ensure_owner(Shareable* owner, PyObject* object) {
  if (!owner || *owner) return;
  py::gil_scoped_acquire gil;
  *owner = make_shareable(object);
}

inline int64_t registration_count() {
  return as_integer(attribute(shared.RemovableHandle, REPRISE_NAME("next_id")).get());
}

// The modes of all threads, of which a function that is stopped while it has set them could not set them back.
struct ProcessWide {
  at::ScalarType dtype;
  bool deterministic, warns_only;

  static ProcessWide current() {
    const auto& context = at::globalContext();
    return {c10::get_default_dtype_as_scalartype(), context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly()};
  }
  bool operator==(const ProcessWide& other) const {
    return dtype == other.dtype && deterministic == other.deterministic && warns_only == other.warns_only;
  }
};

inline bool has_function_modes() { return at::impl::PythonTorchFunctionTLS::stack_len() > 0; }

struct ModeState {
  bool autocast[2], cache;
  at::ScalarType types[2];
  at::impl::TorchFunctionDisabledState functions;
  ProcessWide process_wide;

  static ModeState current() {
    const auto other = shared.accelerator < 0 ? at::kCPU : static_cast<at::DeviceType>(shared.accelerator);
    return {{at::autocast::is_autocast_enabled(at::kCPU), at::autocast::is_autocast_enabled(other)},
            at::autocast::is_autocast_cache_enabled(),
            {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(other)},
            at::impl::PythonTorchFunctionTLS::get_disabled_state(),
            ProcessWide::current()};
  }
  bool operator==(const ModeState& other) const {
    return autocast[0] == other.autocast[0] && autocast[1] == other.autocast[1] && cache == other.cache &&
        types[0] == other.types[0] && types[1] == other.types[1] && functions == other.functions &&
        process_wide == other.process_wide;
  }
};

// What ``impls.state.modes.current_modes`` gives, which is asked only if the modes are not those of the last call.
inline PyObject* current_modes(const ModeState& state) {
  static ModeState last_state;
  static PyObject* last = nullptr;
  if (has_function_modes()) return call(shared.current_modes).release();
  if (!last || !(state == last_state)) {
    Object before(std::exchange(last, call(shared.current_modes).release()));
    last_state = state;
  }
  return new_reference(last);
}

inline void push_hooks(PyObject* self, PyMethodDef* pack, PyMethodDef* unpack) {
  Object first(checked(PyCFunction_New(pack, self))), second(checked(PyCFunction_New(unpack, self)));
  at::SavedTensorDefaultHooks::lazy_initialize();
  at::SavedTensorDefaultHooks::push_hooks(
      c10::SafePyObject(first.release(), getPyInterpreter()), c10::SafePyObject(second.release(), getPyInterpreter()));
}

// Whose hooks are on top, by their ``__self__``; a borrowed reference or null.
inline PyObject* owner_of_hooks() {
  const auto& stack = at::SavedTensorDefaultHooks::get_tls_state().stack;
  if (stack.empty()) return nullptr;
  PyObject* pack = stack.top().first.ptr(getPyInterpreter());
  return PyCFunction_Check(pack) ? PyCFunction_GET_SELF(pack) : nullptr;
}

inline bool hooks_are_active() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

// Runs what is due after a call whose exception of Python, if any, is set. Throws nothing: another exception takes its place.
template <typename Function>
inline void with_error_kept(Function function) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  try {
    function();
  } catch (...) {
    set_exception();
  }
  if (kind && !PyErr_Occurred()) return PyErr_Restore(kind, value, trace);
  Py_XDECREF(kind);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

// Returns what a call gave, unless what was due after it has failed.
inline PyObject* unless_error(Object result) { return PyErr_Occurred() ? nullptr : result.release(); }

// The state of the generator that everything on the CPU draws from. As a tensor, it takes ten times as long to get and to set.
struct GeneratorState {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static std::unique_ptr<GeneratorState> current() {
    auto generator = at::detail::getDefaultCPUGenerator();
    auto* own = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::scoped_lock<std::mutex> lock(generator.mutex());
    return std::make_unique<GeneratorState>(
        GeneratorState{own->engine(), own->next_float_normal_sample(), own->next_double_normal_sample()});
  }
  void put_into(at::Generator generator) const {
    auto* own = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::scoped_lock<std::mutex> lock(generator.mutex());
    own->set_engine(engine);
    own->set_next_float_normal_sample(next_float);
    own->set_next_double_normal_sample(next_double);
  }
  void restore() const { put_into(at::detail::getDefaultCPUGenerator()); }
  at::Tensor as_tensor() const {
    const auto generator = at::detail::createCPUGenerator();
    put_into(generator);
    return generator.get_state();
  }
};

// States as ``impls.state.random_numbers`` has them.
inline Object states_of(PyObject* list, const GeneratorState* cpu_state) {
  if (list) return Object(new_reference(list));
  Object made(checked(PyList_New(0)));
  if (cpu_state) {
    Object tensor(checked(THPVariable_Wrap(cpu_state->as_tensor())));
    Object pair(checked(PyTuple_Pack(2, shared.default_generator, tensor.get())));
    if (PyList_Append(made.get(), pair.get()) < 0) throw python_error();
  }
  return made;
}

inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace reprise
