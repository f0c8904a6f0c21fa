"""Hooks that a region's arguments got after the call: its recomputation is to run without them, as forward did.

If the function asks autograd for a gradient with respect to its argument, this runs the hooks of the argument. Those of the
call act as they did in forward. Later ones are for the backward around alone, and so is what ``retain_grad`` leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from impls.state.hook_registrations import Hooks, _code_of, _hooks_of_tensor, registration_count
from impls.torch_private import current_graph_task_id

_NO_CONTEXT = nullcontext()


class _Run:
    """A recomputation on this thread: its own backwards are those that this thread begins from now on."""

    def __init__(self, after_forward: int) -> None:
        self.count = registration_count()  # of hooks, before it registers any
        self.count_after_forward = self.count if after_forward == -1 else after_forward
        self.thread, self.task = threading.get_ident(), current_graph_task_id()

    def is_in_own_backward(self) -> bool:
        """Whether this is a backward that the function has begun. Others may run here, too, while that waits for a device."""
        return threading.get_ident() == self.thread and current_graph_task_id() > self.task


class _SilentHook:
    """Stands among ``hooks`` in the place of one that some recomputations run without. Its handle remains valid."""

    def __init__(self, hooks: Hooks, key: int, hook: Callable[..., Any]) -> None:
        self.hooks, self.key, self.hook = hooks, key, hook
        self.runs: list[_Run] = []
        self.__code__ = _code_of(self.hook)  # by which a hook is known that is registered instead

    def __call__(self, *gradients: Any) -> Any:
        return None if any(self.is_silent_in(run) for run in [*self.runs]) else self.hook(*gradients)

    def is_silent_in(self, run: _Run) -> bool:
        return run.is_in_own_backward() and (self.key >= run.count_after_forward or self.is_registered_again(run))

    def is_registered_again(self, run: _Run) -> bool:
        """Whether the recomputation has registered what forward registered itself, and has not found it there."""
        return any(key >= run.count and _code_of(hook) is self.__code__ for key, hook in [*self.hooks.items()])


def silence_later_hooks(tensors: Sequence[torch.Tensor], at_call: int, after_forward: int) -> AbstractContextManager[None]:
    """A context for a recomputation, in which its own backwards do not call hooks that tensors got after the call.

    What these leave in ``grad`` of results that retain it is taken back. The numbers are what ``registration_count`` was; that
    after forward is -1 while forward runs.
    """
    retaining = [one for one in tensors if one.retains_grad]
    if registration_count() == at_call:
        return _silence([], retaining, at_call, after_forward) if retaining else _NO_CONTEXT
    return _silence(tensors, retaining, at_call, after_forward)


@contextmanager
def _silence(
    tensors: Sequence[torch.Tensor], retaining: Sequence[torch.Tensor], at_call: int, after_forward: int
) -> Iterator[None]:
    run, silent = _Run(after_forward), list[_SilentHook]()
    retained: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def note(tensor: torch.Tensor) -> None:  # called before the gradient is added to what is retained
        if run.is_in_own_backward():
            retained.setdefault(id(tensor), (tensor, tensor.grad))

    handles = [one.register_hook(lambda _, one=one: note(one)) for one in retaining]
    try:
        for hooks in (hooks for one in tensors for hooks in _hooks_of_tensor(one)):
            for key, hook in [*hooks.items()]:
                if at_call <= key < run.count:
                    one = hook if isinstance(hook, _SilentHook) else _SilentHook(hooks, key, hook)
                    one.runs.append(run)
                    silent.append(one)
                    _put(hooks, key, one)
        yield
    finally:
        for one in silent:
            one.runs.remove(run)
            if not one.runs:
                _put(one.hooks, one.key, one.hook)
        for handle in handles:
            handle.remove()
        for tensor, grad in retained.values():
            tensor.grad = grad


def _put(hooks: Hooks, key: int, hook: Any) -> None:
    """Put a hook in the place of another one, unless another thread has removed that."""
    if key in hooks:  # no other thread runs between these lines: nothing is called, and nothing jumps back
        hooks[key] = hook
