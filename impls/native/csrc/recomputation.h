// One recomputation of a region: the function runs again, and what it saves this time is collected.
#pragma once

#include "region.h"

namespace reprise {

struct Recomputation {
  PyObject_HEAD
  Region* region;      // owned until the run and what follows it are over: the recomputed graph owns this object
  PyObject* later;     // gives a saved tensor by its index after that, without owning the region; or null
  PyObject* values;    // RecomputedTensors while the run is under way
  PyObject* mismatch;  // in what the run was not what forward was; or null
  PyObject* comparison;  // what compares and refuses, in Python; or null
  PyObject* operator_log;
  PyObject* put_off;  // a list of what stop() was called for while it has to wait; else null or None
  PyFrameObject* outermost;  // the frame in which the run began; or null
  // As in ``impls.state.restoration``, for which this stands while it holds the process lock.
  PyObject *thread, *outer, *outer_holder, *passed, *before, *found, *modes_after;
  at::Tensor found_state;
  char holds_lock, disturbed, entered;
  int depth;
  std::vector<PyObject*> wanted;  // the slots to recompute, owned; null in place of those that are not needed
  int64_t slot_count, last, stop_index, late_write, due, count, inner_count, dispatch_modes;
  char stopped, runs_on, failed, complete;

  static PyTypeObject type;
  static Recomputation* from(PyObject* self) { return reinterpret_cast<Recomputation*>(self); }
  PyObject* self() { return reinterpret_cast<PyObject*>(this); }

  static Object make(Region* region, PyObject* asked) {
    Object self(checked(type.tp_alloc(&type, 0)));
    new (&from(self.get())->found_state) at::Tensor();
    from(self.get())->region = Region::from(new_reference(region->self()));
    from(self.get())->begin(asked);
    return self;
  }

  // ``asked`` is None for all slots that the graph has, or says of each slot whether it is asked for.
  void begin(PyObject* asked) {
    complete = region->complete;  // asked before the slots are, as forward may end meanwhile on another thread
    slot_count = static_cast<int64_t>(region->records.size());
    wanted.resize(slot_count, nullptr);
    last = -1;
    for (int64_t index = 0; index < slot_count; ++index) {
      PyObject* slot = region->records[index].slot;
      if (!slot || (asked != Py_None && (index >= PyList_GET_SIZE(asked) || PyList_GET_ITEM(asked, index) != Py_True))) continue;
      wanted[index] = new_reference(slot);  // rule 6: a slot that was already cleared is skipped
      last = index;
      ++due;
    }
    if (last < 0) throw std::runtime_error("a recomputation was asked for nothing");
    late_write = region->early_stop ? find_late_write() : -1;
    stop_index = !region->early_stop ? std::numeric_limits<int64_t>::max() : late_write < 0 ? last : late_write;
  }

  int64_t find_late_write() {
    const auto requires_grad = [&](int64_t index) { return region->looks[region->records[index].metadata].requires_grad; };
    if (requires_grad(last) && (!last || requires_grad(last - 1))) return -1;  // nearly always
    return as_integer(call(shared.find_late_write, region->self(), integer(last).get()).get());
  }

  PyObject* compare() {
    if (!comparison) comparison = call(shared.make_comparison, self()).release();
    return comparison;
  }

  PyObject* pack(PyObject* given) {
    const auto index = count++;
    Object replaced;
    PyObject* object = given;
    if (index < static_cast<int64_t>(wanted.size())) {  // it is empty once the run is over
      const bool has_origin = region->records[index].has_origin;
      if (has_origin && (has_moved(index, object) || !fits(index, object))) {
        replaced = call_method(compare(), REPRISE_NAME("replace"), integer(index).get(), object);
        object = replaced.get();
      } else if (!has_origin && !fits(index, object)) {
        call_method(compare(), REPRISE_NAME("compare_metadata"), integer(index).get(), object);
      }
    }
    const bool is_wanted = index < static_cast<int64_t>(wanted.size()) && wanted[index];
    if (is_wanted && values) RecomputedTensors::from(values)->set(index, object);
    if (index >= stop_index) {  // rule 5
      if (late_write >= 0) call_method(compare(), REPRISE_NAME("stop_after_operator"), integer(index).get());
      else if (!stop(nullptr)) return nullptr;  // not thrown, which would take as long as all else
    }
    // Rule 6: packed, so that the recomputed graph can be differentiated. The index will do for what is wanted: it costs
    // nothing, and no tensor is then kept by a node that the tensor keeps.
    if (is_wanted) return integer(index).release();
    const auto& tensor = THPVariable_Unpack(object);
    if (!tensor.requires_grad()) return new_reference(object);
    if (c10::impl::TorchDispatchModeTLS::stack_len() || !THPVariable_CheckExact(object))
      return call(shared.detach_without_modes, object).release();
    return THPVariable_Wrap(tensor.detach());
  }

  bool fits(int64_t index, PyObject* object) {
    const auto& tensor = THPVariable_Unpack(object);
    const auto version = region->records[index].version;
    return version == version_of(tensor) && region->looks[region->records[index].metadata].fits(tensor, object);
  }

  bool has_moved(int64_t index, PyObject* object) {
    const auto place = region->places.find(static_cast<uint32_t>(index));
    return place == region->places.end() || !place->second.is_of(THPVariable_Unpack(object));
  }

  PyObject* unpack(PyObject* packed) {
    if (!PyLong_CheckExact(packed)) return new_reference(packed);
    const auto index = as_integer(packed);
    if (values && RecomputedTensors::from(values)->has(index))
      return new_reference(RecomputedTensors::from(values)->tensors[index]);
    if (!later) later = call(shared.unpack_later, region->self()).release();
    return call(later, packed).release();
  }

  // The run and what follows it are over. A recomputed graph that is kept somewhere must not own the region, which may own what
  // leads there, as a list in the function's closure into which the function puts a result.
  void forget_region() {
    if (region && !later && Py_REFCNT(self()) > 1) later = call(shared.unpack_later, region->self()).release();
    Py_CLEAR(region);
  }

  // A tensor was saved in a region inside this one.
  void on_inner_save(const at::Tensor& tensor, PyObject* object) {
    const auto index = inner_count++;
    if (index >= static_cast<int64_t>(region->inner_versions.size())) return;
    if (region->has_inner_origins || version_of(tensor) != region->inner_versions[index])
      call_method(compare(), REPRISE_NAME("compare_inner"), integer(index).get(), object);
  }

  // End the run, for a mismatch or as all is there. Once only: user code that catches it, or is left by it, may go on. A
  // function that has set process-wide modes runs on to its end, where it sets them back; so does one that has removed a hook,
  // where it may register it anew, and one inside of a module with hooks that torch calls after any Exception, which this is not.
  // Returns false with the exception set if the function is to be left.
  bool stop(PyObject* reason) {
    if (put_off && put_off != Py_None) {
      if (PyList_Append(put_off, reason ? reason : Py_None) < 0) throw python_error();
      return true;
    }
    if (stopped) return true;
    stopped = true;
    mismatch = reason && reason != Py_None ? new_reference(reason) : nullptr;
    runs_on = !(ProcessWide::current() == region->mode_state.process_wide) ||
        (region->registers_hooks() && call(shared.has_removed_hooks_for_now).get() == Py_True) || is_inside_hooks_always_called();
    if (!runs_on) PyErr_SetNone(shared.StopRecomputation);
    else keep_copies();
    return runs_on;
  }

  // Of what has been recomputed, which what is left of the function may change in place.
  void keep_copies() {
    auto* kept = values ? RecomputedTensors::from(values) : nullptr;
    for (size_t index = 0; kept && index < kept->tensors.size(); ++index)
      if (kept->has(index)) kept->set(index, call(shared.copy_with_version, kept->tensors[index]).get());
  }

  bool is_inside_hooks_always_called() {
    auto frame = THPPointer<PyFrameObject>(reinterpret_cast<PyFrameObject*>(
        new_reference(reinterpret_cast<PyObject*>(PyEval_GetFrame()))));
    Object end(outermost ? reinterpret_cast<PyObject*>(PyFrame_GetCode(outermost)) : new_reference(Py_None));
    while (frame && frame.get() != outermost) {
      Object code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame.get())));
      if (code.get() == shared.code_of_hooked_call &&
          call(shared.is_inside_hooks_always_called, reinterpret_cast<PyObject*>(frame.get()), end.get()).get() == Py_True)
        return true;
      frame = THPPointer<PyFrameObject>(PyFrame_GetBack(frame.get()));
    }
    return false;
  }

  // Returns the recomputed tensors, or null with the function's exception set.
  PyObject* run(PyObject* function, PyObject* args, PyObject* kwargs);

  bool enter();
  void leave();
  void release_lock();

  void let_go() {
    Py_CLEAR(comparison);
    Py_CLEAR(values);  // the recomputed graph owns this object, and is not to own them
    std::vector<PyObject*> dropped;
    dropped.swap(wanted);
    for (PyObject* slot : dropped) Py_XDECREF(slot);
  }
};

inline bool Region::is_owner(PyObject* object) { return is(object) || Py_TYPE(object) == &Recomputation::type; }

// The arguments of a region inside another one, which saves their tensors (rule 2): counted in forward, compared again.
inline Object capture_inner(PyObject* owner, PyObject* args, PyObject* kwargs) {
  if (!Region::is(owner)) return call_method(Recomputation::from(owner)->compare(), REPRISE_NAME("capture_inner"), args, kwargs);
  if (!Region::from(owner)->inner_places) Region::from(owner)->inner_places = checked(PyList_New(0));
  return call(shared.capture_inner, owner, args, kwargs);
}

// Note the version of a tensor that a region inside saves, for comparison when the regions around it are recomputed.
inline void on_inner_save(PyObject* owner, const at::Tensor& tensor, PyObject* object, PyObject* origin) {
  while (Region::is(owner)) {  // no recursion: regions may be as deep as Python allows for
    auto* region = Region::from(owner);
    region->inner_versions.push_back(version_of(tensor));
    if (origin) {
      if (!region->candidates) region->candidates = checked(PyDict_New());
      const auto key = -static_cast<int64_t>(region->inner_versions.size());
      if (PyDict_SetItem(region->candidates, integer(key).get(), origin) < 0) throw python_error();
    }
    owner = region->enclosing;
  }
  if (owner) Recomputation::from(owner)->on_inner_save(tensor, object);
}

}  // namespace reprise
