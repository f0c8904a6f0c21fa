// Saved-tensor hooks in C++. Those that regions and recomputations have on top are hooks in Python, too, for whoever looks at
// them or calls them from there; but where autograd saves a tensor, ``Engine`` gives it hooks that need neither the GIL nor an
// object of Python for the tensor. Taking the GIL for each call costs more than all that the hooks do.
#pragma once

#include "surroundings.h"

namespace reprise {

using NodePointer = decltype(torch::autograd::Edge::function);  // of another class before torch 2.13
using HookData = std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>>;

template <typename Owner>
PyObject* pack(PyObject* self, PyObject* tensor) {
  REPRISE_BEGIN
  TORCH_CHECK_TYPE(THPVariable_Check(tensor), "what is saved is a ", Py_TYPE(tensor)->tp_name, "; it must be a tensor");
  Object kept(new_reference(self)), given(new_reference(tensor));  // a caller in C++ may let go of both meanwhile
  return Owner::from(self)->pack(tensor);
  REPRISE_END(nullptr)
}

template <typename Owner>
PyObject* unpack(PyObject* self, PyObject* packed) {
  REPRISE_BEGIN
  Object kept(new_reference(self)), given(new_reference(packed));
  return Owner::from(self)->unpack(packed);
  REPRISE_END(nullptr)
}

template <typename Owner>
struct Hooks {
  static inline PyMethodDef pack{"pack", reprise::pack<Owner>, METH_O, nullptr};
  static inline PyMethodDef unpack{"unpack", reprise::unpack<Owner>, METH_O, nullptr};

  static void push(Owner* owner) {
    push_hooks(owner->self(), &pack, &unpack);
    owner->hook_state.set_on_top(make_shareable(owner->self()));
  }
  static void pop(Owner* owner) {
    owner->hook_state.set_on_top({});
    at::SavedTensorDefaultHooks::pop_hooks();
  }
  // Whether these are the hooks of one owner. Needs no GIL.
  static bool are(PyObject* first, PyObject* second) {
    if (!Py_IS_TYPE(first, &PyCFunction_Type) || !Py_IS_TYPE(second, &PyCFunction_Type)) return false;
    const auto *one = reinterpret_cast<PyCFunctionObject*>(first), *other = reinterpret_cast<PyCFunctionObject*>(second);
    return one->m_ml == &pack && other->m_ml == &unpack && one->m_self == other->m_self;
  }
  // What a saved tensor is unpacked by in Python, as compiled autograd does, and what it gets for that.
  static HookData in_python(PyObject* owner, Object packed) {
    Object function(checked(PyCFunction_New(&unpack, owner)));
    return std::make_pair(c10::SafePyObject(function.release(), getPyInterpreter()),
                          c10::SafePyObject(packed.release(), getPyInterpreter()));
  }
};

// What stands in the graph for a tensor that forward saved. It owns its region, and the region sees by its end that the graph
// has cleared it.
class SavedByRegion final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedByRegion(Region* on_top) : region_(on_top) {}  // which its hooks keep alive until the tensor is saved
  ~SavedByRegion() override {
    if (owner_) region_->let_go(index_);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    Shareable owner;
    index_ = region_->save(tensor, &owner);
    owner_ = std::move(owner);  // only now is this a holder of the record
  }
  at::Tensor call_unpack_hook() override {
    const Shareable kept = owner_;  // another thread may clear the graph meanwhile
    return region_->unpack(index_);
  }
  HookData retrieve_unpack_hook_data() const override {
    py::gil_scoped_acquire gil;
    region_->hold(index_);
    return Hooks<Region>::in_python(owner_.get(), Slot::make(region_, index_));
  }

 private:
  Region* region_;
  Shareable owner_;
  uint32_t index_ = 0;
};

// What stands in the graph of a recomputation for a tensor that this saved.
class SavedByRecomputation final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedByRecomputation(Recomputation* on_top) : run_(on_top) {}
  void call_pack_hook(const at::Tensor& tensor) override { kept_ = run_->save(tensor, &owner_); }
  at::Tensor call_unpack_hook() override {
    const Shareable owner = owner_;
    const auto kept = kept_;
    return run_->unpack(kept);
  }
  HookData retrieve_unpack_hook_data() const override {
    py::gil_scoped_acquire gil;
    return Hooks<Recomputation>::in_python(owner_.get(), Recomputation::as_object(kept_));
  }

 private:
  Recomputation* run_;
  Shareable owner_;
  Recomputation::Kept kept_{-1, {}};
};

// Autograd's engine, which is asked for the hooks of each tensor that is saved, in the place of the one that was there: that
// one does all the work. It is never destroyed, as threads of autograd may outlive the interpreter.
class Engine final : public torch::autograd::Engine {
 public:
  static void install() {
    static Engine* const engine = new Engine(torch::autograd::Engine::get_default_engine());
    static const bool is_installed = [] {
      torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *engine; });
      return true;
    }();
    (void)is_installed;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& state = at::SavedTensorDefaultHooks::get_tls_state();
    if (!state.stack.empty() && !state.is_tracing) {
      PyObject* first = state.stack.top().first.ptr(getPyInterpreter());
      PyObject* second = state.stack.top().second.ptr(getPyInterpreter());
      if (Hooks<Region>::are(first, second)) return std::make_unique<SavedByRegion>(Region::from(PyCFunction_GET_SELF(first)));
      if (Hooks<Recomputation>::are(first, second))
        return std::make_unique<SavedByRecomputation>(Recomputation::from(PyCFunction_GET_SELF(first)));
    }
    return inner_.get_default_saved_variable_hooks();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override { return inner_.make_anomaly_metadata(); }
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& task, const NodePointer& node,
                           std::exception& error) override {
    inner_.thread_on_exception(task, node, error);
  }
  void thread_init(int device, const std::shared_ptr<torch::autograd::ReadyQueue>& queue, bool should_increment) override {
    inner_.thread_init(device, queue, should_increment);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(const std::shared_ptr<torch::autograd::GraphTask>& task,
                                                                 NodePointer root,
                                                                 torch::autograd::InputBuffer&& buffer) override {
    return inner_.execute_with_graph_task(task, std::move(root), std::move(buffer));
  }

 private:
  explicit Engine(torch::autograd::Engine& inner) : inner_(inner) {}
  torch::autograd::Engine& inner_;
};

}  // namespace reprise
