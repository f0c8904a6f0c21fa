"""Faults of the nested checkpoint that laws about hooks registered by a function must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant

_HOOKS = "state.hook_registrations"
_LATER = "nested.later_hooks"


def _take_off(copy: Copy, change: Callable[[Any, list[Any]], Iterable[Any]]) -> None:
    """Of the hooks that a recomputation has registered, it knows only ``change(changes, handles)``."""
    copy.change_result(_HOOKS, "_HookChanges.find_registered", lambda made, self: iter(change(self, [*made])))


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation(copy: Copy) -> None:
    """Hooks that a recomputation registers stay."""
    copy.replace(_HOOKS, "undo_registrations", lambda tensors, *, registering: nullcontext())


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation_that_fails(copy: Copy) -> None:
    """Hooks that a recomputation registers stay if it fails."""

    def changed(self: Any, kind: Any, *error: Any) -> None:
        if kind is not None:
            self.tensors = []

    copy.call_before(_HOOKS, "_HookChanges.__exit__", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_off_the_hooks_of_the_user_too(copy: Copy) -> None:
    """After a recomputation no hooks are left, whoever registered them."""

    def changed(self: Any, *error: Any) -> None:
        for tensor in self.tensors:
            for hooks in copy[_HOOKS]._hooks_of_tensor(tensor):
                hooks.clear()

    copy.call_before(_HOOKS, "_HookChanges.__exit__", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def forgets_hooks_on_accumulation(copy: Copy) -> None:
    """Hooks on the accumulation of a gradient stay."""

    def changed(of_tensor: Any, tensor: torch.Tensor) -> Any:
        return [one for one in of_tensor(tensor) if one is not tensor._post_accumulate_grad_hooks]

    copy.call_instead(_HOOKS, "_hooks_of_tensor", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def knows_hooks_of_the_first_argument_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on other tensors than the first argument stay."""
    copy.call_instead(_HOOKS, "_HookChanges.__init__", lambda init, self, tensors: init(self, list(tensors)[:1]))


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_one_hook_off(copy: Copy) -> None:
    """Of the hooks that a recomputation registers on a tensor the first is taken off."""
    _take_off(copy, lambda changes, handles: handles[:1])


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def knows_hooks_of_positional_arguments_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on a keyword argument stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, *others = there(self)
        return args, kwargs, [one for one in args if isinstance(one, torch.Tensor)], *others

    copy.call_instead("nested.inputs", "FlatInputs.restore", changed)


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def leaves_hooks_on_what_containers_hold(copy: Copy) -> None:
    """Hooks that a recomputation registers on a tensor in a container stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, *others = there(self)
        return args, kwargs, [], *others

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_replaces_on_its_argument")
def puts_hooks_back_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off is put back, and the handle of what it registered in its place removes nothing."""
    copy.replace(_HOOKS, "_code_of", lambda hook: object())


@mutant(_HOOKS, "structure", "hooks_that_a_function_replaces_on_its_argument")
def loses_hooks_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off stays off, and what it registered in its place is taken off."""
    copy.replace(_HOOKS, "_put_back", lambda removal, successors: [new.remove() for new in successors])


@mutant(_HOOKS, "structure", "module_hooks_that_a_function_takes_off_for_a_while")
def knows_one_handle_of_each_hook(copy: Copy) -> None:
    """Of a hook that a recomputation registered, only the first handle becomes one of the hook that is put back."""
    copy.change_result(_HOOKS, "_HookChanges.find_handles", lambda found, *_: found[:1])


@mutant(_HOOKS, "structure", "hooks_that_a_function_replaces_inside_another")
def puts_hooks_back_on_arguments_alone(copy: Copy) -> None:
    """A hook that the recomputation took off stays off unless it is on an argument."""

    def changed(there: Any, self: Any, handle: Any) -> None:
        if any(handle.hooks_dict_ref() is hooks for one in self.tensors for hooks in copy[_HOOKS]._hooks_of_tensor(one)):
            there(self, handle)

    copy.call_instead(_HOOKS, "_HookChanges.note_removal", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_anew_at_its_end")
def stops_before_hooks_are_registered_anew(copy: Copy) -> None:
    """A recomputation ends early although it has taken a hook off, and so leaves the function without its handle."""
    copy.replace(_HOOKS, "has_removed_hooks_for_now", lambda: False)


@mutant(_HOOKS, "structure", "hooks_that_another_thread_registers_meanwhile")
def takes_off_what_another_thread_registered(copy: Copy) -> None:
    """Whatever hooks came during a recomputation are taken for its own."""
    copy.replace(_HOOKS, "_local", SimpleNamespace(changes=()))


@mutant(_HOOKS, "structure", "hooks_that_another_recomputation_takes_off")
def puts_back_hooks_of_another_recomputation(copy: Copy) -> None:
    """A hook that a recomputation on another thread takes off is put back."""
    copy.replace(_HOOKS, "_local", SimpleNamespace(changes=()))


@mutant(_HOOKS, "structure", "a_function_that_asks_for_modes")
def watches_hooks_in_a_mode(copy: Copy) -> None:
    """A recomputation of a function that registers hooks runs in a TorchFunctionMode."""

    @contextmanager
    def changed(undone: Any, tensors: Any, *, registering: bool) -> Iterator[None]:
        mode = torch.overrides.BaseTorchFunctionMode() if registering else nullcontext()
        with undone(tensors, registering=registering), mode:
            yield

    copy.call_instead(_HOOKS, "undo_registrations", changed)


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_on_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers on the node of an argument stay."""
    copy.replace(_HOOKS, "_hooks_of_node", lambda tensor: [])


@mutant(_HOOKS, "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_before_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers to run before the node of an argument stay."""
    copy.change_result(_HOOKS, "_hooks_of_node", lambda result, _: result[:1])


@mutant(_LATER, "structure", "hooks_that_an_argument_gets_after_the_call")
def calls_later_hooks_of_arguments(copy: Copy) -> None:
    """The recomputation runs with the hooks that its arguments have by then."""
    copy.replace(_LATER, "silence_later_hooks", lambda tensors, at_call, after_forward: nullcontext())


@mutant(_LATER, "structure", "hooks_that_an_argument_gets_after_the_call")
def silences_earlier_hooks_of_arguments(copy: Copy) -> None:
    """The recomputation runs without any of the hooks of its arguments."""
    copy.call_instead(_LATER, "silence_later_hooks", lambda there, tensors, at_call, after_forward: there(tensors, 0, 0))


@mutant(_LATER, "structure", "hooks_that_an_argument_gets_after_the_call")
def silences_hooks_that_are_registered_once(copy: Copy) -> None:
    """The recomputation runs without the hooks that its forward registered, whether it registers them again or not."""
    copy.call_instead(
        _LATER, "silence_later_hooks", lambda there, tensors, at_call, after_forward: there(tensors, at_call, at_call)
    )


@mutant(_LATER, "structure", "hooks_that_an_argument_gets_after_the_call")
def calls_hooks_of_forward_beside_those_of_the_recomputation(copy: Copy) -> None:
    """A hook that the function registers whenever it runs acts twice in the recomputation."""
    copy.replace(_LATER, "_SilentHook.is_registered_again", lambda self: False)


@mutant(_LATER, "structure", "hooks_that_an_argument_gets_after_the_call")
def leaves_gradients_that_arguments_retain(copy: Copy) -> None:
    """What a recomputation adds to gradients that its arguments retain stays there."""

    def changed(there: Any, tensors: Any, retaining: Any, *counts: int) -> Any:
        return there(tensors, [], *counts)

    copy.call_instead(_LATER, "_silence", changed)
