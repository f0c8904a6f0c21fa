"""Hooks that a function registers and removes: forward has done so, and a recomputation is to change nothing.

After the recomputation there are the same hooks as before. What it registered on its arguments is taken off, and what it
removed, on whatever tensor, is put back. It may have registered another hook of the same code in the place of one that it
removed, and kept the new handle for its next call: that handle then stands for the hook that was put back.

What this thread registers and removes is known by handles, so hooks of other threads are left alone. A TorchFunctionMode would
see the hooks, too, but a program can tell that there is such a mode: encoders of transformers then leave their fast path, which
gives other values for padded keys.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from impls.torch_private import disable_dispatch_modes

Hooks = dict[int, Callable[..., Any]]

_NO_CONTEXT = nullcontext()


def registration_count() -> int:
    """The number of hooks registered in this process so far, on anything. If it has not changed, none was registered."""
    return RemovableHandle.next_id


def undo_registrations(tensors: Iterable[torch.Tensor], *, registering: bool) -> AbstractContextManager[Any]:
    """A context that leaves hooks as they were, except new ones on other tensors; it does nothing unless ``registering``."""
    return _HookChanges(tensors) if registering else _NO_CONTEXT


def has_removed_hooks_for_now() -> bool:
    """Whether the recomputation under way has removed a hook that forward left, and registered none instead so far."""
    return bool(_local.changes) and any(new is None for _, new in _local.changes[-1].find_successors())


class _Local(threading.local):
    """What recomputations of a thread change, the innermost at the end."""

    changes: tuple[_HookChanges, ...] = ()


_local = _Local()


@functools.cache
def _watch_handles() -> None:
    """Have each handle that is made or removed noted by recomputations on its thread, from the first of them on."""
    made, removed = RemovableHandle.__init__, RemovableHandle.remove

    @functools.wraps(made)
    def initialised(handle: RemovableHandle, *hooks: Any, **others: Any) -> None:
        made(handle, *hooks, **others)
        for one in _local.changes:
            one.made[handle.id] = handle

    @functools.wraps(removed)
    def removing(handle: RemovableHandle) -> None:
        if _local.changes:
            _local.changes[-1].note_removal(handle)
        removed(handle)

    RemovableHandle.__init__ = initialised  # type: ignore[method-assign, assignment]
    RemovableHandle.remove = removing  # type: ignore[method-assign, assignment]


class _Removal(NamedTuple):
    """A hook that a recomputation has removed, the keys of the hooks beside it, in their order, and what else went with it."""

    handle: RemovableHandle
    hook: Callable[..., Any]
    keys: list[int]
    extra: list[tuple[dict[int, Any], Any]]  # of modules: whether a hook takes keywords, and the like


class _HookChanges:
    """The handles that this thread makes in a recomputation, and the hooks that it removes and has not registered there."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.made: dict[int, RemovableHandle] = {}
        self.removed: dict[int, _Removal] = {}

    def __enter__(self) -> _HookChanges:
        _watch_handles()
        _local.changes = (*_local.changes, self)
        return self

    def __exit__(self, *error: Any) -> None:
        _local.changes = _local.changes[:-1]
        successors = [*self.find_successors()]
        self.take_off({id(new) for _, new in successors})
        for removal, new in successors:
            _put_back(removal, [] if new is None else self.find_handles(new))
        for removal in reversed(self.removed.values()):  # the first saw all of the keys
            _put_in_order(_hooks_of(removal.handle), removal.keys)

    def note_removal(self, handle: RemovableHandle) -> None:
        hooks = _hooks_of(handle)
        if handle.id in hooks and handle.id not in self.made and handle.id not in self.removed:
            extra = [(one, one[handle.id]) for ref in handle.extra_dict_ref if (one := ref()) is not None and handle.id in one]
            self.removed[handle.id] = _Removal(handle, hooks[handle.id], [*hooks], extra)

    def find_registered(self) -> Iterator[RemovableHandle]:
        """The handles made here whose hooks are still registered."""
        return (handle for key, handle in self.made.items() if handle.id == key and key in _hooks_of(handle))

    def find_successors(self) -> Iterator[tuple[_Removal, RemovableHandle | None]]:
        """What was removed, each with the handle of what was registered instead: on the same tensor, or else on another."""
        left = [*self.find_registered()] if self.removed else []
        for removal in self.removed.values():
            alike = [one for one in left if _code_of(_hooks_of(one)[one.id]) is _code_of(removal.hook)]
            hooks = _hooks_of(removal.handle)
            new = next((one for one in alike if _hooks_of(one) is hooks), alike[0] if alike else None)
            if new is not None:
                left.remove(new)
            yield removal, new

    def find_handles(self, handle: RemovableHandle) -> list[RemovableHandle]:
        """A handle, and others of the same hook, which recomputations inside this one have made and the program may keep."""
        hooks = handle.hooks_dict_ref()
        return [handle, *(one for one in self.made.values()
                          if one is not handle and one.id == handle.id and one.hooks_dict_ref() is hooks)]  # fmt: skip

    def take_off(self, kept: set[int]) -> None:
        """Take the hooks off that were registered on arguments, but for handles of these identities."""
        if not self.made:
            return
        of_arguments = {id(hooks) for tensor in self.tensors for hooks in (*_hooks_of_tensor(tensor), *_hooks_of_node(tensor))}
        for handle in self.find_registered():
            if id(_hooks_of(handle)) in of_arguments and id(handle) not in kept:
                handle.remove()


def _put_back(removal: _Removal, successors: Sequence[RemovableHandle]) -> None:
    """Put a hook back where it was. Handles of what was registered instead are handles of it from now on."""
    handle = removal.handle
    for new in successors:
        new.remove()
        new.id, new.hooks_dict_ref, new.extra_dict_ref = handle.id, handle.hooks_dict_ref, handle.extra_dict_ref
    _hooks_of(handle)[handle.id] = removal.hook
    for hooks, value in removal.extra:
        hooks[handle.id] = value


def _put_in_order(hooks: Hooks, keys: list[int]) -> None:
    order = [key for key in keys if key in hooks]
    if order != [*hooks][: len(order)]:
        for key in (*order, *[key for key in hooks if key not in keys]):
            hooks[key] = hooks.pop(key)


def _hooks_of(handle: RemovableHandle) -> Hooks:
    """The hooks among which that of a handle is; an empty dict if they are gone."""
    hooks: Hooks | None = handle.hooks_dict_ref()
    return {} if hooks is None else hooks


def _hooks_of_tensor(tensor: torch.Tensor) -> list[Hooks]:
    both: tuple[Any, ...] = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    return [hooks for hooks in both if hooks is not None]


def _hooks_of_node(tensor: torch.Tensor) -> list[Hooks]:
    """The hooks on the node that a tensor came from, or that accumulates its gradient, before and after it runs."""
    if not tensor.requires_grad:
        return []
    with disable_dispatch_modes():  # that of a leaf is found by an operator
        node: Any = torch.autograd.graph.get_gradient_edge(tensor).node
    found = []
    for register in (node.register_hook, node.register_prehook):
        handle = register(_do_nothing)  # nothing but a handle leads to them
        found.append(handle.hooks_dict_ref())
        handle.remove()
    return found


def _do_nothing(*_: Any) -> None:
    return None


def _code_of(hook: Callable[..., Any]) -> object:
    """The code of a function or method, the class of another callable: the same for a closure that is made anew."""
    return getattr(hook, "__code__", type(hook))
