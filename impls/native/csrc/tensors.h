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
  Object python_metadata;  // with the version, of tensors whose shape only Python tells

  static bool asks_python(const at::Tensor& tensor) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    return impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || impl->is_nested();
  }

  static Metadata of(const at::Tensor& tensor) {  // which does not ask Python
    return {c10::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device(), tensor.requires_grad(), tensor.is_leaf(), {}};
  }

  static Metadata from_python(const at::Tensor& tensor, PyObject* object) {
    Metadata found;
    found.python_metadata = call(shared.tensor_metadata, object);
    found.requires_grad = tensor.requires_grad();
    return found;
  }

  bool fits(const at::Tensor& tensor) const {
    return !python_metadata && !asks_python(tensor) && tensor.scalar_type() == dtype && tensor.sizes() == sizes &&
        tensor.device() == device && tensor.requires_grad() == requires_grad && tensor.is_leaf() == is_leaf;
  }

  bool fits(const at::Tensor& tensor, PyObject* object) {
    if (!python_metadata) return fits(tensor);
    const int same = PyObject_RichCompareBool(python_metadata.get(), call(shared.tensor_metadata, object).get(), Py_EQ);
    if (same < 0) throw python_error();
    return same;
  }

  Object as_tuple(uint32_t version) {
    if (python_metadata) return Object(new_reference(python_metadata.get()));
    Object shape = call(shared.Size, py::tuple(py::cast(std::vector<int64_t>(sizes.begin(), sizes.end()))).ptr());
    return Object(py::make_tuple(py::handle(shape.get()), py::cast(dtype), py::cast(device), version, requires_grad, is_leaf)
                      .release().ptr());
  }

  // With the GIL. What is asked of Python must be asked of a copy, since a region may save more tensors meanwhile.
  Metadata copy() { return {sizes, dtype, device, requires_grad, is_leaf, Object(new_reference(python_metadata.get()))}; }
};

// A ``VersionProbe`` for Python: the version of whatever shares the counter, also once that is gone.
struct VersionHandle {
  PyObject_HEAD
  c10::VariableVersion counter;

  static PyObject* version(PyObject* self, void*) {
    REPRISE_BEGIN
    return PyLong_FromLong(reinterpret_cast<VersionHandle*>(self)->counter.current_version());
    REPRISE_END(nullptr)
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

// Recomputed tensors by index, for the backward ``task`` (rule 4). Any thread may ask, without the GIL.
class Values {
 public:
  std::atomic<int64_t> task{-1};

  bool has(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return index < tensors_.size() && tensors_[index].defined();
  }
  size_t remaining() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return left_;
  }
  at::Tensor get(size_t index) {  // undefined if there is none
    const std::lock_guard<std::mutex> lock(mutex_);
    return index < tensors_.size() ? tensors_[index] : at::Tensor();
  }
  void set(size_t index, at::Tensor tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= tensors_.size()) tensors_.resize(index + 1);
    left_ += !tensors_[index].defined();
    std::swap(tensors_[index], tensor);  // what was there is dropped after the lock
  }
  at::Tensor pop(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= tensors_.size() || !tensors_[index].defined()) return {};
    --left_;
    return std::move(tensors_[index]);
  }
  void expect(size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tensors_.reserve(count);
  }
  std::vector<at::Tensor> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ = 0;
    return std::exchange(tensors_, {});
  }
  std::vector<at::Tensor> tensors() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return tensors_;
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> tensors_;
  size_t left_ = 0;
};

// ``Values`` for Python. Callable, so that the engine can own them as a final callback.
struct RecomputedTensors {
  PyObject_HEAD
  std::shared_ptr<Values> values;

  static PyTypeObject type;
  static Values& of(PyObject* self) { return *reinterpret_cast<RecomputedTensors*>(self)->values; }
  static std::shared_ptr<Values> shared_of(PyObject* self) {
    TORCH_CHECK_TYPE(Py_TYPE(self) == &type, "values are ", Py_TYPE(self)->tp_name, "; they must be RecomputedTensors");
    return reinterpret_cast<RecomputedTensors*>(self)->values;
  }
  static Object make(std::shared_ptr<Values> values) {
    Object self(checked(type.tp_alloc(&type, 0)));
    new (&reinterpret_cast<RecomputedTensors*>(self.get())->values) std::shared_ptr<Values>(std::move(values));
    return self;
  }
  static void dealloc(PyObject* self) {
    std::destroy_at(&reinterpret_cast<RecomputedTensors*>(self)->values);
    Py_TYPE(self)->tp_free(self);
  }
  static PyObject* called(PyObject* self, PyObject*, PyObject*) {
    of(self).take();
    Py_RETURN_NONE;
  }
  static PyObject* update(PyObject* self, PyObject* other) {
    REPRISE_BEGIN
    size_t index = 0;
    for (const auto& tensor : shared_of(other)->tensors()) {
      if (tensor.defined()) of(self).set(index, tensor);
      ++index;
    }
    Py_RETURN_NONE;
    REPRISE_END(nullptr)
  }
  static PyObject* pop_at(PyObject* self, PyObject* index) {
    REPRISE_BEGIN
    const auto tensor = of(self).pop(as_integer(index));
    if (tensor.defined()) return THPVariable_Wrap(tensor);
    PyErr_SetObject(PyExc_KeyError, index);
    return nullptr;
    REPRISE_END(nullptr)
  }
  static int contains(PyObject* self, PyObject* index) {
    REPRISE_BEGIN
    return of(self).has(as_integer(index));
    REPRISE_END(-1)
  }
  static Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(of(self).remaining()); }
  static PyObject* task(PyObject* self, void*) { return PyLong_FromLongLong(of(self).task); }
  static int set_task(PyObject* self, PyObject* value, void*) {
    REPRISE_BEGIN
    of(self).task = as_integer(value);
    return 0;
    REPRISE_END(-1)
  }
};

inline PyMethodDef recomputed_methods[] = {
    {"update", RecomputedTensors::update, METH_O, "Take over the tensors of another one."},
    {"pop", RecomputedTensors::pop_at, METH_O, "The tensor at an index, which is given away."},
    {nullptr}};
inline PyGetSetDef recomputed_getters[] = {
    {"task", RecomputedTensors::task, RecomputedTensors::set_task, "the backward that they are for", nullptr}, {nullptr}};
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
  made.tp_flags = Py_TPFLAGS_DEFAULT;
  made.tp_dealloc = RecomputedTensors::dealloc;
  made.tp_call = RecomputedTensors::called;
  made.tp_methods = recomputed_methods;
  made.tp_getset = recomputed_getters;
  made.tp_as_sequence = &recomputed_as_sequence;
  return made;
}();

}  // namespace reprise
