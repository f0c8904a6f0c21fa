"""Faults of the nested checkpoint that laws about hooks which a function registers must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def _register(copy: Copy, change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> None:
    """Hooks are left as they were by ``change(hooks, before, mine)``, which stand for those before, and those that came."""
    copy.call_instead(
        "state.hook_registrations",
        "_restore",
        lambda there, hooks, before, mine: there(hooks, *change(hooks, before, mine)),
    )


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation(copy: Copy) -> None:
    """Hooks that a recomputation registers stay."""
    copy.replace("state.hook_registrations", "undo_registrations", lambda tensors, *, registering: nullcontext())


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation_that_fails(copy: Copy) -> None:
    """Hooks that a recomputation registers stay if it fails."""

    def changed(self: Any, kind: Any, *error: Any) -> None:
        if kind is not None:
            self.tensors, self.node_hooks = [], []

    copy.call_before("state.hook_registrations", "_HookSnapshot.__exit__", changed)


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_off_the_hooks_of_the_user_too(copy: Copy) -> None:
    """After a recomputation no hooks are left, whoever registered them."""
    copy.replace("state.hook_registrations", "_restore", lambda hooks, before, mine: hooks.clear())


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def forgets_hooks_on_accumulation(copy: Copy) -> None:
    """Hooks on the accumulation of a gradient stay."""

    def changed(of_tensor: Any, tensor: torch.Tensor) -> Any:
        return [one for one in of_tensor(tensor) if one is not tensor._post_accumulate_grad_hooks]

    copy.call_instead("state.hook_registrations", "_hooks_of_tensor", changed)


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def knows_hooks_of_the_first_argument_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on other tensors than the first argument stay."""
    copy.call_instead(
        "state.hook_registrations", "_HookSnapshot.__init__", lambda init, self, tensors: init(self, list(tensors)[:1])
    )


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_one_hook_off(copy: Copy) -> None:
    """Of the hooks that a recomputation registers on a tensor the first is taken off."""
    _register(copy, lambda hooks, before, mine: (before, [key for key in mine if key in hooks][:1]))


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def knows_hooks_of_positional_arguments_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on a keyword argument stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, through = there(self)
        return args, kwargs, [one for one in args if isinstance(one, torch.Tensor)], through

    copy.call_instead("nested.inputs", "FlatInputs.restore", changed)


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def leaves_hooks_on_what_containers_hold(copy: Copy) -> None:
    """Hooks that a recomputation registers on a tensor in a container stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, through = there(self)
        return args, kwargs, [], through

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_replaces_on_its_argument")
def puts_hooks_back_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off is put back, also if it registered another one in its place."""
    copy.replace("state.hook_registrations", "_code_of", lambda hook: object())


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_replaces_on_its_argument")
def loses_hooks_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off stays off, and what it registered in its place is taken off."""
    _register(copy, lambda hooks, before, mine: ({key: hook for key, hook in before.items() if key in hooks}, mine))


@mutant("state.hook_registrations", "structure", "hooks_that_another_thread_registers_meanwhile")
def takes_off_what_another_thread_registered(copy: Copy) -> None:
    """Whatever hooks came during a recomputation are taken for its own."""
    _register(copy, lambda hooks, before, mine: (before, [key for key in hooks if key not in before]))


@mutant("state.hook_registrations", "structure", "hooks_that_another_recomputation_takes_off")
def puts_back_hooks_of_another_recomputation(copy: Copy) -> None:
    """Hooks that a recomputation on another thread has registered for a while are taken for hooks that are there to stay."""
    copy.replace("state.hook_registrations", "_without_temporary", lambda hooks: hooks.copy())


@mutant("state.hook_registrations", "structure", "a_function_that_asks_for_modes")
def watches_hooks_in_a_mode(copy: Copy) -> None:
    """A recomputation of a function that registers hooks runs in a TorchFunctionMode."""

    @contextmanager
    def changed(undone: Any, tensors: Any, *, registering: bool) -> Iterator[None]:
        mode = torch.overrides.BaseTorchFunctionMode() if registering else nullcontext()
        with undone(tensors, registering=registering), mode:
            yield

    copy.call_instead("state.hook_registrations", "undo_registrations", changed)


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_on_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers on the node of an argument stay."""
    copy.replace("state.hook_registrations", "_hooks_of_node", lambda tensor: [])


@mutant("state.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_before_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers to run before the node of an argument stay."""
    copy.change_result("state.hook_registrations", "_hooks_of_node", lambda result, _: result[:1])
