"""What operators have written to, also where no version counter tells.

Changes through ``.data`` bump a counter of their own. The kernels of batch norm write running_mean and running_var
although their schemas do not say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch

from impls.graph.storage_spans import spans
from impls.offload.saved_tensors import storage_number
from impls.offload.slice_use import count_silent_change
from impls.torch_private import TorchDispatchMode, tree_leaves

_RUNNING = ("running_mean", "running_var")


class _Twin(NamedTuple):
    """A parameter or buffer, or the copy of one that a slice computes with, and the other of the two if there is any."""

    name: str
    tensor: torch.Tensor
    other: torch.Tensor | None
    is_original: bool


class Twins:
    """The parameters and buffers of a model, and the copies of some that a slice computes with.

    Programs reach an original by a name that they took before, as by the closure of a hook. What they write to it is not in
    the copy, which is stale then, and must not be read while the slice runs. Not seen: an original that is read by such a
    name after its copy was changed.
    """

    def __init__(
        self,
        originals: dict[int, dict[str, torch.Tensor]],
        copied: dict[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        stale: Collection[str],
    ) -> None:
        """``originals`` by storage; those in ``copied`` have ``copies``, of which an earlier microbatch made some ``stale``."""
        self.stale: dict[int, list[_Twin]] = {}
        self.twins = {
            number: [_Twin(name, it, copies[name] if copied.get(name) is it else None, True) for name, it in named.items()]
            for number, named in originals.items()
        }
        for name, copy in copies.items():
            if (number := storage_number(copy)) is not None:
                twin = _Twin(name, copy, copied[name], False)
                self.twins.setdefault(number, []).append(twin)
                if name in stale:
                    self.stale.setdefault(number, []).append(twin)

    def stale_copies(self) -> set[str]:
        """The names of copies that are stale."""
        return {twin.name for twins in self.stale.values() for twin in twins if not twin.is_original}

    def note_write(self, written: torch.Tensor, number: int) -> None:
        """An operator is about to write a tensor."""
        for twin in self.twins.get(number, ()):
            if not _overlap(written, twin.tensor):
                continue
            if twin.is_original:
                count_silent_change(twin.tensor)
                number_of_copy = None if twin.other is None else storage_number(twin.other)
                if twin.other is not None and number_of_copy is not None:
                    self.stale.setdefault(number_of_copy, []).append(_Twin(twin.name, twin.other, None, False))

    def refuse_stale(self, values: Iterable[Any]) -> None:
        """Raise RuntimeError if an operator is about to read what is stale."""
        for value in values:
            number = storage_number(value) if isinstance(value, torch.Tensor) else None
            for twin in self.stale.get(-1 if number is None else number, ()):
                if _overlap(value, twin.tensor):
                    raise RuntimeError(
                        f"parameter or buffer {twin.name!r} of an offloaded model was changed in forward by one name and is "
                        "read by another: modules have a copy while they run, and a reference that was taken before, by a hook "
                        "for example, is to the original. Use the attribute of the module for both"
                    )


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    return any(a.overlaps(b) for a in spans(one) for b in spans(two))


class WriteRecorder(TorchDispatchMode):
    """Collects, by the number of their storages, tensors that operators inside write to, running statistics among them."""

    def __init__(self, twins: Twins | None = None) -> None:
        super().__init__()
        self.updated: set[int] = set()
        self.twins = twins

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled modules stay compiled: torch runs them uncompiled inside a mode that is a user's."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.twins is not None and self.twins.stale:
            self.twins.refuse_stale(tree_leaves((args, kwargs)))
        arguments = func._schema.arguments
        names = [argument.name for argument in arguments]
        for position, argument in enumerate(arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else (kwargs or {}).get(argument.name)
                self.note(value if isinstance(value, list | tuple) else (value,))
        if _RUNNING[0] in names and "backward" not in func._schema.name:
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            if given.get("training", True):
                self.note([given.get(name) for name in _RUNNING])
        return func(*args, **(kwargs or {}))

    def note(self, values: Iterable[Any]) -> None:
        for value in values:
            number = storage_number(value) if isinstance(value, torch.Tensor) else None
            if number is not None:
                self.updated.add(number)
                if self.twins is not None:
                    self.twins.note_write(value, number)
