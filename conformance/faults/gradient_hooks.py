"""Faults of the graph tools that laws of the family gradient_hooks must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("leaves-no-place-for-constants", "gradient_hooks", "a_tensor_without_grad_gets_none", "graph.gradients",
           "[None] * len(registration.watched)", "[None] * sum(map(bool, registration.watched))"),
    Mutant("copies-a-handle-without-its-hooks", "gradient_hooks", "handles_pickle_and_copy", "graph.gradients",
           "return _Handle(self.registration, self.handles)", "return _Handle()"),
    Mutant("copies-a-handle-deeply-with-its-hooks", "gradient_hooks", "handles_pickle_and_copy", "graph.gradients",
           "    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:\n        return _Handle()",
           "    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:\n        return self"),
    Mutant("mixes-gradients-up", "gradient_hooks", "a_hook_on_all_gets_final_gradients", "graph.gradients",
           "functools.partial(registration.hook, index)", "functools.partial(registration.hook, len(tensors) - 1 - index)"),
    Mutant("waits-for-nothing", "gradient_hooks", "a_hook_on_all_waits_for_those_that_take_part", "graph.gradients",
           "return None if self.awaited else self.finish()", "return self.finish()"),
    Mutant("does-not-call-at-the-end", "gradient_hooks", "a_tensor_that_died_holds_nothing_up", "graph.gradients",
           "if registration is not None and not registration.any_mode:", "if False:"),
    Mutant("asks-of-no-leaf", "gradient_hooks", "a_hook_on_leaves_when_some_are_asked_for", "graph.gradients",
           "            if self.leaf:\n                return False\n            raise", "            raise",
           profile="default"),
    Mutant("waits-for-what-is-undefined", "gradient_hooks", "an_undefined_gradient_is_none", "graph.gradients",
           "        self.grads[index] = grad\n", "        self.grads[index] = torch.zeros(2, 2) if grad is None else grad\n"),
    Mutant("calls-for-each-gradient", "gradient_hooks", "a_hook_on_any_gets_the_first_gradient", "graph.gradients",
           "                    current.finish()", "                    pass"),
    Mutant("knows-a-backward-by-its-thread", "gradient_hooks", "a_backward_inside_another_is_kept_apart", "graph.gradients",
           "task = torch._C._current_graph_task_id()", "task = threading.get_ident()"),
    Mutant("knows-one-backward-alone", "gradient_hooks", "backwards_on_two_threads_are_kept_apart", "graph.gradients",
           "task = torch._C._current_graph_task_id()", "task = 0"),
    Mutant("keeps-what-arrived", "gradient_hooks", "an_error_retains_no_gradient", "graph.gradients",
           "= weakref.WeakValueDictionary()", "= {}"),
    Mutant("goes-on-with-what-arrived", "gradient_hooks", "a_backward_after_an_error_is_right", "graph.gradients",
           "current = self.passes.get(task)",
           "current = next((one for one in self.passes.values() if one.awaited), None)\n"
           "            self.kept = [*getattr(self, 'kept', ()), current]"),
    Mutant("notes-every-backward", "gradient_hooks", "repeated_backwards_leave_nothing_behind", "graph.gradients",
           "            if current.registration is None:",
           "            self.notes = [*getattr(self, 'notes', ()), []]\n            if current.registration is None:"),
    Mutant("calls-what-was-removed", "gradient_hooks", "a_removed_hook_is_not_called", "graph.gradients",
           "        if not self.removed:", "        if True:"),
    Mutant("does-not-pickle", "gradient_hooks", "handles_pickle_and_copy", "graph.gradients", "    def __reduce__",
           "    def _reduce"),
    Mutant("takes-any-mode", "gradient_hooks", "what_has_no_gradient_cannot_be_watched", "graph.gradients",
           'if mode not in ("all", "any"):', "if False:"),
    Mutant("does-not-count-the-root", "gradient_hooks", "a_hook_on_all_gets_final_gradients", "graph.gradients",
           "if node is torch._C._current_autograd_node():", "if False:", profile="default"),
)  # fmt: skip
