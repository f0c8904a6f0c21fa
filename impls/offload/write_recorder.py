"""What operators have written to, also where no version counter tells.

Changes through ``.data`` bump a counter of their own. The kernels of batch norm write running_mean and running_var
although their schemas do not say so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from impls.offload.changes import SharedMemory, Tensors, overlap
from impls.offload.saved_tensors import storage_number
from impls.offload.slice_use import count_silent_change
from impls.offload.transfers import is_loading
from impls.torch_private import TorchDispatchMode, tree_leaves

_RUNNING = ("running_mean", "running_var")


class Twins:
    """Parameters and buffers of a model, and the copies of some that a slice computes with.

    Programs reach an original by a name that they took before, as by the closure of a hook. Once one of the two is written,
    the other is stale, and must not be read or written while the slice runs. Not seen: other ``.data`` that a copy is given.
    """

    def __init__(self, memory: SharedMemory, originals: Tensors, copies: Tensors, again: str = "") -> None:
        """``again`` is the title of a slice that runs again, when it must change no original: it has done that in forward."""
        self.memory, self.originals, self.copies, self.again = memory, originals, copies, again
        self.stale: dict[int, list[tuple[str, torch.Tensor]]] = {}
        self.stale_copies: set[str] = set()

    @functools.cached_property
    def names_of_copies(self) -> dict[int, list[str]]:
        """The names of copies by the number of their storage."""
        found: dict[int, list[str]] = {}
        for name, copy in self.copies.items():
            if (number := storage_number(copy)) is not None:
                found.setdefault(number, []).append(name)
        return found

    def note_stale_copy(self, name: str) -> None:
        """The original was written by another name than its module's."""
        self.stale_copies.add(name)
        self._note_stale(name, self.copies[name])

    def note_stale_original(self, name: str) -> None:
        """The copy was written; it is copied back when the slice has run."""
        self._note_stale(name, self.originals[name])

    def note_write(self, written: torch.Tensor, number: int) -> None:
        """An operator is about to write a tensor."""
        for name, original in self.memory.tensors.get(number, {}).items():
            if overlap(written, original):
                if self.again:
                    raise RuntimeError(
                        f"{self.again} runs again in backward, where it changes {name!r} of an offloaded model once more, by a "
                        "reference that was taken before, by a hook for example. Pass checkpoint_activation=False"
                    )
                count_silent_change(original)
                if self.originals.get(name) is original:
                    self.note_stale_copy(name)
        for name in self.names_of_copies.get(number, ()):
            if overlap(written, self.copies[name]):
                self.note_stale_original(name)

    def refuse_stale(self, values: Iterable[Any]) -> None:
        """Raise RuntimeError if an operator is about to read or write what is stale."""
        for value in values:
            number = storage_number(value) if isinstance(value, torch.Tensor) else None
            for name, tensor in self.stale.get(-1 if number is None else number, ()):
                if overlap(value, tensor):
                    raise RuntimeError(
                        f"parameter or buffer {name!r} of an offloaded model was changed in forward by one name and is used by "
                        "another: modules have a copy while they run, and a reference that was taken before, by a hook for "
                        "example, is to the original. Use the attribute of the module for both"
                    )

    def _note_stale(self, name: str, tensor: torch.Tensor) -> None:
        number = storage_number(tensor)
        if number is not None and all(tensor is not other for _, other in self.stale.get(number, ())):
            self.stale.setdefault(number, []).append((name, tensor))


class WriteRecorder(TorchDispatchMode):
    """Collects, by the number of their storages, tensors that operators inside write to, running statistics among them.

    Operators inside of a higher-order operator, such as ``torch.cond``, are not seen.
    """

    supports_higher_order_operators = True

    def __init__(self, twins: Twins) -> None:
        super().__init__()
        self.updated: set[int] = set()
        self.twins = twins

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled modules stay compiled: torch runs them uncompiled inside a mode that is a user's."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.twins.stale and not is_loading():
            self.twins.refuse_stale(tree_leaves((args, kwargs)))
        if hasattr(func, "_schema"):  # which a higher-order operator has not
            self._note_operator(func._schema, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _note_operator(self, schema: torch.FunctionSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note what an operator is about to write."""
        arguments = schema.arguments
        names = [argument.name for argument in arguments]
        for position, argument in enumerate(arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                self.note(value if isinstance(value, list | tuple) else (value,))
        if _RUNNING[0] in names and "backward" not in schema.name:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if given.get("training", True):
                self.note([given.get(name) for name in _RUNNING])

    def note(self, values: Iterable[Any]) -> None:
        for value in values:
            number = storage_number(value) if isinstance(value, torch.Tensor) else None
            if number is not None:
                self.updated.add(number)
                self.twins.note_write(value, number)
