// What is kept of a saved tensor: its metadata, a handle of its version, and, once it is recomputed, itself.
#pragma once

#include "shared.h"

namespace reprise {

// Compared in forward and again, as ``impls.tensors.versions.tensor_metadata``; the version stands beside it.
struct Metadata {
  c10::DimVector sizes;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  bool requires_grad = false, is_leaf = false;
  Object told;  // what Python tells, with the version: of tensors whose class or transform says what their shape is

  static bool asks_python(const at::Tensor& tensor) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    return impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || impl->is_nested();
  }

  static Metadata of(const at::Tensor& tensor, PyObject* object) {
    Metadata found;
    if (asks_python(tensor)) {
      found.told = call(shared.tensor_metadata, object);
      found.requires_grad = tensor.requires_grad();
      return found;
    }
    found.sizes = tensor.sizes();
    found.dtype = tensor.scalar_type();
    found.device = tensor.device();
    found.requires_grad = tensor.requires_grad();
    found.is_leaf = tensor.is_leaf();
    return found;
  }

  bool fits(const at::Tensor& tensor) const {
    return !told && !asks_python(tensor) && tensor.scalar_type() == dtype && tensor.sizes() == sizes &&
        tensor.device() == device && tensor.requires_grad() == requires_grad && tensor.is_leaf() == is_leaf;
  }

  bool fits(const at::Tensor& tensor, PyObject* object) {
    if (!told) return fits(tensor);
    Object expected(new_reference(told.get()));  // this may be moved while Python is asked
    const int same = PyObject_RichCompareBool(expected.get(), call(shared.tensor_metadata, object).get(), Py_EQ);
    if (same < 0) throw python_error();
    return same;
  }

  Object as_tuple(uint32_t version) {
    if (told) return Object(new_reference(told.get()));
    const auto lengths = std::vector<int64_t>(sizes.begin(), sizes.end());  // this may be moved while Python makes objects
    const auto its_dtype = dtype;
    const auto its_device = device;
    const bool its_requires_grad = requires_grad, its_is_leaf = is_leaf;
    Object shape = call(shared.Size, py::tuple(py::cast(lengths)).ptr());
    return Object(py::make_tuple(py::handle(shape.get()), py::cast(its_dtype), py::cast(its_device), version,
                                 its_requires_grad, its_is_leaf).release().ptr());
  }
};

// A ``VersionProbe`` for Python: the version of whatever shares the counter, also once that is gone.
struct VersionHandle {
  PyObject_HEAD
  c10::VariableVersion counter;

  static PyObject* version(PyObject* self, void*) {
    return PyLong_FromLong(reinterpret_cast<VersionHandle*>(self)->counter.current_version());
  }
  static void dealloc(PyObject* self) {
    reinterpret_cast<VersionHandle*>(self)->counter.~VariableVersion();
    Py_TYPE(self)->tp_free(self);
  }
  static PyTypeObject type;

  static Object make(const c10::VariableVersion& counter) {
    Object self(checked(type.tp_alloc(&type, 0)));
    new (&reinterpret_cast<VersionHandle*>(self.get())->counter) c10::VariableVersion(counter);
    return self;
  }
};

inline PyGetSetDef version_getters[] = {{"_version", VersionHandle::version, nullptr, nullptr, nullptr}, {nullptr}};
inline PyTypeObject VersionHandle::type = [] {
  PyTypeObject made{PyVarObject_HEAD_INIT(nullptr, 0)};
  made.tp_name = "impls.native.VersionHandle";
  made.tp_basicsize = sizeof(VersionHandle);
  made.tp_flags = Py_TPFLAGS_DEFAULT;
  made.tp_dealloc = VersionHandle::dealloc;
  made.tp_getset = version_getters;
  return made;
}();

// Recomputed tensors by index, for the backward ``task``. Callable, so that the engine can own them as a final callback (rule 4).
struct RecomputedTensors {
  PyObject_HEAD
  PyObject* weak_references;
  std::vector<PyObject*> tensors;  // null where there is none
  size_t left;
  int64_t task;

  static PyTypeObject type;
  static RecomputedTensors* from(PyObject* self) { return reinterpret_cast<RecomputedTensors*>(self); }

  static Object make(size_t count) {
    Object self(checked(type.tp_alloc(&type, 0)));
    auto* values = from(self.get());
    new (&values->tensors) std::vector<PyObject*>(count, nullptr);
    values->task = -1;
    return self;
  }
  bool has(size_t index) const { return index < tensors.size() && tensors[index]; }

  void set(size_t index, PyObject* tensor) {
    if (index >= tensors.size()) tensors.resize(index + 1, nullptr);
    PyObject* before = std::exchange(tensors[index], new_reference(tensor));
    left += !before;
    Py_XDECREF(before);
  }
  PyObject* pop(size_t index) {  // an owned reference, or null
    if (!has(index)) return nullptr;
    --left;
    return std::exchange(tensors[index], nullptr);
  }

  static int clear(PyObject* self) {
    std::vector<PyObject*> dropped;
    dropped.swap(from(self)->tensors);  // first: letting go of a tensor may run anything
    from(self)->left = 0;
    for (PyObject* tensor : dropped) Py_XDECREF(tensor);
    return 0;
  }
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    for (PyObject* tensor : from(self)->tensors) Py_VISIT(tensor);
    return 0;
  }
  static void dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    if (from(self)->weak_references) PyObject_ClearWeakRefs(self);
    clear(self);
    from(self)->tensors.~vector();
    Py_TYPE(self)->tp_free(self);
  }
  static PyObject* called(PyObject* self, PyObject*, PyObject*) {
    clear(self);
    Py_RETURN_NONE;
  }
  static PyObject* update(PyObject* self, PyObject* other) {
    REPRISE_BEGIN
    const auto count = from(other)->tensors.size();
    for (size_t index = 0; index < count; ++index)
      if (from(other)->has(index)) from(self)->set(index, from(other)->tensors[index]);
    Py_RETURN_NONE;
    REPRISE_END(nullptr)
  }
  static PyObject* pop_at(PyObject* self, PyObject* index) {
    REPRISE_BEGIN
    PyObject* tensor = from(self)->pop(as_integer(index));
    if (!tensor) PyErr_SetObject(PyExc_KeyError, index);
    return tensor;
    REPRISE_END(nullptr)
  }
  static int contains(PyObject* self, PyObject* index) {
    REPRISE_BEGIN
    return from(self)->has(as_integer(index));
    REPRISE_END(-1)
  }
  static Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(from(self)->left); }
};

inline PyMethodDef recomputed_methods[] = {
    {"update", RecomputedTensors::update, METH_O, "Take over the tensors of another one."},
    {"pop", RecomputedTensors::pop_at, METH_O, "The tensor at an index, which is given away."},
    {nullptr}};
inline PyMemberDef recomputed_members[] = {
    {"task", T_LONGLONG, offsetof(RecomputedTensors, task), 0, "the backward that they are for"}, {nullptr}};
inline PySequenceMethods recomputed_as_sequence = [] {
  PySequenceMethods made{};
  made.sq_length = RecomputedTensors::length;
  made.sq_contains = RecomputedTensors::contains;
  return made;
}();
inline PyTypeObject RecomputedTensors::type = [] {
  PyTypeObject made{PyVarObject_HEAD_INIT(nullptr, 0)};
  made.tp_name = "impls.native.RecomputedTensors";
  made.tp_basicsize = sizeof(RecomputedTensors);
  made.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  made.tp_dealloc = RecomputedTensors::dealloc;
  made.tp_traverse = RecomputedTensors::traverse;
  made.tp_clear = RecomputedTensors::clear;
  made.tp_call = RecomputedTensors::called;
  made.tp_weaklistoffset = offsetof(RecomputedTensors, weak_references);
  made.tp_methods = recomputed_methods;
  made.tp_members = recomputed_members;
  made.tp_as_sequence = &recomputed_as_sequence;
  return made;
}();

}  // namespace reprise
