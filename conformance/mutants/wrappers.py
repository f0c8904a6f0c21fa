"""Wrappers that several faults are made of: a function that does something else, too, or is given other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy

Wrapper = Callable[[Any], Any]  # from a function to the one in its place


def call_before(do: Callable[..., object]) -> Wrapper:
    """Call ``do`` with a function's arguments, then the function."""
    return lambda there: lambda *args, **kwargs: (do(*args, **kwargs), there(*args, **kwargs))[1]


def call_after(do: Callable[..., object]) -> Wrapper:
    """Call a function, then ``do`` with its result and its arguments; unless the function raises."""

    def wrapper(there: Any) -> Any:
        def both(*args: Any, **kwargs: Any) -> Any:
            result = there(*args, **kwargs)
            do(result, *args, **kwargs)
            return result

        return both

    return wrapper


def change_result(change: Callable[..., Any]) -> Wrapper:
    """Return what ``change`` makes of a function's result, given its arguments, too."""
    return lambda there: lambda *args, **kwargs: change(there(*args, **kwargs), *args, **kwargs)


def change_arguments(change: Callable[[dict[str, Any]], object]) -> Wrapper:
    """Let ``change`` change the arguments of a function, by name."""

    def wrapper(there: Any) -> Any:
        signature = inspect.signature(there)

        def changed(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            change(given.arguments)
            return there(*given.args, **given.kwargs)

        return changed

    return wrapper


def set_before(**values: Any) -> Wrapper:
    """Set attributes of an object before a method of it runs."""
    return call_before(lambda self, *_, **__: vars(self).update(values))


def set_after(**values: Callable[[Any], Any]) -> Wrapper:
    """Set attributes of an object after a method of it, each to what is made of the object."""
    return call_after(lambda _, self, *__, **___: vars(self).update({name: make(self) for name, make in values.items()}))


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Pretend that a tensor has been changed in place so many times."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def forget_change(slot: Any) -> None:
    """Pretend that the tensor which a slot of a region stands for is as it was saved."""
    followed = slot[1] if isinstance(slot[1], torch.Tensor) else slot[1].tensor()
    if followed is not None and followed._version != slot[2][3]:
        set_version(followed, slot[2][3])


def forget_changes(region: Any) -> None:
    """Pretend that all tensors which a region saved are as they were saved."""
    for slot in region.slots:
        forget_change(slot)


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    """A function that raises an error, whatever it is called with."""

    def function(*_: Any, **__: Any) -> Any:
        raise error()

    return function


def compare_versions_alone_if(copy: Copy, alone: Callable[[Any, int, torch.Tensor], bool]) -> None:
    """Compare nothing but the version of a tensor that does not look as it did in forward, where ``alone`` says so."""

    def compare(there: Any) -> Any:
        def compare(self: Any, index: int, tensor: torch.Tensor) -> None:
            if alone(self, index, tensor):
                self.same_version(tensor, self.slots[index][2][3])
            else:
                there(self, index, tensor)

        return compare

    copy.wrap("nested.recomputation", "Recomputation.compare", compare)


def drop_result(copy: Copy, dropped: Callable[[Any, Any], bool]) -> None:
    """Let regions of nested recompute again for each tensor, where ``dropped`` says so of a region and what it recomputed."""

    def drop(values: Any, self: Any, task: int, slot: Any) -> None:
        if dropped(self, values):
            self.values.pop(task, None)

    copy.wrap("nested.region", "Region.recompute", call_after(drop))
