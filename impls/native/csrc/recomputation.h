// One recomputation of a region: the function runs again, and what it saves this time is collected.
#pragma once

#include "region.h"

namespace reprise {

struct Recomputation {
  PyObject_HEAD
  Region* region;      // owned until the run and what follows it are over: the recomputed graph owns this object
  PyObject* later;     // gives a saved tensor by its index after that, without owning the region; or null
  PyObject* mismatch;  // in what the run was not what forward was; or null
  PyObject* comparison;  // what compares and refuses, in Python; or null
  PyObject* snapshot;  // of what there was when the run was to end, but went on; or null
  PyObject* operator_log;
  PyObject* put_off;  // a list of what stop() was called for while it has to wait; else null or None
  PyFrameObject* outermost;  // the frame in which the run began; or null
  // As in ``impls.state.restoration``, for which this stands while it holds the process lock.
  PyObject *thread, *outer, *outer_holder, *passed, *before, *found, *modes_after;
  std::unique_ptr<GeneratorState> found_state;
  char holds_lock, disturbed, entered;
  int depth;
  HookState hook_state;  // whose mutex guards ``count`` and ``is_over``
  std::weak_ptr<Values> values;  // what the run has recomputed: the recomputed graph owns this object, and is not to own them
  std::vector<bool> wanted;  // by index, whether a saved tensor is one to recompute
  int64_t slot_count, last, stop_index, late_write, due, count, inner_count, dispatch_modes;
  char stopped, runs_on, failed, complete;
  std::atomic<bool> is_over;

  static PyTypeObject type;
  static Recomputation* from(PyObject* self) { return reinterpret_cast<Recomputation*>(self); }
  PyObject* self() { return reinterpret_cast<PyObject*>(this); }

  static Object make(Region* region, PyObject* asked) {
    Object self(checked(type.tp_alloc(&type, 0)));
    new (&from(self.get())->found_state) std::unique_ptr<GeneratorState>();
    new (&from(self.get())->hook_state) HookState();
    new (&from(self.get())->values) std::weak_ptr<Values>();
    new (&from(self.get())->wanted) std::vector<bool>();
    from(self.get())->region = Region::from(new_reference(region->self()));
    from(self.get())->begin(asked);
    return self;
  }

  // ``asked`` is None for all slots that the graph has, or says of each slot whether it is asked for.
  void begin(PyObject* asked) {
    complete = region->complete;  // asked before the slots are, as forward may end meanwhile on another thread
    last = -1;
    {
      const std::lock_guard<std::mutex> lock(region->hook_state.mutex);
      slot_count = static_cast<int64_t>(region->records.size());
      wanted.resize(slot_count, false);
      for (int64_t index = 0; index < slot_count; ++index) {
        if (!region->records[index].holders) continue;  // rule 6: a slot that was already cleared is skipped
        if (asked != Py_None && (index >= PyList_GET_SIZE(asked) || PyList_GET_ITEM(asked, index) != Py_True)) continue;
        wanted[index] = true;
        last = index;
        ++due;
      }
    }
    if (last < 0) throw std::runtime_error("a recomputation was asked for nothing");
    late_write = region->early_stop ? find_late_write() : -1;
    stop_index = !region->early_stop ? std::numeric_limits<int64_t>::max() : late_write < 0 ? last : late_write;
  }

  int64_t find_late_write() {
    const auto requires_grad = [&](int64_t index) { return region->metadata[region->records[index].metadata].requires_grad; };
    {
      const std::lock_guard<std::mutex> lock(region->hook_state.mutex);
      if (requires_grad(last) && (!last || requires_grad(last - 1))) return -1;  // nearly always
    }
    return as_integer(call(shared.find_late_write, region->self(), integer(last).get()).get());
  }

  PyObject* compare() {
    if (!comparison) comparison = call(shared.make_comparison, self()).release();
    return comparison;
  }

  // What the recomputed graph gets for a tensor that it saves, so that it can be differentiated (rule 6). The index will do for
  // what is wanted: it costs nothing, and no tensor is then kept by a node that the tensor keeps.
  struct Kept {
    int64_t index;
    at::Tensor tensor;  // undefined if there is an index
  };

  // ``owner`` becomes a reference to this object. Throws python_error where the run is to end. Needs no GIL.
  Kept save(const at::Tensor& given, Shareable* owner = nullptr) {
    bool is_wanted = false, is_alike = true;
    int64_t index;
    {
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      index = count++;
      if (owner) *owner = hook_state.on_top;
      if (!is_over && index < static_cast<int64_t>(wanted.size())) {
        is_wanted = wanted[index];
        is_alike = fits(index, given);
      }
    }
    ensure_owner(owner, self());
    at::Tensor tensor = is_alike ? given : compare_with_forward(index, given);
    if (is_wanted)
      if (const auto kept = values.lock()) kept->set(index, tensor);
    if (index >= stop_index) {  // rule 5
      py::gil_scoped_acquire gil;
      if (is_over) {
        // A thread that inherited the hooks goes on after the run, which nothing can end any more.
      } else if (late_write >= 0) call_method(compare(), REPRISE_NAME("stop_after_operator"), integer(index).get());
      else if (!stop(nullptr)) throw python_error();
    }
    if (is_wanted) return {index, {}};
    if (!tensor.requires_grad()) return {-1, tensor};
    return with_gil([&]() -> Kept {
      Object object(checked(THPVariable_Wrap(tensor)));
      return {-1, THPVariable_Unpack(call(shared.detach_without_modes, object.get()).get())};
    });
  }

  // Whether a tensor is certainly what forward saved. If not, Python tells.
  bool fits(int64_t index, const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(region->hook_state.mutex);
    const auto& record = region->records[index];
    return record.version == version_of(tensor) && region->metadata[record.metadata].fits(tensor) &&
        !(record.has_origin && has_moved(index, tensor));
  }

  // The tensor to keep in place of one that may be another one than in forward. Ends the run if it is.
  at::Tensor compare_with_forward(int64_t index, const at::Tensor& tensor) {
    return with_gil([&]() -> at::Tensor {
      if (is_over) return tensor;
      Object object(checked(THPVariable_Wrap(tensor))), kept(new_reference(region->self()));
      const auto record = region->record(index);
      if (record.has_origin) {
        Object replaced = call_method(compare(), REPRISE_NAME("replace"), integer(index).get(), object.get());
        return THPVariable_Unpack(replaced.get());
      }
      if (record.version != version_of(tensor) || !Region::from(kept.get())->look(index).fits(tensor, object.get()))
        call_method(compare(), REPRISE_NAME("compare_metadata"), integer(index).get(), object.get());
      return tensor;
    });
  }

  bool has_moved(int64_t index, const at::Tensor& tensor) {
    const auto place = region->places.find(static_cast<uint32_t>(index));
    return place == region->places.end() || !place->second.is_of(tensor);
  }

  // Needs no GIL.
  at::Tensor unpack(const Kept& kept) {
    if (kept.tensor.defined()) return kept.tensor;
    if (!is_over)
      if (const auto recomputed = values.lock())
        if (auto tensor = recomputed->get(kept.index); tensor.defined()) return tensor;
    return with_gil([&]() -> at::Tensor {
      if (!later) later = call(shared.unpack_later, region->self()).release();
      Object function(new_reference(later)), tensor = call(function.get(), integer(kept.index).get());
      TORCH_CHECK_TYPE(THPVariable_Check(tensor.get()), "a recomputation gave no tensor");
      return THPVariable_Unpack(tensor.get());
    });
  }

  // For Python: a saved tensor is its index or a tensor.
  PyObject* pack(PyObject* tensor) { return as_object(save(THPVariable_Unpack(tensor))).release(); }

  PyObject* unpack(PyObject* packed) {
    if (!PyLong_CheckExact(packed)) return new_reference(packed);
    return THPVariable_Wrap(unpack(Kept{as_integer(packed), {}}));
  }

  static Object as_object(const Kept& kept) {
    return kept.tensor.defined() ? Object(checked(THPVariable_Wrap(kept.tensor))) : integer(kept.index);
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
    if (is_over || index >= static_cast<int64_t>(region->inner_versions.size())) return;
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
    else if (!mismatch) take_snapshot();
    return runs_on;
  }

  // Of what has been recomputed, which what is left of the function may change in place.
  void take_snapshot() {
    const auto kept = values.lock();
    Object by_index(checked(PyDict_New()));
    int64_t index = 0;
    for (const auto& one : kept ? kept->tensors() : std::vector<at::Tensor>()) {
      if (one.defined()) {
        Object tensor(checked(THPVariable_Wrap(one)));
        if (PyDict_SetItem(by_index.get(), integer(index).get(), tensor.get()) < 0) throw python_error();
      }
      ++index;
    }
    snapshot = call(shared.Snapshot, by_index.get()).release();
  }

  void put_snapshot_back(Values& kept) {
    if (!snapshot) return;
    Object before(std::exchange(snapshot, nullptr)), changed = call_method(before.get(), REPRISE_NAME("changed"));
    PyObject *key, *tensor;
    for (Py_ssize_t position = 0; PyDict_Next(changed.get(), &position, &key, &tensor);)
      if (const auto index = as_integer(key); kept.has(index)) kept.set(index, THPVariable_Unpack(tensor));
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
  std::shared_ptr<Values> run(PyObject* function, PyObject* args, PyObject* kwargs);

  bool enter();
  void leave();
  void release_lock();

  void end() {
    {
      const std::lock_guard<std::mutex> lock(hook_state.mutex);
      is_over = true;
    }
    Py_CLEAR(comparison);
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
