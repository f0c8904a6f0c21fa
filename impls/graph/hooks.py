"""Pairs of saved-tensor hooks that lose neither autograd's check of changes in place nor the memory of a saved output.

Autograd gives up its version check where hooks are active, because it cannot know whether they made a copy. Whether
they did shows when a tensor is unpacked: if it reads the storage that was packed, it must be at the version that was
packed. Autograd also keeps what a pack hook returns as it is, so an operator's result that comes back from its own
hook owns itself for ever, through its graph. Here the graph gets an alias without a graph instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.graph.storage_spans import shares_storage, storages
from impls.tensors.versions import VersionProbe, version_probe
from impls.torch_private import (
    current_autograd_node,
    disable_hooks,
    enable_hooks,
    hooks_disabled_message,
    pop_hooks,
    push_hooks,
    top_hooks,
)

_LATE_WRITERS = ("RreluWithNoiseBackward0", "RreluWithNoiseBackward1")  # PyTorch has no others


class _Alias:
    """An attached tensor as the graph may own it: the object while others keep it alive, else its values without a graph."""

    __slots__ = ("tensor", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.values = tensor.detach()

    def get(self) -> torch.Tensor:
        tensor = self.tensor()
        return self.values if tensor is None else tensor


class _SavedTensor:
    """What the graph owns in place of a saved tensor: what the pack hook returned, and the version of what it was given."""

    __slots__ = ("aliases", "description", "is_alias", "memory", "origin", "probe", "requires_grad", "value", "version")

    def __init__(self, value: Any, tensor: torch.Tensor) -> None:
        self.memory, self.origin, self.requires_grad = storages(tensor), weakref.ref(tensor), tensor.requires_grad
        self.aliases: list[_Alias] = []
        self.value = _without_graph(value, self.memory, self.aliases)
        self.is_alias = isinstance(value, torch.Tensor) and shares_storage(value, self.memory)
        # What is kept anyway may be kept by its counter too; otherwise the counter is followed without the memory.
        self.probe: VersionProbe = tensor.detach() if self.is_alias or self.aliases else version_probe(tensor)
        self.version = self.probe._version
        self.description = type(tensor).__name__, tensor.dtype, _size(tensor), tensor.device

    def restore(self) -> Any:
        return _with_graph(self.value) if self.aliases else self.value

    def was_copied_too_early(self, tensor: Any) -> bool:
        """Whether hooks copied what its operator wrote only later. It does not require grad; what the operator reads does."""
        if self.is_alias or self.requires_grad or not _is_written_late(current_autograd_node()):
            return False
        return isinstance(tensor, torch.Tensor) and not shares_storage(tensor, self.memory)

    def check(self, tensor: Any) -> None:
        if self.was_copied_too_early(tensor):
            raise RuntimeError(
                "rrelu draws its noise once autograd has saved the memory for it, so the copy that saved-tensor hooks made "
                "of it has other values. Let the pack hook return what it is given, or apply rrelu outside of the hooks"
            )
        now = self.probe._version
        if now == self.version or not isinstance(tensor, torch.Tensor):
            return
        # A change may also give the object other memory, and a copy that is made after the change is one of the change.
        if self.is_alias or tensor is self.origin() or shares_storage(tensor, self.memory):
            kind, dtype, shape, device = self.description
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{kind} of {dtype} {shape} on {device}, of which saved-tensor hooks kept no copy, is at version {now}; "
                f"expected version {self.version} instead. Clone it before changing it, or let the pack hook copy it"
            )


def _is_written_late(node: Any) -> bool:
    """Whether a node has saved a tensor that its operator wrote only after that."""
    return node is not None and node.name() in _LATE_WRITERS and bool(node._saved_training)


def _size(tensor: torch.Tensor) -> list[int | None]:
    """The size of a tensor; a nested one of strided layout has none, but those of its parts."""
    return [None] * tensor.dim() if tensor.is_nested and tensor.layout is torch.strided else list(tensor.shape)


def _without_graph(value: Any, memory: tuple[StorageWeakRef, ...], aliases: list[_Alias]) -> Any:
    """The value with an alias in place of each tensor, also inside tuples, that reads the memory and belongs to a graph."""
    if _is_tuple(value):
        parts = [_without_graph(part, memory, aliases) for part in value]
        unchanged = all(new is old for new, old in zip(parts, value, strict=True))
        return value if unchanged else _rebuild_tuple(value, parts)
    if not isinstance(value, torch.Tensor) or not _attached_to_graph(value) or not shares_storage(value, memory):
        return value
    aliases.append(_Alias(value))
    return aliases[-1]


def _with_graph(value: Any) -> Any:
    if isinstance(value, _Alias):
        return value.get()
    return _rebuild_tuple(value, [_with_graph(part) for part in value]) if _is_tuple(value) else value


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _rebuild_tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same type; named tuples and the like are made without running their constructor."""
    return tuple.__new__(type(like), parts)


def _attached_to_graph(tensor: torch.Tensor) -> bool:
    # Nobody asks for grad_fn: since torch 2.13 a graph of nodes that were asked for is freed by recursion.
    base = tensor._base if tensor._is_view() else None
    return not tensor.is_leaf or (base is not None and not base.is_leaf)


class saved_tensors_hooks:  # noqa: N801 (torch's name)
    """While the context is open, what autograd saves on this thread goes through ``pack_hook`` and ``unpack_hook``.

    ``pack_hook(tensor)`` may return anything; ``unpack_hook`` gets that and returns a tensor of the same values. Of
    contexts inside one another only the innermost is asked. One object may be entered again, also inside itself.

    Unlike in ``torch.autograd.graph``, a change in place between pack and unpack raises RuntimeError if what ``pack_hook``
    or ``unpack_hook`` returned reads the packed storage; a copy is not affected by such a change. And a pack hook may
    return its argument, or a view of it, alone or inside tuples: ``unpack_hook`` gets the same object if it is still
    alive, else an alias that has its values, storage and version, but no graph and no Python attributes.

    Raises TypeError when a hook is not callable, RuntimeError when hooks are disabled, or when a thread leaves a context
    that it has not entered. Not covered: another storage over the same memory (numpy, DLPack) counts as a copy. And in
    lists, dicts and objects that the pack hook returns, a result of an operator still owns its own graph, and a copy that
    the unpack hook makes of what was changed meanwhile is not noticed.
    """

    def __init__(self, pack_hook: Callable[[torch.Tensor], Any], unpack_hook: Callable[[Any], torch.Tensor]) -> None:
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise TypeError(f"{name} is {hook!r}; it must be callable with one argument")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        push_hooks(self._pack, self._unpack)

    def __exit__(self, *_: object) -> None:
        _pop_owner(self)

    def _pack(self, tensor: torch.Tensor) -> _SavedTensor:
        return _SavedTensor(self.pack_hook(tensor), tensor)

    def _unpack(self, saved: _SavedTensor) -> torch.Tensor:
        tensor = self.unpack_hook(saved.restore())
        saved.check(tensor)
        return tensor


@contextmanager
def push_methods(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> Iterator[None]:
    """A pair of bound methods as torch calls them, with none of what :class:`saved_tensors_hooks` adds."""
    push_hooks(pack, unpack)
    try:
        yield
    finally:
        _pop_owner(pack.__self__)  # type: ignore[attr-defined]


def _pop_owner(owner: object) -> None:
    """Take off the innermost pair of an object; contexts are not always left in reverse order, in generators for one."""
    above = []
    while (top := top_hooks(True)) is not None:
        pop_hooks()
        if getattr(top[0], "__self__", None) is owner:
            break
        above.append(top)
    for pair in reversed(above):
        push_hooks(*pair)
    if top is None:
        raise RuntimeError("saved-tensor hooks: this thread leaves a context that it has not entered, or has left already")


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """While the context is open, entering saved-tensor hooks on this thread raises RuntimeError with this message.

    Contexts nest: the message of the one outside is back when the one inside is left, also through an error. Raises
    RuntimeError with the message when hooks are active already, TypeError when the message is not a string.
    """
    if not isinstance(error_message, str):
        raise TypeError(f"error_message is {error_message!r}; it must be a str")
    before = hooks_disabled_message()
    try:
        disable_hooks(error_message)
        yield
    finally:
        if before is None:
            enable_hooks()
        else:
            disable_hooks(before)
