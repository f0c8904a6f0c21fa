"""Saved tensors that may be changed: they are cloned just before the first operator that writes to what they read.

A dispatch mode sees every operator on this thread with the tensors it writes to. Saved tensors are found by the storage
they read, so it does not matter through which view, list or ``out=`` argument a change comes, nor with which version
counter. The graph alone owns the handle of a saved tensor; what the context knows of it goes when the graph does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from impls.graph.device_copies import replica, strided_layout
from impls.graph.hooks import push_methods
from impls.graph.storage_spans import Span, spans, storages
from impls.torch_private import TorchDispatchMode, dispatch_modes, next_sequence_number

# Operators that write running statistics without a word of it in their schema: the positions of these arguments, and of the
# flag (if any) without which they are not written.
_BATCH_NORMS: dict[str, tuple[tuple[int, int], int | None]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::batch_norm_update_stats": ((1, 2), None),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}
# Operators that write an argument after their node has saved it: the position of that argument. Of PyTorch's operators these
# are all (impls.nested.recomputation tells how that was found out).
_LATE_WRITES = {"aten::rrelu_with_noise": 1, "aten::rrelu_with_noise_": 1}


class Handle:
    """Stands in the graph for one saved tensor, or for several that read the same elements at the same time."""

    __slots__ = ("__weakref__", "memory", "node", "pending_writes", "place", "spans", "version")

    def __init__(self, tensor: torch.Tensor, place: Any) -> None:
        self.place, self.spans = place, spans(tensor)
        self.node = next_sequence_number()  # as it is until the operator that saves this is over
        self.memory = storages(tensor)  # as long as these are referred to, their numbers are not given to others
        self.version, self.pending_writes = tensor._version, 0


class SavedTensors:
    """What a context knows: ``original`` has the saved tensors that are as they were, ``cloned`` copies of the others.

    Both map the handles that some graph owns to tensors. Leaving the context empties them.
    """

    def __init__(self) -> None:
        self.original: MutableMapping[Handle, torch.Tensor] = weakref.WeakKeyDictionary()
        self.cloned: MutableMapping[Handle, torch.Tensor] = weakref.WeakKeyDictionary()
        self.readers: dict[int, set[weakref.ref[Handle]]] = {}
        self.has_new_storage = False
        self.open = True

    def pack(self, tensor: torch.Tensor) -> Handle:
        """The hook that saves: a new handle, or the one that has these elements already."""
        shape = strided_layout(tensor)
        place = weakref.ref(tensor) if shape is None else (tensor.storage_offset(), shape)
        for handle in self.reading(spans(tensor)):
            if handle in self.original and _is_same_place(handle.place, place) and self.untouched(handle):
                return handle
        handle = Handle(tensor, place)
        self.original[handle] = tensor.detach()  # not the tensor: an operator would own its result together with its graph
        for number in {span.storage for span in handle.spans}:
            self.readers.setdefault(number, set()).add(weakref.ref(handle, _forgetting(self.readers, number)))
        return handle

    def unpack(self, handle: Handle) -> torch.Tensor:
        """The hook that brings back: the values at the time of saving."""
        if not self.open:
            raise RuntimeError("allow_mutation_on_saved_tensors: this graph was recorded in a context that has been left, and "
                               "what it saved went with it. Run backward inside the same `with` block as forward")  # fmt: skip
        if not self.untouched(handle):
            raise RuntimeError("allow_mutation_on_saved_tensors: a saved tensor was changed in place where the context does "
                               "not see it: on another thread, by a kernel that calls increment_version, or, once it was "
                               "cloned, in backward. Clone it before changing it")  # fmt: skip
        return self.cloned[handle] if handle in self.cloned else self.original[handle]

    def reading(self, written: list[Span]) -> list[Handle]:
        """The handles that are alive and read from the same storages."""
        found: dict[Handle, None] = {}
        for span in written:
            for weak in tuple(self.readers.get(span.storage, ())):
                if (handle := weak()) is not None:
                    found[handle] = None
        return list(found)

    def untouched(self, handle: Handle) -> bool:
        tensor = self.cloned[handle] if handle in self.cloned else self.original[handle]
        return handle.version <= tensor._version <= handle.version + handle.pending_writes

    def expect_version_change(self, handle: Handle, count: int) -> None:
        """An operator writes ``count`` tensors, but none of a handle's elements. Their counter may rise even so, and later."""
        if self.untouched(handle):
            handle.version, handle.pending_writes = self.original[handle]._version, count

    def note_new_storage(self, before: list[Span], after: list[Span]) -> None:
        """Note whether an operator gave tensors another storage.

        From then on one counter may stand for several storages, so what it counts need not be changes of what was saved.
        """
        storages = {span.storage for span in after}
        self.has_new_storage |= any(span.storage not in storages for span in before)

    def expect_version_changes(self, written: list[torch.Tensor]) -> None:
        """An operator writes these tensors, whose counters may be those of handles that read another storage."""
        versions = {tensor._version for tensor in written if not tensor.is_inference()}
        for handle in list(self.original) if self.has_new_storage else ():
            if self.original[handle]._version in versions:
                self.expect_version_change(handle, len(written))

    def await_late_write(self, saved: torch.Tensor) -> Handle | None:
        """The handle, if any, of what an operator has saved and is about to write: it keeps what will be written."""
        handles = [handle for handle in self.reading(spans(saved)) if handle in self.original]
        own = next((handle for handle in handles if handle.node == next_sequence_number()), None)
        if own is not None:
            own.place = None  # what is saved from now on is not the same
        elif handles:
            raise RuntimeError("allow_mutation_on_saved_tensors: the noise of a rrelu_with_noise was saved before by another "
                               "operator, whose gradient needs what it was then. Give each its own noise")  # fmt: skip
        return own

    def clone(self, handle: Handle) -> torch.Tensor:
        if not torch.is_inference_mode_enabled():
            return replica(self.original[handle])
        with torch.inference_mode(False):  # backward is outside of it
            return replica(self.original[handle])

    def replace(self, handle: Handle, clone: torch.Tensor) -> None:
        self.cloned[handle], handle.version, handle.pending_writes = clone, clone._version, 0
        del self.original[handle]

    def close(self) -> None:
        self.open = False
        for table in (self.original, self.cloned, self.readers):
            table.clear()


def _is_same_place(one: Any, other: Any) -> bool:
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return one() is not None and one() is other()
    return bool(type(one) is type(other) and one == other)


def _forgetting(readers: dict[int, set[weakref.ref[Handle]]], number: int) -> Any:
    def forget(dead: weakref.ref[Handle]) -> None:
        alive = readers.get(number, set())
        alive.discard(dead)
        if not alive:
            readers.pop(number, None)

    return forget


class _CloneFirst(TorchDispatchMode):
    def __init__(self, saved: SavedTensors) -> None:
        super().__init__()
        self.saved = saved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reshapes = torch.Tag.inplace_view in func.tags  # another shape, or another storage, for the same elements
        written = list(_written_tensors(func, args, kwargs)) if self.saved.readers or reshapes else []
        if not written:
            return func(*args, **kwargs)
        before = [span for tensor in written for span in spans(tensor)]
        self.saved.expect_version_changes(written)
        late = _LATE_WRITES.get(func._schema.name)
        own = None
        if late is not None and torch.is_grad_enabled() and args[0].requires_grad:
            own = self.saved.await_late_write(args[late])
        spared: dict[Handle, torch.Tensor] = {}
        for handle in self.saved.reading(before):
            if handle not in self.saved.original or handle is own:
                continue
            if reshapes:
                self.saved.expect_version_change(handle, len(written))
            elif _overlap(handle.spans, before):
                self.saved.replace(handle, self.saved.clone(handle))
            else:
                # An `out` argument may be given another size, and then reaches further than it did.
                self.saved.expect_version_change(handle, len(written))
                if _has_out(func):
                    spared[handle] = self.saved.clone(handle)
        result = func(*args, **kwargs)
        after = [span for tensor in written for span in spans(tensor)] if spared or reshapes else []
        if reshapes:
            self.saved.note_new_storage(before, after)
        for handle, clone in spared.items():
            if _overlap(handle.spans, after):
                self.saved.replace(handle, clone)
        return result


def _has_out(func: Any) -> bool:
    return any(argument.is_out for argument in func._schema.arguments)


def _overlap(some: list[Span], others: list[Span]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


def _written_tensors(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to, alone and in lists, by position and by name."""
    quiet, training = _BATCH_NORMS.get(func._schema.name, ((), None))
    quiet = quiet if training is None or args[training] else ()
    for index, argument in enumerate(func._schema.arguments):
        if index in quiet or (argument.alias_info is not None and argument.alias_info.is_write):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, torch.Tensor):
                    yield each


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[SavedTensors]:
    """While the context is open, tensors that autograd saves on this thread may be changed in place before backward.

    A saved tensor is cloned just before an operator writes to it, once; backward gets the values at the time of saving.
    Yields a :class:`SavedTensors`, which shows what was cloned. Spans of bytes decide: a saved view is cloned when what is
    written starts before its end and ends after its start, also where the two only interleave. Operators that change shape or
    storage alone (``resize_``, ``set_``, ``t_``, ...) clone nothing, and what was saved keeps the shape and the storage that it
    had.

    Forward and backward run inside the same context: RuntimeError from a backward outside, from a context inside another
    one on the same thread, and from a backward that needs a tensor that was changed on another thread. Not seen: changes
    through numpy, DLPack or another storage over the same memory, or by kernels that do not tell the version counter;
    ``untyped_storage().resize_``; what is saved while other saved-tensor hooks are innermost. Higher-order operators (``cond``,
    ``scan``, ...) cannot run inside, as torch has no rule for them under this mode. Source:
    ``torch.autograd.graph.allow_mutation_on_saved_tensors``.
    """
    if any(isinstance(mode, _CloneFirst) for mode in dispatch_modes()):
        raise RuntimeError("allow_mutation_on_saved_tensors: contexts cannot be nested; the one outside covers what is inside")
    saved = SavedTensors()
    try:
        with push_methods(saved.pack, saved.unpack), _CloneFirst(saved):
            yield saved
    finally:
        saved.close()
