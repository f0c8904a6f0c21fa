"""Hooks that a region's arguments got after the call: its recomputation is to run without them, as forward did.

If the function asks autograd for a gradient with respect to its argument, this runs the hooks of the argument. Those of the
call act as they did in forward. Later ones are for the backward around alone, and so is what ``retain_grad`` leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
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


def silence_later_hooks(tensors: Iterable[torch.Tensor], count: int) -> AbstractContextManager[None]:
    """A context without effect of the hooks registered on tensors when there had been ``count`` or more, on this thread alone.

    What the context leaves in ``grad`` of results that retain it is taken back.
    """
    hooked = registration_count() != count
    retained = [(one, one.grad) for one in tensors if one.retains_grad]
    if not hooked and not retained:
        return _NO_CONTEXT
    return _silence([hooks for one in tensors for hooks in _hooks_of_tensor(one)] if hooked else [], count, retained)


@contextmanager
def _silence(several: list[Hooks], count: int, retained: list[tuple[torch.Tensor, torch.Tensor | None]]) -> Iterator[None]:
    thread, silent = threading.get_ident(), []
    try:
        with _CHANGING:
            for hooks in several:
                for key, hook in [*hooks.items()]:
                    if key >= count:
                        one = hooks[key] = hook if type(hook) is _SilentHook else _SilentHook(hook)
                        one.threads.append(thread)
                        silent.append((hooks, key, one))
        yield
    finally:
        with _CHANGING:
            for hooks, key, one in silent:
                one.threads.remove(thread)
                if not one.threads and hooks.get(key) is one:
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
    """What stands for a tensor that is gone, with a node of its own: no object leads to the hooks that are on that one's."""
    if tensor.is_leaf or innermost_transform() is not None:
        return tensor
    with torch.enable_grad():
        made: torch.Tensor = _OwnNode.apply(tensor)
    return made
