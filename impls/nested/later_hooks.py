"""Hooks that a region's arguments got after the call: its recomputation is to run without them, as forward did.

If the function asks autograd for a gradient with respect to its argument, this runs the hooks of the argument. Those of the
call act as they did in forward. Later ones are for the backward around alone, and so is what ``retain_grad`` leaves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from impls.state.hook_registrations import Hooks, _code_of, _hooks_of_tensor, registration_count
from impls.tensors.versions import detach_without_modes
from impls.torch_private import innermost_transform

_NO_CONTEXT = nullcontext()
_CHANGING = threading.RLock()  # what stands among hooks for one that is silent


class _SilentHook:
    """Stands among the hooks in the place of one that is not to be called on some threads. Its handle remains valid."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook, self.threads = hook, list[int]()  # a thread is there once for each of its recomputations
        self.__code__ = _code_of(hook)  # by which a hook is known that is registered instead

    def __call__(self, *gradients: Any) -> Any:
        return None if threading.get_ident() in self.threads else self.hook(*gradients)


def silence_later_hooks(
    tensors: Sequence[torch.Tensor], others: Iterable[weakref.ref[Hooks]], count: int
) -> AbstractContextManager[None]:
    """A context in which this thread does not call those hooks of tensors, and others, that came after the first ``count``.

    What the context leaves in ``grad`` of results that retain it is taken back.
    """
    retained = [(one, one.grad) for one in tensors if one.retains_grad]
    if registration_count() != count:
        several = [hooks for one in tensors for hooks in _hooks_of_tensor(one)]
        several += [hooks for one in others if (hooks := one()) is not None]
        return _silence(several, count, retained)
    return _silence([], count, retained) if retained else _NO_CONTEXT


@contextmanager
def _silence(several: list[Hooks], count: int, retained: list[tuple[torch.Tensor, torch.Tensor | None]]) -> Iterator[None]:
    thread, silent = threading.get_ident(), list[tuple[Hooks, int, _SilentHook]]()
    try:
        with _CHANGING:
            for hooks in several:
                for key, hook in [*hooks.items()]:
                    if key >= count:
                        one = hooks[key] = hook if isinstance(hook, _SilentHook) else _SilentHook(hook)
                        one.threads.append(thread)
                        silent.append((hooks, key, one))
        yield
    finally:
        with _CHANGING:
            for hooks, key, one in silent:
                one.threads.remove(thread)
                if not one.threads and key in hooks:  # it may have been removed meanwhile
                    hooks[key] = one.hook
        for tensor, grad in retained:
            if tensor.grad is not grad:
                tensor.grad = grad


class _OwnNode(torch.autograd.Function):
    """Another object for the same values, in front of the node that the tensor came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return detach_without_modes(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> Any:
        return tangents[0]


def with_own_node(tensor: torch.Tensor) -> torch.Tensor:
    """What stands for a tensor that is gone, with a node of its own: nothing leads to the hooks that are on that one's."""
    if tensor.is_leaf or innermost_transform() is not None:
        return tensor
    with torch.enable_grad():
        made: torch.Tensor = _OwnNode.apply(tensor)
    return made
