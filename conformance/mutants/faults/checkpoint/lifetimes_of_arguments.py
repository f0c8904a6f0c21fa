"""Faults of the nested checkpoint that keep arguments alive, in containers or as attributes: laws of the family lifetimes."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


@mutant("tensors.containers", "lifetimes", "arguments_in_containers_are_freed")
def lets_pytree_keep_the_arguments(copy: Copy) -> None:
    """The function that pytree is given, and keeps until the garbage collector runs, refers to the container."""

    def flatten(there: Any, value: Any, is_leaf: Any) -> Any:
        return there(value, lambda node: (value, is_leaf(node))[1])

    copy.call_instead("tensors.containers", "tree_flatten", flatten, only_here=True)


@mutant("nested.inputs", "lifetimes", "arguments_in_containers_are_freed")
def keeps_what_it_looks_after(copy: Copy) -> None:
    """Containers that are to be looked at again later are referred to strongly."""
    copy.replace("nested.inputs", "weakref", SimpleNamespace(ref=lambda inputs: lambda: inputs), only_here=True)


@mutant("nested.kept_containers", "lifetimes", "lists_that_outputs_are_appended_to")
def does_not_look_after_lists(copy: Copy) -> None:
    """Containers that are passed on unchanged are not looked at again."""
    copy.replace("nested.kept_containers", "EarlierCalls.look_at_some", lambda self: None)


@mutant("nested.kept_containers", "lifetimes", "lists_that_outputs_are_appended_to")
def looks_at_the_last_call_in_its_turn(copy: Copy) -> None:
    """The containers of the last call are looked at only after those of all earlier calls."""

    class Queue(deque[Any]):
        pop = deque.popleft

    copy["nested.kept_containers"].earlier_calls.waiting = Queue()


@mutant("nested.kept_containers", "lifetimes", "containers_that_a_stopped_run_leaves")
def does_not_look_at_lists_after_a_run(copy: Copy) -> None:
    """Containers that a recomputation has passed to regions inside are not looked at as it ends."""
    copy.replace("nested.kept_containers", "EarlierCalls.look_at_those_after", lambda self, added: None)


@mutant("nested.inputs", "lifetimes", "what_a_function_puts_into_its_arguments_is_freed")
def keeps_lists_that_forward_appended_to(copy: Copy) -> None:
    """A container into which forward has put something is kept."""

    def end(there: Any, self: Any) -> None:
        containers, self.containers = self.containers, []
        there(self)
        self.containers = [] if self.packed is None else containers

    copy.call_instead("nested.inputs", "Inputs.end_forward", end)


@mutant("tensors.packed", "lifetimes", "attributes_that_are_tensors_are_freed")
def keeps_attributes_that_are_tensors(copy: Copy) -> None:
    """A tensor that is an attribute of an input is kept as it is, not saved."""

    def init(_: None, self: Any, tensor: torch.Tensor, *__: Any) -> None:
        packed = [name for name, one in self.attributes.items() if isinstance(one, copy["tensors.packed"].Packed)]
        self.attributes.update({name: getattr(tensor, name) for name in packed})

    copy.call_after("tensors.packed", "Packed.__init__", init)


@mutant("nested.api", "lifetimes", "objects_are_let_go_with_the_graph")
def remembers_the_objects_of_the_last_call(copy: Copy) -> None:
    """The arguments of the last call that are no tensors are kept."""
    last: list[Any] = []

    def run(function: Any, args: tuple[Any, ...], *_: Any) -> None:
        last[:] = [one for one in args if not isinstance(one, torch.Tensor)]

    copy.call_before("nested.api", "_run", run)


@mutant("nested.api", "lifetimes", "objects_are_let_go_with_the_graph")
def remembers_the_last_function(copy: Copy) -> None:
    """The function of the last call is kept."""
    last: dict[str, Any] = {}
    copy.call_before("nested.api", "_run", lambda function, *_: last.update(function=function))


@mutant("tensors.packed", "lifetimes", "attributes_that_are_tensors_are_freed")
def keeps_tensors_of_subclasses(copy: Copy) -> None:
    """An input of a subclass is kept as it is, not saved."""

    def init(_: None, self: Any, tensor: torch.Tensor, *__: Any) -> None:
        if type(tensor) is not torch.Tensor:
            self.parameter = tensor

    copy.call_after("tensors.packed", "Packed.__init__", init)
