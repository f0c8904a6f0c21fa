"""Hooks that a function registers on its arguments: forward has registered them, so a recomputation is to add none.

When the recomputation is over, the hooks that it registered are removed, and those that it removed for good are put back. A
hook that it removed and registered anew stays as the new one, whose handle the user may hold. Hooks that another thread
registers on the same tensor meanwhile are left alone; on the tensor's node they cannot be told from the function's own.

What this thread registers is known by its handles. A TorchFunctionMode would see them, too, and be seen: where there is one,
encoders of transformers leave their fast path, which gives other values for padded keys.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

Hooks = dict[int, Callable[..., Any]]

_NO_CONTEXT = nullcontext()


def registration_count() -> int:
    """The number of hooks registered in this process so far, on anything. If it has not changed, none was registered."""
    return RemovableHandle.next_id


def undo_registrations(tensors: Iterable[torch.Tensor], *, registering: bool) -> AbstractContextManager[Any]:
    """A context that leaves the hooks on these tensors as they were, for a function that may be ``registering`` some."""
    return _HookSnapshot(tensors) if registering else _NO_CONTEXT


class _Local(threading.local):
    """The snapshots of a thread that are to be restored, the one that was taken last at the end."""

    snapshots: tuple[_HookSnapshot, ...] = ()


_local = _Local()
_temporary_handles: dict[int, int] = {}  # threads by the ids of the handles that recomputations under way have made


@functools.cache
def _watch_handles() -> None:
    """Have each handle that is made noted by the snapshots of its thread, from the first snapshot on."""
    made = RemovableHandle.__init__

    @functools.wraps(made)
    def initialised(handle: RemovableHandle, *hooks: Any, **others: Any) -> None:
        made(handle, *hooks, **others)
        if _local.snapshots:
            _temporary_handles[handle.id] = threading.get_ident()
        for one in _local.snapshots:
            if handle not in one.handles[-1:]:  # two threads may have come here at once, and then it is told twice
                one.handles.append(handle)

    RemovableHandle.__init__ = initialised  # type: ignore[method-assign, assignment]


class _HookSnapshot:
    """The hooks on tensors and their nodes, as they are to be again, and the handles that this thread makes meanwhile.

    ``tensor_hooks`` and ``node_hooks`` are pairs: a dict of hooks that is in use, and what it held at the start.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.handles: list[RemovableHandle] = []
        self.tensor_hooks: list[tuple[Hooks, Hooks]] = []
        self.node_hooks: list[tuple[Hooks, Hooks]] = []

    def __enter__(self) -> _HookSnapshot:
        self.tensor_hooks = [
            (hooks, _without_temporary(hooks)) for tensor in self.tensors for hooks in _hooks_of_tensor(tensor)
        ]
        self.node_hooks = [(hooks, hooks.copy()) for tensor in self.tensors for hooks in _hooks_of_node(tensor)]
        _watch_handles()
        _local.snapshots = (*_local.snapshots, self)
        return self

    def __exit__(self, *error: Any) -> None:
        _local.snapshots = _local.snapshots[:-1]
        before_by_id = {id(hooks): before for hooks, before in self.tensor_hooks}
        for tensor in self.tensors:
            for hooks in _hooks_of_tensor(tensor):
                mine = [handle.id for handle in self.handles if handle.hooks_dict_ref() is hooks]
                _restore(hooks, before_by_id.get(id(hooks), {}), mine)
        for hooks, before in self.node_hooks:
            _restore(hooks, before, [key for key in hooks if key not in before])
        if not _local.snapshots:
            for handle in self.handles:
                _temporary_handles.pop(handle.id, None)


def _without_temporary(hooks: Hooks) -> Hooks:
    """The hooks but for those that recomputations on other threads have registered, and are going to take off."""
    own = threading.get_ident()
    # In this order: what is no longer temporary, as its recomputation has ended, has been taken off before.
    return {key: hook for key, hook in hooks.copy().items() if _temporary_handles.get(key, own) == own and key in hooks}


def _hooks_of_tensor(tensor: torch.Tensor) -> list[Hooks]:
    both: tuple[Any, ...] = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    return [hooks for hooks in both if hooks is not None]


def _hooks_of_node(tensor: torch.Tensor) -> list[Hooks]:
    """The hooks on the node that a tensor came from, or that accumulates its gradient, before and after it runs."""
    if not tensor.requires_grad:
        return []
    node: Any = torch.autograd.graph.get_gradient_edge(tensor).node
    found = []
    for register in (node.register_hook, node.register_prehook):
        handle = register(_do_nothing)  # nothing but a handle leads to them
        found.append(handle.hooks_dict_ref())
        handle.remove()
    return found


def _do_nothing(*_: Any) -> None:
    return None


def _restore(hooks: Hooks, before: Hooks, mine: Iterable[int]) -> None:
    """Leave as many hooks as there were ``before``, in their order; ``mine`` are the keys that came with the recomputation."""
    came = [key for key in mine if key in hooks]
    order = []
    for key, hook in before.items():
        if key not in hooks:
            instead = next((other for other in came if _code_of(hooks[other]) is _code_of(hook)), None)
            if instead is None:
                hooks[key] = hook
            else:
                came.remove(instead)
                key = instead
        order.append(key)
    for key in came:
        hooks.pop(key, None)
    if order != list(before):
        for key in (*order, *[key for key in hooks if key not in order]):
            hooks[key] = hooks.pop(key)


def _code_of(hook: Callable[..., Any]) -> object:
    """The code of a function or method, the class of another callable: the same for a closure that is made anew."""
    return getattr(hook, "__code__", type(hook))
