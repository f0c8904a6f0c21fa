// The recomputation that nearly all are: nothing is to be set but the state of the CPU's generator, and nobody has to wait.
// Else ``recompute`` in Python does it, with nested's ``Restoration``.
#pragma once

#include "recomputation.h"

namespace reprise {

const std::string RESTORATION = "reprise.recomputation";  // where impls.state.restoration keeps what is under way

inline Object current_restoration() {
  if (!at::impl::ThreadLocalPythonObjects::contains(RESTORATION)) return {};
  PyObject* found = at::impl::ThreadLocalPythonObjects::get(RESTORATION)->ptr(getPyInterpreter());
  return Object(found == Py_None ? nullptr : new_reference(found));
}

inline void set_restoration(PyObject* object) {
  if (!object) {
    call(shared.remove_thread_object, REPRISE_NAME("reprise.recomputation"));
    return;
  }
  auto kept = std::make_shared<c10::SafePyObject>(new_reference(object), getPyInterpreter());
  at::impl::ThreadLocalPythonObjects::set(RESTORATION, std::move(kept));
}

inline Object lock_attribute(PyObject* name) { return attribute(shared.process_lock, name); }

// Whether code in Python changes the lock, or waits for it.
inline bool lock_is_changing() { return as_integer(lock_attribute(REPRISE_NAME("calls")).get()) != 0; }

inline PyObject* last_holder(PyObject* holders) {
  const auto count = PyList_GET_SIZE(holders);
  return count ? PyList_GET_ITEM(holders, count - 1) : nullptr;
}

inline int autocast_depth() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

// As ``Restoration.__enter__``. False, with nothing changed, if that has more to do.
inline bool Recomputation::enter() {
  outer = current_restoration().release();
  if (outer) {
    const bool holds = attribute(outer, REPRISE_NAME("holds_lock")).get() == Py_True;
    Object holder = holds ? Object(new_reference(outer)) : attribute(outer, REPRISE_NAME("outer_holder"));
    if (holder.get() != Py_None) outer_holder = holder.release();
  }
  if (region->cpu_state) {
    Object holders = lock_attribute(REPRISE_NAME("holders"));
    PyObject* last = last_holder(holders.get());
    if ((last && last != outer_holder) || lock_is_changing()) return false;
    // Nobody else has come in between, as this thread has had the GIL since.
    if (PyList_Append(holders.get(), self()) < 0) throw python_error();
    holds_lock = true;
    found_state = GeneratorState::current();
  }
  if (has_function_modes() || !(ModeState::current() == region->mode_state)) {
    release_lock();
    return false;
  }
  if (holds_lock) region->cpu_state->restore();
  found = attribute(region->modes, REPRISE_NAME("process_wide")).release();
  modes_after = new_reference(region->modes_after);
  depth = autocast_depth();
  set_restoration(self());
  entered = true;
  return true;
}

// As ``Restoration.__exit__``. Says by ``disturbed`` whether another recomputation has passed this one by.
inline void Recomputation::leave() {
  const bool ended_early = failed || PyErr_Occurred();
  with_error_kept([&] {
    if (std::exchange(entered, false)) {
      set_restoration(outer);
      if (!(ModeState::current() == region->mode_state) || autocast_depth() != depth)
        call(shared.put_modes_back, self(), region->self(), integer(depth).get(), ended_early ? Py_True : Py_False);
    }
  });
  with_error_kept([&] { release_lock(); });
}

inline void Recomputation::release_lock() {
  if (!holds_lock) return;
  Object holders = lock_attribute(REPRISE_NAME("holders"));
  const bool alone = !before && !passed && last_holder(holders.get()) == self() && !lock_is_changing();
  if (alone) {
    found_state->restore();
    const auto count = PyList_GET_SIZE(holders.get());
    if (PyList_SetSlice(holders.get(), count - 1, count, nullptr) < 0) throw python_error();
    holds_lock = false;
    return;
  }
  bool interrupted = false;
  for (int tries = 1; holds_lock; ++tries) {
    Object result(PyObject_CallMethodObjArgs(shared.process_lock, REPRISE_NAME("release"), self(), nullptr));
    bool is_there = false;
    with_error_kept([&] { is_there = PySequence_Contains(lock_attribute(REPRISE_NAME("holders")).get(), self()) == 1; });
    disturbed = disturbed || result.get() == Py_True;
    holds_lock = !result && is_there;
    if (!result && (!is_there || tries == 3)) throw python_error();
    if (holds_lock) {  // an interrupt came as it was entered: once more
      interrupted = true;
      PyErr_Clear();
    }
  }
  if (interrupted) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw python_error();
  }
}

// Whether something stands between Python and its frames, as Dynamo does, which would compile the function as it runs again.
inline bool frames_are_taken() {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault;
}

// As ``recompute_locked`` and ``recompute`` in Python, or an undefined tensor for those.
inline at::Tensor Region::recompute(int64_t task, uint32_t index) {
  const bool is_simple = task != -1 && args && !inputs && !states && !operator_log && !pass_through &&
      (!changed_name || changed_name == Py_None) && context == shared.no_context && !frames_are_taken() && (!stream || stream == Py_None) && !has_function_modes &&
      !c10::InferenceMode::is_enabled() && !registers_hooks() && !may_have_later_hooks() && !has_batched() &&
      first_changed() < 0;
  if (!is_simple || find_values(task) || call(shared.current_graph_exec_group).get() != Py_None) return {};
  // As ``advisory_locks.acquire`` if nobody has this one.
  Object key(checked(PyLong_FromVoidPtr(this))), thread = call(shared.current_thread);
  if (PyDict_Contains(shared.running, key.get()) == 1) return {};
  if (PyDict_SetItem(shared.running, key.get(), thread.get()) < 0) throw python_error();
  std::shared_ptr<Values> values;
  Object kept_args(new_reference(args)), kept_kwargs(new_reference(kwargs)), run;
  Recomputation* recomputation = nullptr;
  bool is_done = false;
  try {
    run = Recomputation::make(this, Py_None);
    recomputation = Recomputation::from(run.get());
    recomputation->thread = new_reference(thread.get());
    is_done = recomputation->enter();
    if (is_done) values = recomputation->run(function, kept_args.get(), kept_kwargs.get());
  } catch (...) {
    set_exception();
  }
  struct Forgetting {
    Recomputation* run;
    void forget() {
      if (auto* once = std::exchange(run, nullptr)) with_error_kept([&] { once->forget_region(); });
    }
    ~Forgetting() { forget(); }
    // Forgetting runs Python, where a signal's handler may raise.
    at::Tensor result(at::Tensor tensor) {
      forget();
      if (PyErr_Occurred()) throw python_error();
      return tensor;
    }
  } forgetting{recomputation};
  if (recomputation) recomputation->leave();
  with_error_kept([&] {
    if (PyDict_Contains(shared.running, key.get()) == 1) PyDict_DelItem(shared.running, key.get());
  });
  const bool is_error = PyErr_Occurred();
  if (is_done && recomputation->disturbed && (!is_error || PyErr_ExceptionMatches(PyExc_Exception))) {
    PyErr_Clear();
    Object tensor = call(shared.recompute, self(), integer(task).get(), integer(index).get(), Py_True);
    return forgetting.result(THPVariable_Unpack(tensor.get()));
  }
  if (is_error) throw python_error();
  if (!is_done) return forgetting.result({});
  const bool differs = recomputation->mismatch || static_cast<int64_t>(values->remaining()) < recomputation->due ||
      (check && recomputation->complete && !recomputation->stopped && recomputation->count != recomputation->slot_count);
  if (differs) call(shared.refuse_difference, self(), run.get(), RecomputedTensors::make(values).get());
  if (values->remaining() > 1) {  // else it is about to be unpacked
    keep_values(task, values);
    values->task = task;
    // Rule 4: the engine lets go of it also when the backward fails.
    torch::autograd::Engine::get_default_engine().queue_callback([values] { values->take(); });
  }
  return forgetting.result(values->pop(index));
}

}  // namespace reprise
