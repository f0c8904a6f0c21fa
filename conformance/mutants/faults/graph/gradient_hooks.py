"""Faults of the graph tools that laws of the family gradient_hooks must catch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def find_passes_in(copy: Copy, table: Callable[[], Any]) -> None:
    """Have each registration keep what its backwards have brought in another kind of table."""
    copy.set_after("graph.gradients", "_Registration.__init__", passes=lambda _: table())


def find_passes_by(copy: Copy, key: Callable[[], object]) -> None:
    """Have each registration tell backwards apart by something else than their numbers."""

    class Passes(weakref.WeakValueDictionary[object, Any]):
        def get(self, _: object, default: Any = None) -> Any:
            return super().get(key(), default)

        def __setitem__(self, _: object, value: Any) -> None:
            super().__setitem__(key(), value)

    find_passes_in(copy, Passes)


@mutant("graph.gradients", "gradient_hooks", "a_tensor_without_grad_gets_none")
def leaves_no_place_for_constants(copy: Copy) -> None:
    """The list of gradients is too short: tensors that do not require grad have no place in it."""

    def made(_: None, self: Any, registration: Any) -> None:
        self.grads = [None] * sum(map(bool, registration.watched))

    copy.call_after("graph.gradients", "_BackwardPass.__init__", made)


@mutant("graph.gradients", "gradient_hooks", "handles_pickle_and_copy")
def copies_a_handle_without_its_hooks(copy: Copy) -> None:
    """A copy of a handle removes nothing."""
    copy.replace("graph.gradients", "_Handle.__copy__", lambda self: type(self)())


@mutant("graph.gradients", "gradient_hooks", "handles_pickle_and_copy")
def copies_a_handle_deeply_with_its_hooks(copy: Copy) -> None:
    """A deep copy of a handle is the handle itself."""
    copy.replace("graph.gradients", "_Handle.__deepcopy__", lambda self, _: self)


@mutant("graph.gradients", "gradient_hooks", "handles_pickle_and_copy")
def does_not_pickle(copy: Copy) -> None:
    """A handle is pickled as torch's are, which needs what this one has not."""
    del copy["graph.gradients"]._Handle.__reduce__


@mutant("graph.gradients", "gradient_hooks", "a_hook_on_all_gets_final_gradients")
def mixes_gradients_up(copy: Copy) -> None:
    """The hook gets the gradients in reverse order."""
    copy.call_instead(
        "graph.gradients",
        "_Registration.hook",
        lambda there, self, index, grad: there(self, len(self.watched) - 1 - index, grad),
    )


@mutant("graph.gradients", "gradient_hooks", "a_hook_on_all_waits_for_those_that_take_part")
def waits_for_nothing(copy: Copy) -> None:
    """The hook is called with the first gradient, when others are still to come."""

    def arrived(self: Any, index: int, grad: Any) -> None:
        self.awaited.clear()

    copy.call_before("graph.gradients", "_BackwardPass.arrived", arrived)


@mutant("graph.gradients", "gradient_hooks", "a_tensor_that_died_holds_nothing_up")
def does_not_call_at_the_end(copy: Copy) -> None:
    """The hook is not called at the end of a backward that has not brought all gradients."""
    copy.replace("graph.gradients", "_BackwardPass.__call__", lambda _: None)


@mutant("graph.gradients", "gradient_hooks", "a_hook_on_leaves_when_some_are_asked_for", profile="default")
def asks_of_no_leaf(copy: Copy) -> None:
    """The engine is asked about leaves, also while torch.autograd.grad runs, when it refuses to answer."""

    def stays_away(there: Any, self: Any) -> Any:
        tensor = self.tensor()
        if tensor is not None and tensor.is_leaf and tensor.requires_grad:
            return not torch._C._will_engine_execute_node(copy["graph.gradients"].node_of(tensor))
        return there(self)

    copy.call_instead("graph.gradients", "_WatchedTensor.will_not_run", stays_away)


@mutant("graph.gradients", "gradient_hooks", "an_undefined_gradient_is_none")
def waits_for_what_is_undefined(copy: Copy) -> None:
    """The hook gets zeros instead of None where no gradient flows."""
    copy.call_instead(
        "graph.gradients",
        "_BackwardPass.arrived",
        lambda there, self, index, grad: there(self, index, torch.zeros(2, 2) if grad is None else grad),
    )


@mutant("graph.gradients", "gradient_hooks", "a_hook_on_any_gets_the_first_gradient")
def calls_for_each_gradient(copy: Copy) -> None:
    """A hook on any gradient is called with each of them."""
    copy.call_instead(
        "graph.gradients", "_BackwardPass.finish", lambda there, self: None if self.registration.any_mode else there(self)
    )


@mutant("graph.gradients", "gradient_hooks", "a_backward_inside_another_is_kept_apart")
def knows_a_backward_by_its_thread(copy: Copy) -> None:
    """Backwards on the same thread are taken for one."""
    find_passes_by(copy, threading.get_ident)


@mutant("graph.gradients", "gradient_hooks", "backwards_on_two_threads_are_kept_apart")
def knows_one_backward_alone(copy: Copy) -> None:
    """All backwards that run at once are taken for one."""
    find_passes_by(copy, lambda: 0)


@mutant("graph.gradients", "gradient_hooks", "an_error_retains_no_gradient")
def keeps_what_arrived(copy: Copy) -> None:
    """What a backward has brought is kept with the hook, also after an error."""
    find_passes_in(copy, dict)


@mutant("graph.gradients", "gradient_hooks", "a_backward_after_an_error_is_right")
def goes_on_with_what_arrived(copy: Copy) -> None:
    """A backward goes on with what one before it has brought that did not end."""

    class Passes(dict[int, Any]):
        def get(self, task: int, default: Any = None) -> Any:
            return next((one for one in self.values() if one.awaited), super().get(task, default))

    find_passes_in(copy, Passes)


@mutant("graph.gradients", "gradient_hooks", "repeated_backwards_leave_nothing_behind")
def notes_every_backward(copy: Copy) -> None:
    """Each gradient that arrives leaves an object behind."""
    notes: list[list[None]] = []

    def hook(self: Any, *args: Any) -> None:
        notes.append([])

    copy.call_before("graph.gradients", "_Registration.hook", hook)


@mutant("graph.gradients", "gradient_hooks", "a_removed_hook_is_not_called")
def calls_what_was_removed(copy: Copy) -> None:
    """A hook that is removed during a backward is still called at its end."""

    def remove(self: Any) -> None:
        for handle in self.handles:
            handle.remove()

    copy.replace("graph.gradients", "_Handle.remove", remove)


@mutant("graph.gradients", "gradient_hooks", "a_removed_hook_is_let_go")
def keeps_what_was_removed(copy: Copy) -> None:
    """A removed hook is owned by its registration as before."""

    def remove(self: Any) -> None:
        self.registration.last = self.registration.fn

    copy.call_before("graph.gradients", "_Handle.remove", remove)


@mutant("graph.gradients", "gradient_hooks", "tensors_come_in_any_iterable")
def takes_sequences_alone(copy: Copy) -> None:
    """Tensors that come in anything but a list or a tuple are refused."""

    def change(given: dict[str, Any]) -> None:
        if not isinstance(given["tensors"], list | tuple):
            raise TypeError("tensors must be a sequence of tensors")

    copy.change_arguments("graph.gradients", "register_multi_grad_hook", change)


@mutant("graph.gradients", "gradient_hooks", "hooks_that_come_and_go_leave_nothing_behind")
def leaves_removed_hooks_on_tensors(copy: Copy) -> None:
    """What was attached to tensors stays there when a hook is removed."""
    copy.set_before("graph.gradients", "_Handle.remove", handles=lambda _: ())


@mutant("graph.gradients", "gradient_hooks", "what_has_no_gradient_cannot_be_watched")
def takes_any_mode(copy: Copy) -> None:
    """An unknown mode is taken for "all"."""

    def change(given: dict[str, Any]) -> None:
        given["mode"] = "any" if given.get("mode") == "any" else "all"

    copy.change_arguments("graph.gradients", "register_multi_grad_hook", change)


@mutant("graph.gradients", "gradient_hooks", "a_hook_on_all_gets_final_gradients", profile="default")
def does_not_count_the_root(copy: Copy) -> None:
    """The node that a backward begins with is taken for one that takes no part in it."""

    def stays_away(there: Any, self: Any) -> Any:
        tensor = self.tensor()
        begun = tensor is not None and tensor.requires_grad and copy["graph.gradients"].node_of(tensor)
        return begun == torch._C._current_autograd_node() or there(self)

    copy.call_instead("graph.gradients", "_WatchedTensor.will_not_run", stays_away)


@mutant("graph.gradients", "gradient_hooks", "an_undefined_gradient_is_not_the_first")
def takes_none_for_the_first(copy: Copy) -> None:
    """A hook on any gradient is not called after one that is undefined."""

    def hook(_: None, self: Any, index: int, grad: Any) -> None:
        for one in self.passes.values() if self.any_mode and grad is None else ():
            one.finish()

    copy.call_after("graph.gradients", "_Registration.hook", hook)


@mutant("graph.gradients", "gradient_hooks", "a_watched_tensor_may_change_its_node", profile="default")
def asks_the_node_after_a_change(copy: Copy) -> None:
    """The node of a tensor that was changed in place is asked for, which has not the hook."""

    def stays_away(self: Any) -> None:
        tensor = self.tensor()
        self.version = self.version if tensor is None else tensor._version

    copy.call_before("graph.gradients", "_WatchedTensor.will_not_run", stays_away)


@mutant("graph.gradients", "gradient_hooks", "a_watched_tensor_may_change_its_node", profile="default")
def takes_what_became_a_leaf_for_absent(copy: Copy) -> None:
    """Of a result that was detached in place, the node of the leaf that it is now is asked for."""

    def stays_away(self: Any) -> None:
        tensor = self.tensor()
        self.leaf = self.leaf if tensor is None else tensor.is_leaf

    copy.call_before("graph.gradients", "_WatchedTensor.will_not_run", stays_away)
