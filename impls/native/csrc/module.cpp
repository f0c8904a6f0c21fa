// The types and functions that Python sees.
#include "hooks.h"

namespace reprise {

template <PyObject* (*function)(PyObject*, PyObject* const*)>
PyObject* guarded(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  REPRISE_BEGIN
  return function(self, arguments);
  REPRISE_END(nullptr)
}

// A method or function of so many positional arguments, which its caller in Python gives.
template <PyObject* (*function)(PyObject*, PyObject* const*)>
PyMethodDef method(const char* name, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded<function>)), METH_FASTCALL, text};
}

PyObject* none() { Py_RETURN_NONE; }

// ---- Region

PyObject* begin_region(PyObject*, PyObject* const* given) {
  Object self(checked(Region::type.tp_alloc(&Region::type, 0)));
  auto* region = Region::from(self.get());
  new (&region->hook_state) HookState();  // other members are fine as zeros, but for this one and the next two
  new (&region->cpu_state) std::unique_ptr<GeneratorState>();
  new (&region->places) std::unordered_map<uint32_t, Place>();
  new (&region->leaves) std::unordered_set<const at::TensorImpl*>();
  region->function = new_reference(given[0]);
  region->args = new_reference(given[1]);
  region->kwargs = new_reference(given[2]);
  region->context = new_reference(given[3]);
  region->check = given[4] == Py_True;
  region->early_stop = given[5] == Py_True;
  region->capture();
  if (given[6] == Py_True) region->cpu_state = GeneratorState::current();
  if (region->inputs) {  // which has taken them apart
    Py_CLEAR(region->args);
    Py_CLEAR(region->kwargs);
  }
  return self.release();
}

PyObject* start(PyObject* self, PyObject* const*) {
  Hooks<Region>::push(Region::from(self));
  return none();
}

void finish_forward(Region* region, PyObject* output) {
  with_error_kept([&] { Hooks<Region>::pop(region); });
  with_error_kept([&] { region->end_forward(output); });
}

PyObject* finish(PyObject* self, PyObject* const* given) {
  Region::from(self)->complete = given[1] == Py_True;
  finish_forward(Region::from(self), given[0]);
  return unless_error(Object(none()));
}

PyObject* forward(PyObject* self, PyObject* const* given) {
  auto* region = Region::from(self);
  Hooks<Region>::push(region);
  Object output(PyObject_Call(region->function, given[0], given[1]));
  region->complete = static_cast<bool>(output);
  finish_forward(region, output ? output.get() : Py_None);  // also where the function raised
  if (PyErr_Occurred()) return nullptr;
  if (!(ProcessWide::current() == region->mode_state.process_wide)) region->modes_after = call(shared.process_wide).release();
  return output.release();
}

PyObject* first_changed(PyObject* self, PyObject* const*) { return integer(Region::from(self)->first_changed()).release(); }

PyObject* tensors(PyObject* self, PyObject* const*) {
  Object found(checked(PyList_New(0)));
  for (const auto& one : Region::from(self)->flat)
    if (one.tensor && PyList_Append(found.get(), one.tensor) < 0) throw python_error();
  return found.release();
}

PyObject* has_batched(PyObject* self, PyObject* const*) { return PyBool_FromLong(Region::from(self)->has_batched()); }

PyObject* registers_hooks(PyObject* self, PyObject* const*) { return PyBool_FromLong(Region::from(self)->registers_hooks()); }

PyObject* states(PyObject* self, void*) {
  REPRISE_BEGIN
  return states_of(Region::from(self)->states, Region::from(self)->cpu_state.get()).release();
  REPRISE_END(nullptr)
}

int set_states(PyObject* self, PyObject* value, void*) {
  Py_XSETREF(Region::from(self)->states, new_reference(value));
  Region::from(self)->cpu_state.reset();  // it is in there
  return 0;
}

uint32_t slot_index(Region* region, PyObject* index) {
  const auto at = static_cast<size_t>(as_integer(index));
  TORCH_CHECK_INDEX(at < region->saved_count(), "there is no saved tensor ", at);
  return static_cast<uint32_t>(at);
}

PyObject* metadata(PyObject* self, PyObject* const* given) {
  auto* region = Region::from(self);
  const auto index = slot_index(region, given[0]);
  return region->look(index).as_tuple(region->record(index).version).release();
}

// (address, (offset, strides, conjugated, negated), a tensor over the storage that is kept).
PyObject* place(PyObject* self, PyObject* const* given) {
  const auto place = Region::from(self)->place(static_cast<uint32_t>(as_integer(given[0])));
  at::Tensor whole;
  if (place.is_settled()) whole = at::empty({0}, at::device(place.storage.device()).dtype(at::kByte)).set_(place.storage);
  const auto layout = py::make_tuple(place.offset, py::tuple(py::cast(std::vector<int64_t>(place.strides.begin(), place.strides.end()))),
                                     place.conjugated, place.negated);
  return py::make_tuple(reinterpret_cast<intptr_t>(place.address), layout, whole).release().ptr();
}

PyObject* version_handle(PyObject* self, PyObject* const* given) {
  auto* region = Region::from(self);
  return VersionHandle::make(region->record(slot_index(region, given[0])).counter).release();
}

PyObject* find_values(PyObject* self, PyObject* const* given) {
  auto values = Region::from(self)->find_values(as_integer(given[0]));
  return values ? RecomputedTensors::make(std::move(values)).release() : none();
}

PyObject* keep_values(PyObject* self, PyObject* const* given) {
  Region::from(self)->keep_values(as_integer(given[0]), RecomputedTensors::shared_of(given[1]));
  return none();
}

PyObject* unpack_slot(PyObject* self, PyObject* const* given) { return Region::from(self)->unpack(given[0]); }

PyObject* unpack_at(PyObject* self, PyObject* const* given) {
  auto* region = Region::from(self);
  return THPVariable_Wrap(region->unpack_at(slot_index(region, given[0])));
}

PyObject* put_back(PyObject* self, PyObject* const* given) {
  TORCH_CHECK_TYPE(Py_TYPE(given[0]) == &Slot::type && THPVariable_Check(given[1]), "put_back takes a slot and its tensor");
  const auto task = torch::autograd::get_current_graph_task_id();
  auto values = Region::from(self)->find_values(task);
  if (!values) {
    values = std::make_shared<Values>();
    values->task = task;
    Region::from(self)->keep_values(task, values);
  }
  values->set(Slot::from(given[0])->index, THPVariable_Unpack(given[1]));
  return RecomputedTensors::make(std::move(values)).release();
}

PyObject* saved_count(PyObject* self, PyObject* const*) { return PyLong_FromSize_t(Region::from(self)->saved_count()); }

PyObject* inner_versions(PyObject* self, void*) {
  REPRISE_BEGIN
  const auto versions = Region::from(self)->inner_versions;  // more may come while the list is made
  return py::cast(versions).release().ptr();
  REPRISE_END(nullptr)
}

PyMethodDef region_methods[] = {
    method<start>("start", "Put the hooks of forward on top."),
    method<finish>("finish", "(output, complete): take the hooks off; forward is over."),
    method<forward>("forward", "(args, kwargs): call the function, between start and finish."),
    method<first_changed>("first_changed", "The index of the first input that was changed in place since the call, or -1."),
    method<tensors>("tensors", "The tensors among flat arguments."),
    method<has_batched>("has_batched", "Whether one of them is of torch.func.vmap."),
    method<registers_hooks>("registers_hooks", "Whether forward registered hooks, on arguments or elsewhere, or still runs."),
    method<unpack_slot>("unpack", "(slot): its tensor."),
    method<unpack_at>("unpack_at", "(index): the tensor of a slot, also of one that the graph has cleared."),
    method<put_back>("put_back", "(slot, tensor): have the next unpacking give it, while what this returns is kept."),
    method<saved_count>("saved_count", "How many tensors it has saved so far."),
    method<metadata>("metadata", "(index): what a saved tensor looked like."),
    method<place>("place", "(index): where a saved tensor was, as (address, layout, a tensor over its storage or None)."),
    method<version_handle>("version_handle", "(index): what follows its version."),
    method<find_values>("find_values", "(task): what is left of a recomputation, or None."),
    method<keep_values>("keep_values", "(task, values): remember these for as long as they are alive."),
    {nullptr}};

#define REPRISE_OBJECT(of, name) {#name, T_OBJECT, offsetof(of, name), 0, nullptr}
#define REPRISE_FLAG(of, name) {#name, T_BOOL, offsetof(of, name), 0, nullptr}
PyMemberDef region_members[] = {
    REPRISE_OBJECT(Region, function), REPRISE_OBJECT(Region, args), REPRISE_OBJECT(Region, kwargs),
    REPRISE_OBJECT(Region, inputs), REPRISE_OBJECT(Region, context), REPRISE_OBJECT(Region, modes),
    REPRISE_OBJECT(Region, pass_through), REPRISE_OBJECT(Region, modes_after), REPRISE_OBJECT(Region, stream),
    REPRISE_OBJECT(Region, changed_name),
    REPRISE_OBJECT(Region, operator_log), REPRISE_OBJECT(Region, origins), REPRISE_OBJECT(Region, candidates),
    REPRISE_OBJECT(Region, enclosing), REPRISE_OBJECT(Region, inner_places), REPRISE_FLAG(Region, early_stop),
    REPRISE_FLAG(Region, check), REPRISE_FLAG(Region, complete),
    {"first_sequence_number", T_ULONGLONG, offsetof(Region, first_sequence_number), READONLY, nullptr},
    {"hooks_at_start", T_LONGLONG, offsetof(Region, hooks_at_start), READONLY, nullptr},
    {"hooks_at_end", T_LONGLONG, offsetof(Region, hooks_at_end), READONLY, nullptr},
    {nullptr}};
PyGetSetDef region_getters[] = {{"states", states, set_states, nullptr, nullptr},
                                {"inner_versions", inner_versions, nullptr, nullptr, nullptr}, {nullptr}};

PyObject** region_objects(Region* region, size_t index) {
  PyObject** all[] = {&region->function, &region->args, &region->kwargs, &region->inputs, &region->context, &region->modes,
                      &region->pass_through, &region->modes_after, &region->states, &region->stream, &region->operator_log,
                      &region->origins, &region->candidates, &region->closed_over, &region->changed_name,
                      &region->enclosing, &region->inner_places};
  return index < std::size(all) ? all[index] : nullptr;
}

int traverse_region(PyObject* self, visitproc visit, void* arg) {
  for (size_t index = 0; PyObject** one = region_objects(Region::from(self), index); ++index) Py_VISIT(*one);
  return 0;
}

int clear_region(PyObject* self) {
  for (auto& one : Region::from(self)->flat) one.tensor = nullptr;
  for (size_t index = 0; PyObject** one = region_objects(Region::from(self), index); ++index) Py_CLEAR(*one);
  return 0;
}

void dealloc_region(PyObject* self) {
  auto* region = Region::from(self);
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, dealloc_region)  // regions own arguments, whose graphs own regions
  if (region->weak_references) PyObject_ClearWeakRefs(self);
  clear_region(self);
  std::destroy_at(&region->hook_state);
  std::destroy_at(&region->cpu_state);
  std::destroy_at(&region->flat);
  std::destroy_at(&region->records);
  std::destroy_at(&region->metadata);
  std::destroy_at(&region->places);
  std::destroy_at(&region->leaves);
  std::destroy_at(&region->inner_versions);
  std::destroy_at(&region->values_by_task);
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

// ---- Recomputation

std::shared_ptr<Values> Recomputation::run(PyObject* function, PyObject* args, PyObject* kwargs) {
  const bool graded = c10::GradMode::is_enabled();
  dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len();
  const auto kept = std::make_shared<Values>();
  kept->expect(wanted.size());
  values = kept;
  Object frame(new_reference(reinterpret_cast<PyObject*>(PyEval_GetFrame())));
  // Rule 3: hooks do not stack, so with these on top nothing that is active around backward is asked.
  Hooks<Recomputation>::push(this);
  outermost = reinterpret_cast<PyFrameObject*>(frame.get());
  c10::GradMode::set_enabled(true);
  if (!Object(PyObject_Call(function, args, kwargs))) {
    // TorchScript's interpreter makes a RuntimeError of what passes through it.
    const bool ended = PyErr_ExceptionMatches(shared.StopRecomputation);
    const bool of_no_use = !ended && stopped && PyErr_ExceptionMatches(PyExc_Exception);
    if (of_no_use) failed = runs_on;  // its tail, but it has not set modes back
    if (ended || of_no_use) PyErr_Clear();
  }
  c10::GradMode::set_enabled(graded);
  outermost = nullptr;
  with_error_kept([&] { Hooks<Recomputation>::pop(this); });
  with_error_kept([&] { put_snapshot_back(*kept); });
  with_error_kept([&] {
    if (comparison) call_method(comparison, REPRISE_NAME("end"));
  });
  with_error_kept([&] { end(); });
  return PyErr_Occurred() ? nullptr : kept;
}

PyObject* begin_recomputation(PyObject*, PyObject* const* given) {
  TORCH_CHECK_TYPE(Region::is(given[0]), "a recomputation is of a region");
  return Recomputation::make(Region::from(given[0]), given[1]).release();
}

PyObject* before(PyObject* self, void*) {
  REPRISE_BEGIN
  return states_of(Recomputation::from(self)->before, Recomputation::from(self)->found_state.get()).release();
  REPRISE_END(nullptr)
}

int set_before(PyObject* self, PyObject* value, void*) {
  Py_XSETREF(Recomputation::from(self)->before, new_reference(value));
  return 0;
}

// C++ always releases the lock that it has, whatever interrupts it.
PyObject* is_abandoned(PyObject*, PyObject* const*) { Py_RETURN_FALSE; }

PyObject* inherit(PyObject* self, PyObject* const* given) { return call(shared.inherit, self, given[0]).release(); }

PyObject* run(PyObject* self, PyObject* const* given) {
  auto values = Recomputation::from(self)->run(given[0], given[1], given[2]);
  return values ? RecomputedTensors::make(std::move(values)).release() : nullptr;
}

PyObject* stop(PyObject* self, PyObject* const* given) { return Recomputation::from(self)->stop(given[0]) ? none() : nullptr; }

PyObject* forget_region(PyObject* self, PyObject* const*) {
  Recomputation::from(self)->forget_region();
  return none();
}

PyObject* is_wanted(PyObject* self, PyObject* const* given) {
  const auto* run = Recomputation::from(self);
  const auto index = static_cast<size_t>(as_integer(given[0]));
  return PyBool_FromLong(!run->is_over && index < run->wanted.size() && run->wanted[index]);
}

PyMethodDef recomputation_methods[] = {
    method<run>("run", "(function, args, kwargs): the tensors that this saves, in place of forward."),
    method<stop>("stop", "(mismatch or None): end the run."),
    method<forget_region>("forget_region", "What follows the run is over."),
    method<is_wanted>("is_wanted", "(index): whether it is one of those to recompute."),
    method<is_abandoned>("is_abandoned", "As of a Restoration."),
    method<inherit>("inherit", "As of a Restoration."),
    {nullptr}};
#define REPRISE_NUMBER(name) {#name, T_LONGLONG, offsetof(Recomputation, name), READONLY, nullptr}
PyMemberDef recomputation_members[] = {
    REPRISE_OBJECT(Recomputation, region), REPRISE_OBJECT(Recomputation, mismatch),
    REPRISE_OBJECT(Recomputation, operator_log), REPRISE_OBJECT(Recomputation, put_off), REPRISE_OBJECT(Recomputation, thread),
    REPRISE_OBJECT(Recomputation, outer_holder), REPRISE_OBJECT(Recomputation, passed), REPRISE_OBJECT(Recomputation, found),
    REPRISE_OBJECT(Recomputation, modes_after), REPRISE_FLAG(Recomputation, holds_lock),
    REPRISE_FLAG(Recomputation, disturbed), REPRISE_FLAG(Recomputation, stopped), REPRISE_FLAG(Recomputation, failed),
    REPRISE_FLAG(Recomputation, complete), REPRISE_NUMBER(slot_count), REPRISE_NUMBER(last), REPRISE_NUMBER(late_write),
    REPRISE_NUMBER(due), REPRISE_NUMBER(count), REPRISE_NUMBER(inner_count), REPRISE_NUMBER(dispatch_modes), {nullptr}};
PyGetSetDef recomputation_getters[] = {{"before", before, set_before, nullptr, nullptr}, {nullptr}};

int traverse_recomputation(PyObject* self, visitproc visit, void* arg) {
  auto* run = Recomputation::from(self);
  Py_VISIT(run->region);
  Py_VISIT(run->later);
  Py_VISIT(run->comparison);
  Py_VISIT(run->snapshot);
  for (PyObject* one : {run->operator_log, run->put_off, run->outer, run->outer_holder, run->passed, run->before}) Py_VISIT(one);
  return 0;
}

int clear_recomputation(PyObject* self) {
  auto* run = Recomputation::from(self);
  Py_CLEAR(run->comparison);
  Py_CLEAR(run->snapshot);
  Py_CLEAR(run->operator_log);
  Py_CLEAR(run->put_off);
  Py_CLEAR(run->outer);
  Py_CLEAR(run->outer_holder);
  Py_CLEAR(run->passed);
  Py_CLEAR(run->before);
  return 0;
}

void dealloc_recomputation(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_recomputation(self);
  auto* run = Recomputation::from(self);
  for (PyObject** one : {&run->later, &run->mismatch, &run->thread, &run->found, &run->modes_after}) Py_CLEAR(*one);
  Py_CLEAR(run->region);
  std::destroy_at(&run->found_state);
  std::destroy_at(&run->hook_state);
  std::destroy_at(&run->values);
  std::destroy_at(&run->wanted);
  Py_TYPE(self)->tp_free(self);
}

// ---- the module

PyTypeObject collected(const char* name, size_t size, destructor dealloc, traverseproc traverse, inquiry clear,
                       PyMethodDef* methods, PyMemberDef* members) {
  PyTypeObject made{PyVarObject_HEAD_INIT(nullptr, 0)};
  made.tp_name = name;
  made.tp_basicsize = static_cast<Py_ssize_t>(size);
  made.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  made.tp_dealloc = dealloc;
  made.tp_traverse = traverse;
  made.tp_clear = clear;
  made.tp_methods = methods;
  made.tp_members = members;
  return made;
}

PyTypeObject Region::type = [] {
  auto made = collected("impls.native.Region", sizeof(Region), dealloc_region, traverse_region, clear_region, region_methods,
                        region_members);
  made.tp_getset = region_getters;
  made.tp_weaklistoffset = offsetof(Region, weak_references);
  return made;
}();
PyTypeObject Recomputation::type = [] {
  auto made = collected("impls.native.Recomputation", sizeof(Recomputation), dealloc_recomputation, traverse_recomputation,
                        clear_recomputation, recomputation_methods, recomputation_members);
  made.tp_getset = recomputation_getters;
  return made;
}();

// Given a dict of everything in Shared, and a device of the accelerator's type, or the CPU.
PyObject* setup(PyObject*, PyObject* const* given) {
#define REPRISE_TAKE(name)                                                                          \
  shared.name = new_reference(PyDict_GetItemString(given[0], #name));                               \
  TORCH_CHECK_VALUE(shared.name, "setup was not given " #name);
  REPRISE_SHARED(REPRISE_TAKE)
#undef REPRISE_TAKE
  const auto device = py::handle(given[1]).cast<c10::Device>();
  shared.accelerator = device.is_cpu() ? -1 : static_cast<int>(device.type());
  Engine::install();
  return none();
}

PyMethodDef functions[] = {
    method<setup>("setup", "(names, device): what is done in Python."),
    method<begin_region>("begin_region", "(function, args, kwargs, context, check, early_stop, preserve_rng_state): a Region."),
    method<begin_recomputation>("begin_recomputation", "(region, asked): a Recomputation."),
    {nullptr}};
PyModuleDef definition{PyModuleDef_HEAD_INIT, "reprise_native", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace reprise

#define REPRISE_INIT(name) PyInit_##name
#define REPRISE_INIT_OF(name) REPRISE_INIT(name)
PyMODINIT_FUNC REPRISE_INIT_OF(TORCH_EXTENSION_NAME)() {
  using namespace reprise;
  for (PyTypeObject* type : {&VersionHandle::type, &RecomputedTensors::type, &Slot::type, &Region::type, &Recomputation::type})
    if (PyType_Ready(type) < 0) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module && PyModule_AddType(module, &Slot::type) < 0) Py_CLEAR(module);
  return module;
}
