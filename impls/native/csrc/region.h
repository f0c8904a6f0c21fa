// One call of ``checkpoint``: its inputs, and a slot in the graph for each tensor that it saved.
#pragma once

#include "tensors.h"

namespace reprise {

struct Region;
Object capture_inner(PyObject* owner, PyObject* args, PyObject* kwargs);
void on_inner_save(PyObject* owner, const at::Tensor& tensor, PyObject* object, PyObject* origin);

// Stands in the graph for a saved tensor. It owns its region, and the region sees by its end that the graph has cleared it.
struct Slot {
  PyObject_HEAD
  Region* region;
  uint32_t index;

  static PyTypeObject type;
  static Slot* from(PyObject* self) { return reinterpret_cast<Slot*>(self); }
  static void dealloc(PyObject* self);
};

// What a region remembers of a saved tensor.
struct Record {
  PyObject* slot;  // not owned; null once the graph has cleared it
  c10::VariableVersion counter;
  uint32_t version;
  uint32_t metadata : 31;
  uint32_t has_origin : 1;
};

// Where in memory a saved tensor is that may have been there before the region: another one in its place has other values.
struct Place {
  const void* address;
  c10::DimVector strides;
  int64_t offset;
  bool conjugated, negated;
  c10::Storage storage;  // of an argument, which is known to be from outside; for others an Origin has it

  Place(const at::Tensor& tensor, bool is_argument)
      : address(tensor.const_data_ptr()), strides(tensor.strides()), offset(tensor.storage_offset()),
        conjugated(tensor.is_conj()), negated(tensor.is_neg()), storage(is_argument ? tensor.storage() : c10::Storage()) {}
  bool is_of(const at::Tensor& tensor) const {
    return tensor.has_storage() && tensor.const_data_ptr() == address && tensor.strides() == strides &&
        tensor.is_conj() == conjugated && tensor.is_neg() == negated;
  }
};

// Whether a tensor is what autocast makes of a leaf, or a view of that: made anew, it may lie where another one lay.
inline bool is_cast_of_leaf(const at::Tensor& tensor) {
  const auto& node = tensor.is_view() ? tensor._base().grad_fn() : tensor.grad_fn();
  return node && typeid(*node) == typeid(torch::autograd::generated::ToCopyBackward0) &&
      dynamic_cast<torch::autograd::AccumulateGrad*>(node->next_edge(0).function.get());
}

// Whether ``impls.tensors.closures.closed_over_results``, which takes longer, finds any.
inline bool closes_over_results(PyObject* function) {
  PyObject* functions[20] = {function};
  for (size_t index = 0, count = 1; index < count; ++index) {
    PyObject* one = PyMethod_Check(functions[index]) ? PyMethod_GET_FUNCTION(functions[index]) : functions[index];
    PyObject* closure = PyFunction_Check(one) ? PyFunction_GET_CLOSURE(one) : nullptr;
    for (Py_ssize_t at = 0; closure && at < PyTuple_GET_SIZE(closure); ++at) {
      PyObject* value = PyCell_GET(PyTuple_GET_ITEM(closure, at));
      if (value && THPVariable_CheckExact(value)) {
        if (THPVariable_Unpack(value).requires_grad() && !THPVariable_Unpack(value).is_leaf()) return true;
      } else if (value && PyFunction_Check(value) && count < std::size(functions)) {
        functions[count++] = value;
      }
    }
  }
  return false;
}

struct FlatTensor {
  PyObject* tensor;  // owned by the arguments
  c10::VariableVersion counter;
  uint32_t version;
};

struct Region {
  PyObject_HEAD
  PyObject* weak_references;
  // Objects of Python, each owned or null. ``inputs`` is null if args and kwargs are flat: then they are kept as they are.
  PyObject *function, *args, *kwargs, *inputs, *context, *modes, *pass_through, *modes_after, *states, *stream,
      *operator_log, *origins, *candidates, *closed_over, *changed_name, *enclosing, *inner_places;
  char early_stop, check, complete, has_inner_origins, has_function_modes;
  int64_t hooks_at_start, hooks_at_end;
  uint64_t first_sequence_number;
  ModeState mode_state;
  at::Tensor cpu_state;  // of the CPU's generator, if there is nothing else that random numbers may come from
  std::vector<FlatTensor> flat;
  std::vector<Record> records;
  std::vector<Metadata> looks;  // neighbours often look the same, and share one
  std::unordered_map<uint32_t, Place> places;  // of those that have an origin
  std::vector<uint32_t> inner_versions;  // of the tensors that regions inside saved
  std::vector<std::pair<int64_t, PyObject*>> values_by_task;  // weak references

  static PyTypeObject type;
  static Region* from(PyObject* self) { return reinterpret_cast<Region*>(self); }
  static bool is(PyObject* object) { return object && Py_TYPE(object) == &type; }
  PyObject* self() { return reinterpret_cast<PyObject*>(this); }

  // ---- forward

  bool keep_flat(PyObject* value) {
    if (!THPVariable_CheckExact(value)) {
      const int is_atom = PySet_Contains(shared.atoms, reinterpret_cast<PyObject*>(Py_TYPE(value)));
      if (is_atom < 0) throw python_error();  // a class without a hash
      return is_atom;
    }
    const auto& counter = THPVariable_Unpack(value).unsafeGetTensorImpl()->version_counter();
    if (!counter.enabled()) return false;  // made in inference mode
    flat.push_back({value, counter, counter.current_version()});
    return true;
  }

  bool keep_flat() {
    if (hooks_are_active()) return false;  // somebody watches what is saved, and inputs are saved tensors (rule 2)
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(args); ++index)
      if (!keep_flat(PyTuple_GET_ITEM(args, index))) return false;
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(kwargs, &position, &key, &value);)
      if (!keep_flat(value)) return false;
    return true;
  }

  void capture() {
    PyObject* around = owner_of_hooks();
    enclosing = around && is_owner(around) ? new_reference(around) : nullptr;
    if (!keep_flat()) {
      flat.clear();
      inputs = (enclosing ? capture_inner(enclosing, args, kwargs) : call(shared.capture_inputs, args, kwargs)).release();
    }
    if (closes_over_results(function)) closed_over = call(shared.closed_over_results, function).release();
    first_sequence_number = is(enclosing) ? from(enclosing)->first_sequence_number : at::sequence_number::peek();
    mode_state = ModeState::current();
    has_function_modes = reprise::has_function_modes();
    modes = current_modes(mode_state);
    if (c10::impl::TorchDispatchModeTLS::stack_len()) pass_through = call(shared.pass_through).release();
    hooks_at_start = registration_count();
    hooks_at_end = -1;
  }
  static bool is_owner(PyObject* object);

  bool contains(PyObject* object) const {
    for (const auto& one : flat)
      if (one.tensor == object) return true;
    return false;
  }

  uint32_t remember(const at::Tensor& tensor, PyObject* object) {
    if (looks.empty() || !looks.back().fits(tensor)) looks.push_back(Metadata::of(tensor, object));
    return static_cast<uint32_t>(looks.size() - 1);
  }

  PyObject* pack(PyObject* object) {
    const auto& tensor = THPVariable_Unpack(object);
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    const auto look = remember(tensor, object);
    // Rule 1: hooks do not stack, only the innermost region is asked.
    records.push_back({nullptr, counter, counter.current_version(), look, 0});
    auto* slot = PyObject_New(Slot, &Slot::type);
    if (!slot) throw python_error();
    Object owned(records.back().slot = reinterpret_cast<PyObject*>(slot));
    slot->index = static_cast<uint32_t>(records.size() - 1);
    slot->region = from(new_reference(self()));
    Object origin;
    if (check) origin = find_origin(tensor, object, slot->index);
    if (enclosing) on_inner_save(enclosing, tensor, object, origin.get());
    return owned.release();
  }

  // What a saved tensor is or is a view of, if that may be from outside. Nearly all are results that the region has made.
  Object find_origin(const at::Tensor& tensor, PyObject* object, uint32_t index) {
    const bool is_leaf = tensor.is_leaf(), is_result = !is_leaf && !tensor.is_view();
    const bool is_cast = !is_leaf && is_cast_of_leaf(tensor);
    if (is_result && !is_cast) {
      const auto& node = tensor.grad_fn();
      if (!node || node->sequence_nr() >= first_sequence_number) return {};
    }
    // One of symbolic sizes, which a compiler traces, has no memory to tell it by, and a nested one several places.
    const auto* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.has_storage() || impl->has_symbolic_sizes_strides() || impl->is_nested()) return {};
    if (!is_result && contains(object)) {
      if (is_leaf) {  // which may be given other data; its Origin is made if it has been
        records[index].has_origin = 1;
        places.emplace(index, Place(tensor, true));
      }
      return {};
    }
    Object origin = call(shared.note_origin, self(), integer(index).get(), object, is_result ? Py_True : Py_False);
    if (origin.get() == Py_None) return {};
    if (!is_cast) places.emplace(index, Place(tensor, false));
    return origin;
  }

  PyObject* unpack(PyObject* packed) {
    if (Py_TYPE(packed) != &Slot::type || Slot::from(packed)->region != this) {
      PyErr_Format(PyExc_TypeError, "packed is %R; it must be a slot of this region", packed);
      throw python_error();
    }
    const auto index = Slot::from(packed)->index;
    require_version(index, records[index].counter.current_version(), false);
    const auto task = torch::autograd::get_current_graph_task_id();
    Object values = find_values(task);
    PyObject* tensor = values ? RecomputedTensors::from(values.get())->pop(index) : nullptr;  // rule 4: it dies as it is unpacked
    if (!tensor) tensor = recompute(task, packed);
    if (!tensor) tensor = call(shared.recompute, self(), integer(task).get(), packed, Py_False).release();
    Object owned(tensor);
    TORCH_CHECK_TYPE(THPVariable_Check(tensor), "a recomputation gave no tensor");
    require_version(index, version_of(THPVariable_Unpack(tensor)), true);
    return owned.release();
  }

  PyObject* recompute(int64_t task, PyObject* slot);

  bool registers_hooks() const {
    return hooks_at_end == -1 || hooks_at_end != hooks_at_start;
  }

  // Whether a flat argument may have hooks that it got after the call, or keeps a gradient as a result.
  bool may_have_later_hooks() const {
    const bool registered = registration_count() != hooks_at_start;
    for (const auto& one : flat) {
      if (!one.tensor) continue;
      auto* variable = reinterpret_cast<THPVariable*>(one.tensor);
      if (registered && (variable->backward_hooks || variable->post_accumulate_grad_hooks)) return true;
      if (THPVariable_Unpack(one.tensor).retains_grad()) return true;
    }
    return false;
  }

  bool has_batched() const {
    for (const auto& one : flat)
      if (one.tensor && THPVariable_Unpack(one.tensor).key_set().has(c10::DispatchKey::FuncTorchBatched)) return true;
    return false;
  }

  void require_version(uint32_t index, uint32_t now, bool recomputed) {
    if (now != records[index].version)
      call(shared.refuse_changed, self(), integer(index).get(), integer(now).get(), recomputed ? Py_True : Py_False);
  }

  // ---- values

  Object find_values(int64_t task) {
    for (const auto& [key, reference] : values_by_task) {
      if (key != task) continue;
      PyObject* values = nullptr;
      if (PyWeakref_GetRef(reference, &values) < 0) throw python_error();
      return Object(values);
    }
    return {};
  }

  void keep_values(int64_t task, PyObject* values) {
    Object reference(checked(PyWeakref_NewRef(values, nullptr)));
    std::vector<std::pair<int64_t, PyObject*>> before, kept;
    before.swap(values_by_task);
    for (const auto& one : before) {
      PyObject* alive = nullptr;
      if (one.first != task && PyWeakref_GetRef(one.second, &alive) == 1) {
        kept.push_back(one);
        Py_DECREF(alive);
      } else {
        Py_DECREF(one.second);
      }
    }
    kept.emplace_back(task, reference.release());
    values_by_task = std::move(kept);
  }

  // ---- what the recomputation asks

  int64_t first_changed() {
    for (size_t index = 0; index < flat.size(); ++index)
      if (flat[index].counter.current_version() != flat[index].version) return static_cast<int64_t>(index);
    if (!inputs) return -1;
    Object index = call_method(inputs, REPRISE_NAME("first_changed"));
    return index.get() == Py_None ? -1 : as_integer(index.get());
  }

  // Forward is over, or has failed: let go of what only that needed.
  void end_forward(PyObject* output) {
    if (candidates) call(shared.settle_origins, self(), output);
    Py_CLEAR(candidates);
    if (origins) {
      PyObject *key, *value;
      for (Py_ssize_t position = 0; PyDict_Next(origins, &position, &key, &value);) {
        const auto index = as_integer(key);
        if (index >= 0) records[index].has_origin = 1;
        else has_inner_origins = 1;
      }
    }
    if (closed_over) changed_name = call(shared.find_changed, closed_over).release();
    Py_CLEAR(closed_over);
    Py_CLEAR(enclosing);
    if (inputs) {
      call_method(inputs, REPRISE_NAME("find_other_names"), function);
      call_method(inputs, REPRISE_NAME("end_forward"));
    } else if (first_changed() >= 0) {  // one of the changed tensors may be an output, which holds the region
      for (auto& one : flat) one.tensor = nullptr;
      Py_CLEAR(args);
      Py_CLEAR(kwargs);
    }
    hooks_at_end = registration_count();
  }
};

inline void Slot::dealloc(PyObject* self) {
  Region* region = from(self)->region;
  auto& record = region->records[from(self)->index];
  record.slot = nullptr;
  record.counter = c10::VariableVersion();  // nobody is going to unpack it
  PyObject_Free(self);
  Py_DECREF(region->self());
}

inline PyMemberDef slot_members[] = {
    {"index", T_UINT, offsetof(Slot, index), READONLY, nullptr}, {"region", T_OBJECT, offsetof(Slot, region), READONLY, nullptr},
    {nullptr}};
inline PyTypeObject Slot::type = [] {
  PyTypeObject made{PyVarObject_HEAD_INIT(nullptr, 0)};
  made.tp_name = "impls.native.Slot";
  made.tp_basicsize = sizeof(Slot);
  made.tp_flags = Py_TPFLAGS_DEFAULT;
  made.tp_dealloc = Slot::dealloc;
  made.tp_members = slot_members;
  return made;
}();

}  // namespace reprise
