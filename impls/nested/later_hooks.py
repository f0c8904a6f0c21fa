"""Hooks that a region's arguments got after the call: its recomputation is to run without them, as forward did.

If the function asks autograd for a gradient with respect to its argument, this runs the hooks of the argument. Those of the
call act as they did in forward. Later ones are for the outer backward alone, and so is what ``retain_grad`` leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from impls.state.hook_registrations import Hooks, _code_of, _hooks_of_tensor, registration_count
from impls.torch_private import current_graph_task_id

_NO_CONTEXT = nullcontext()


class _Run:
    """A recomputation on this thread: its own backwards are those that this thread begins from now on."""

    def __init__(self, after_forward: int) -> None:
        self.count = registration_count()  # of hooks, before it registers any
        self.count_after_forward = self.count if after_forward == -1 else after_forward
        self.thread, self.task = threading.get_ident(), current_graph_task_id()
        self.is_over = False

    def is_in_own_backward(self) -> bool:
        """Whether this is a backward that the function has begun. Others may run here, too, while that waits for a device."""
        return not self.is_over and threading.get_ident() == self.thread and current_graph_task_id() > self.task


class _SilentHook:
    """Stands among ``hooks`` in the place of one that a recomputation runs without. Its handle remains valid."""

    def __init__(self, hooks: Hooks, key: int, hook: Callable[..., Any], run: _Run) -> None:
        self.hooks, self.key, self.hook, self.run = hooks, key, hook, run
        self.__code__ = _code_of(hook)  # by which a hook is known that is registered instead

    def __call__(self, *gradients: Any) -> Any:
        return None if self.is_silent() else self.hook(*gradients)

    def is_silent(self) -> bool:
        run = self.run
        return run.is_in_own_backward() and (self.key >= run.count_after_forward or self.is_registered_again())

    def is_registered_again(self) -> bool:
        """Whether the recomputation has registered a hook of the same code, so that forward's own is not to act as well."""
        newer = ((key, hook) for key, hook in [*self.hooks.items()] if key >= self.run.count)
        return any(_code_of(hook) is self.__code__ for _, hook in newer)

    def put(self) -> None:
        """Put it in its place, if no other thread has removed the hook."""
        hooks, key, hook = self.hooks, self.key, self.hook
        if key in hooks and hooks[key] is hook:  # no thread runs between this and the next line: nothing is called
            hooks[key] = self

    def take_back(self) -> None:
        """Put what was there in its place again, unless another recomputation's stands there, which does so when it ends."""
        hooks, key, hook = self.hooks, self.key, self.hook
        while isinstance(hook, _SilentHook) and hook.run.is_over:
            hook = hook.hook
        if key in hooks and hooks[key] is self:  # as above
            hooks[key] = hook


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
    run, silent, handles = _Run(after_forward), list[_SilentHook](), list[RemovableHandle]()
    retained: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def note(tensor: torch.Tensor) -> None:  # called before the gradient is added to what is retained
        if run.is_in_own_backward():
            retained.setdefault(id(tensor), (tensor, tensor.grad))

    try:
        for one in retaining:
            handles.append(one.register_hook(lambda _, one=one: note(one)))
        for hooks in {id(hooks): hooks for one in tensors for hooks in _hooks_of_tensor(one)}.values():
            for key, hook in [*hooks.items()]:
                if at_call <= key < run.count:
                    silent.append(_SilentHook(hooks, key, hook, run))
                    silent[-1].put()
        yield
    finally:
        run.is_over = True
        for stand_in in silent:
            stand_in.take_back()
        for handle in handles:
            handle.remove()
        for tensor, grad in retained.values():
            tensor.grad = grad
