// One call of ``checkpoint``: its inputs, and a slot in the graph for each tensor that it saved.
#pragma once

#include "tensors.h"

#include <algorithm>

namespace reprise {

struct Region;
Object capture_inner(PyObject* owner, PyObject* args, PyObject* kwargs);
void on_inner_save(PyObject* owner, const at::Tensor& tensor, PyObject* object, PyObject* origin);

// A saved tensor, for Python and for whoever calls the hooks from there: the graph itself has ``SavedByRegion``.
struct Slot {
  PyObject_HEAD
  Region* region;
  uint32_t index;

  static PyTypeObject type;
  static Slot* from(PyObject* self) { return reinterpret_cast<Slot*>(self); }
  static Object make(Region* region, uint32_t index);  // is one of the record's holders
  static void dealloc(PyObject* self);
};

// What a region remembers of a saved tensor.
struct Record {
  c10::VariableVersion counter;
  uint32_t version;
  uint32_t metadata;
  uint32_t holders;  // what the graph has of it, and slots; none once the graph has cleared it
  bool has_origin;
};

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

// Where in memory a saved tensor is that may have been there before the region: another one in its place has other values.
struct Place {
  const void* address;
  c10::DimVector strides;
  int64_t offset;
  bool conjugated, negated, is_view;
  // Of an argument or another leaf, once it is known to be from outside; for others an Origin has it.
  c10::Storage storage;
  WeakTensor leaf;  // that the tensor is, or is a view of

  Place(const at::Tensor& tensor, c10::Storage kept, const c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>& whole)
      : address(tensor.const_data_ptr()), strides(tensor.strides()), offset(tensor.storage_offset()),
        conjugated(tensor.is_conj()), negated(tensor.is_neg()), is_view(tensor.is_view()), storage(std::move(kept)),
        leaf(whole) {}
  bool is_settled() const { return storage.unsafeGetStorageImpl(); }
  bool is_of(const at::Tensor& tensor) const {
    return tensor.has_storage() && tensor.const_data_ptr() == address && tensor.strides() == strides &&
        tensor.is_conj() == conjugated && tensor.is_neg() == negated;
  }
  // Keep the storage of the leaf, unless it has got another one since, or, as a whole, another shape.
  bool settle(const at::Tensor& whole, const Metadata& saved) {
    leaf.reset();
    if (!whole.has_storage()) return false;
    const auto* begin = static_cast<const char*>(whole.storage().data());
    if (begin + offset * static_cast<int64_t>(c10::elementSize(saved.dtype)) != address) return false;
    if (!is_view && whole.sizes() != saved.sizes) return false;
    storage = whole.storage();
    return true;
  }
};

inline at::Tensor whole_of(const at::Tensor& tensor) { return tensor.is_view() ? at::Tensor(tensor._base()) : tensor; }

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
  const c10::TensorImpl* impl;
  c10::VariableVersion counter;
  uint32_t version;
};

struct Region {
  PyObject_HEAD
  PyObject* weak_references;
  // Guards ``records``, ``metadata``, ``places`` and ``values_by_task``. All else is read and written with the GIL, but for what
  // forward's thread reads while its hooks are on top: it was there before.
  HookState hook_state;
  // Objects of Python, each owned or null. ``inputs`` is null if args and kwargs are flat: then they are kept as they are.
  PyObject *function, *args, *kwargs, *inputs, *context, *modes, *pass_through, *modes_after, *states, *stream,
      *operator_log, *origins, *candidates, *closed_over, *changed_name, *enclosing, *inner_places;
  char early_stop, check, complete, has_inner_origins, has_function_modes;
  int64_t hooks_at_start, hooks_at_end;
  uint64_t first_sequence_number;
  ModeState mode_state;
  std::unique_ptr<GeneratorState> cpu_state;  // if there is nothing else that random numbers may come from
  std::vector<FlatTensor> flat;
  std::vector<Record> records;
  std::vector<Metadata> metadata;  // which neighbours often share
  std::unordered_map<uint32_t, Place> places;  // of those that have an origin
  std::unordered_set<const at::TensorImpl*> leaves;  // that places refer to, so that no other tensor gets such an address
  std::vector<uint32_t> inner_versions;  // of the tensors that regions inside saved
  std::vector<std::pair<int64_t, std::weak_ptr<Values>>> values_by_task;

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
    flat.push_back({value, THPVariable_Unpack(value).unsafeGetTensorImpl(), counter, counter.current_version()});
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

  bool contains(const at::Tensor& tensor) const {
    for (const auto& one : flat)
      if (one.impl == tensor.unsafeGetTensorImpl()) return true;
    return false;
  }

  // A tensor that is saved gets an index, and whoever asks is one of its record's holders; ``owner`` becomes a reference to the
  // region. Called without the GIL, which it takes for most of what is from outside, for subclasses, and inside another region.
  uint32_t save(const at::Tensor& tensor, Shareable* owner = nullptr) {
    const auto index = save_with(tensor, owner);
    ensure_owner(owner, self());
    return index;
  }

  uint32_t save_with(const at::Tensor& tensor, Shareable* owner) {
    const bool asks_python = Metadata::asks_python(tensor), from_outside = check && may_be_from_outside(tensor);
    const bool is_argument = from_outside && (tensor.is_leaf() || tensor.is_view()) && contains(tensor);
    if (!asks_python && !enclosing) {
      if (!from_outside || is_argument) return remember(tensor, Metadata::of(tensor), find_place(tensor, is_argument), owner);
      if (auto place = find_place_of_leaf(tensor)) return remember(tensor, Metadata::of(tensor), std::move(place), owner);
    }
    return with_gil([&] {
      Object object(checked(THPVariable_Wrap(tensor))), origin;
      const auto index = remember(tensor, asks_python ? Metadata::from_python(tensor, object.get()) : Metadata::of(tensor),
                                  find_place(tensor, is_argument), owner);
      try {
        if (from_outside && !is_argument) origin = find_origin(tensor, object.get(), index);
        if (enclosing) on_inner_save(enclosing, tensor, object.get(), origin.get());
      } catch (...) {
        let_go(index);
        throw;
      }
      return index;
    });
  }

  uint32_t remember(const at::Tensor& tensor, Metadata&& found, std::optional<Place>&& place, Shareable* owner) {
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    if (metadata.empty() || !metadata.back().fits(tensor)) metadata.push_back(std::move(found));
    // Rule 1: hooks do not stack, only the innermost region is asked.
    records.push_back({counter, counter.current_version(), static_cast<uint32_t>(metadata.size() - 1), 1,
                       place && place->is_settled()});
    const auto index = static_cast<uint32_t>(records.size() - 1);
    if (place) places.emplace(index, std::move(*place));
    if (owner) *owner = hook_state.on_top;
    return index;
  }

  // That of an argument, which may be given other data.
  static std::optional<Place> find_place(const at::Tensor& tensor, bool is_argument) {
    if (!is_argument || !tensor.is_leaf() || !may_have_place(tensor)) return {};
    return Place(tensor, tensor.storage(), {});
  }

  // That of a leaf, or of a view of one, which is known to be of no class of the user's: only Python tells that.
  std::optional<Place> find_place_of_leaf(const at::Tensor& tensor) {
    const at::Tensor whole = whole_of(tensor);
    {
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      if (!leaves.count(whole.unsafeGetTensorImpl())) return {};
    }
    return Place(tensor, {}, whole.getIntrusivePtr());
  }

  // One holder more.
  void hold(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    ++records[index].holders;
  }

  // One holder less.
  void let_go(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    // Nobody is going to unpack it; but where there is a place, an origin may be made later, and follows the version.
    if (!--records[index].holders && !places.count(index)) records[index].counter = c10::VariableVersion();
  }

  // Nearly all are results that the region has made.
  bool may_be_from_outside(const at::Tensor& tensor) const {
    if (tensor.is_leaf() || tensor.is_view() || is_cast_of_leaf(tensor)) return true;
    const auto& node = tensor.grad_fn();
    return node && node->sequence_nr() < first_sequence_number;
  }

  // One of symbolic sizes, which a compiler traces, has no memory to tell it by, and a nested one several places.
  static bool may_have_place(const at::Tensor& tensor) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    return tensor.has_storage() && !impl->has_symbolic_sizes_strides() && !impl->is_nested() &&
        !impl->key_set().has(c10::DispatchKey::Functionalize);
  }

  // What a saved tensor is or is a view of, if that may be from outside.
  Object find_origin(const at::Tensor& tensor, PyObject* object, uint32_t index) {
    if (!may_have_place(tensor) || note_leaf(tensor, object, index)) return {};
    const bool is_result = !tensor.is_leaf() && !tensor.is_view();
    Object origin = call(shared.note_origin, self(), integer(index).get(), object, is_result ? Py_True : Py_False);
    if (origin.get() == Py_None) return {};
    if (tensor.is_leaf() || !is_cast_of_leaf(tensor)) {
      Place place(tensor, {}, {});
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      places.emplace(index, std::move(place));
    }
    return origin;
  }

  // Whether a saved tensor is a leaf, or a view of one, for which its place will do: its Origin is made if it has moved.
  bool note_leaf(const at::Tensor& tensor, PyObject* object, uint32_t index) {
    if (enclosing || !THPVariable_CheckExact(object)) return false;
    const at::Tensor whole = whole_of(tensor);
    if (!whole.is_leaf() || !may_have_place(whole)) return false;
    Object owner(checked(THPVariable_Wrap(whole)));
    if (!THPVariable_CheckExact(owner.get())) return false;
    Place place(tensor, {}, whole.getIntrusivePtr());
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    places.emplace(index, std::move(place));
    leaves.insert(whole.unsafeGetTensorImpl());
    return true;
  }

  // Forward is over: keep the storages of leaves that are alive and where they were, as ``keep_storages`` in
  // ``impls.tensors.origins`` does.
  void settle_leaves(PyObject* output) {
    std::vector<std::pair<uint32_t, at::Tensor>> alive;
    {
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      for (auto& [index, place] : places)
        if (auto whole = place.leaf.lock()) alive.emplace_back(index, at::Tensor(std::move(whole)));
    }
    for (const auto& [index, whole] : alive) {
      Object object(checked(THPVariable_Wrap(whole)));
      if (reinterpret_cast<PyObject*>(Py_TYPE(object.get())) != shared.Parameter &&
          call(shared.keeps_leaf, self(), integer(index).get(), object.get(), output).get() != Py_True)
        continue;
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      records[index].has_origin = places.at(index).settle(whole, metadata[records[index].metadata]);
    }
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    leaves.clear();
  }

  void note_origin(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    records[index].has_origin = true;
  }

  PyObject* pack(PyObject* object) { return Slot::make(this, save(THPVariable_Unpack(object))).release(); }

  PyObject* unpack(PyObject* packed) {
    if (Py_TYPE(packed) != &Slot::type || Slot::from(packed)->region != this) {
      PyErr_Format(PyExc_TypeError, "packed is %R; it must be a slot of this region", packed);
      throw python_error();
    }
    return THPVariable_Wrap(unpack(Slot::from(packed)->index));
  }

  // The tensor that was saved, from a recomputation if need be. Needs no GIL.
  at::Tensor unpack(uint32_t index) {
    const auto task = torch::autograd::get_current_graph_task_id();
    uint32_t version, now;
    std::shared_ptr<Values> values;
    {
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      const auto& record = records[index];
      version = record.version;
      now = record.counter.enabled() ? record.counter.current_version() : version;
      values = find_locked(task);
    }
    require_version(index, version, now, false);
    at::Tensor tensor = values ? values->pop(index) : at::Tensor();  // rule 4: it dies as it is unpacked
    if (!tensor.defined()) {
      tensor = with_gil([&] {
        auto recomputed = recompute(task, index);
        if (recomputed.defined()) return recomputed;
        Object made = call(shared.recompute, self(), integer(task).get(), integer(index).get(), Py_False);
        TORCH_CHECK_TYPE(THPVariable_Check(made.get()), "a recomputation gave no tensor");
        return THPVariable_Unpack(made.get());
      });
    }
    require_version(index, version, version_of(tensor), true);
    return tensor;
  }

  // As ``unpack``, also where the graph has cleared the slot: a recomputed graph that is kept may need it.
  at::Tensor unpack_at(uint32_t index) {
    struct Holder {
      Region* region;
      uint32_t index;
      Holder(Region* of, uint32_t at) : region(of), index(at) { region->hold(index); }
      ~Holder() { region->let_go(index); }
    } holder{this, index};
    return unpack(index);
  }

  void require_version(uint32_t index, uint32_t version, uint32_t now, bool recomputed) {
    if (now == version) return;
    with_gil([&] { call(shared.refuse_changed, self(), integer(index).get(), integer(now).get(), recomputed ? Py_True : Py_False); });
  }

  // With the GIL. Undefined if it is left to Python.
  at::Tensor recompute(int64_t task, uint32_t index);

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

  // ---- values

  std::shared_ptr<Values> find_locked(int64_t task) const {
    for (const auto& [key, values] : values_by_task)
      if (key == task) return values.lock();
    return {};
  }

  std::shared_ptr<Values> find_values(int64_t task) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    return find_locked(task);
  }

  void keep_values(int64_t task, const std::shared_ptr<Values>& values) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    const auto is_over = [&](const auto& one) { return one.first == task || one.second.expired(); };
    values_by_task.erase(std::remove_if(values_by_task.begin(), values_by_task.end(), is_over), values_by_task.end());
    values_by_task.emplace_back(task, values);
  }

  // ---- what was saved

  size_t saved_count() {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    return records.size();
  }

  Record record(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    return records[index];
  }

  Place place(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    return places.at(index);
  }

  // With the GIL.
  Metadata look(uint32_t index) {
    const std::lock_guard<std::mutex> lock(hook_state.mutex);
    return metadata[records[index].metadata].copy();
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
    settle_leaves(output);
    if (origins) {
      PyObject *key, *value;
      for (Py_ssize_t position = 0; PyDict_Next(origins, &position, &key, &value);) {
        const auto index = as_integer(key);
        if (index >= 0) note_origin(static_cast<uint32_t>(index));
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

inline Object Slot::make(Region* region, uint32_t index) {
  auto* slot = PyObject_New(Slot, &Slot::type);
  if (!slot) {
    region->let_go(index);
    throw python_error();
  }
  slot->index = index;
  slot->region = Region::from(new_reference(region->self()));
  return Object(reinterpret_cast<PyObject*>(slot));
}

inline void Slot::dealloc(PyObject* self) {
  Region* region = from(self)->region;
  region->let_go(from(self)->index);
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
