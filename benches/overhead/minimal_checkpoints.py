"""Minimal checkpoints, each with one ingredient more than the one before it: the rungs of the ladder below ``nested``.

They take a function of one tensor and nothing else, and treat saved tensors as ``nested`` does. Each is written out in full,
since sharing code would cost a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benches.overhead.chain import Function
from impls.tensors.versions import TensorMetadata, VersionProbe, tensor_metadata, version_probe

_push = torch._C._autograd._push_saved_tensors_default_hooks
_pop = torch._C._autograd._pop_saved_tensors_default_hooks


class ChangedError(RuntimeError):
    """A minimal checkpoint saw that a tensor is not as it was when it was saved."""


class _Stop(BaseException):
    """Leaves the function of a recomputation once all is there."""


def _under(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], function: Function, x: Tensor) -> Tensor:
    _push(pack, unpack)
    try:
        return function(x)
    finally:
        _pop()


def _again(pack: Callable[[Tensor], Any], function: Function, x: Tensor) -> None:
    graded = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        _under(pack, _never, function, x.detach().requires_grad_())
    except _Stop:
        pass
    finally:
        torch._C._set_grad_enabled(graded)


def _never(_: Any) -> Tensor:
    raise AssertionError("the recomputed graph is dropped, and nobody differentiates it")


def _require_same(is_same: bool, index: int) -> None:
    if not is_same:
        raise ChangedError(f"saved tensor {index} is not as it was when it was saved")


def hooks(function: Function, x: Tensor) -> Tensor:
    """Each saved tensor becomes its index; the first that is unpacked runs the function again, to its end."""
    count = 0
    values: dict[int, Tensor] = {}

    def pack(_: Tensor) -> int:
        nonlocal count
        index = count
        count = index + 1
        return index

    def pack_again(tensor: Tensor) -> int:
        index = len(values)
        values[index] = tensor
        return index

    def unpack(index: int) -> Tensor:
        if index not in values:
            values.clear()
            _again(pack_again, function, x)
        return values.pop(index)

    return _under(pack, unpack, function, x)


def stop(function: Function, x: Tensor) -> Tensor:
    """An exception out of the hook ends the second run when the last tensor is there."""
    count = 0
    values: dict[int, Tensor] = {}

    def pack(_: Tensor) -> int:
        nonlocal count
        index = count
        count = index + 1
        return index

    def pack_again(tensor: Tensor) -> int:
        index = len(values)
        values[index] = tensor
        if index + 1 >= count:
            raise _Stop
        return index

    def unpack(index: int) -> Tensor:
        if index not in values:
            values.clear()
            _again(pack_again, function, x)
        return values.pop(index)

    return _under(pack, unpack, function, x)


def looks(function: Function, x: Tensor) -> Tensor:
    """Shape, dtype, device and version of each tensor are taken in forward, compared in the second run and at the end."""
    seen: list[TensorMetadata] = []
    last: TensorMetadata | None = None
    values: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> int:
        nonlocal last
        now = tensor_metadata(tensor)
        last = now = last if now == last else now  # neighbours share one object
        index = len(seen)
        seen.append(now)
        return index

    def pack_again(tensor: Tensor) -> int:
        index = len(values)
        if tensor_metadata(tensor) != seen[index]:
            _require_same(False, index)
        values[index] = tensor
        if index + 1 >= len(seen):
            raise _Stop
        return index

    def unpack(index: int) -> Tensor:
        if index not in values:
            values.clear()
            _again(pack_again, function, x)
        tensor = values.pop(index)
        if tensor._version != seen[index][3]:
            _require_same(False, index)
        return tensor

    return _under(pack, unpack, function, x)


def handles(function: Function, x: Tensor) -> Tensor:
    """A detached alias without bytes follows the version of each saved tensor, and is read when that is unpacked."""
    seen: list[tuple[VersionProbe, TensorMetadata]] = []
    last: TensorMetadata | None = None
    values: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> int:
        nonlocal last
        now = tensor_metadata(tensor)
        last = now = last if now == last else now  # neighbours share one object
        index = len(seen)
        seen.append((version_probe(tensor), now))
        return index

    def pack_again(tensor: Tensor) -> int:
        index = len(values)
        if tensor_metadata(tensor) != seen[index][1]:
            _require_same(False, index)
        values[index] = tensor
        if index + 1 >= len(seen):
            raise _Stop
        return index

    def unpack(index: int) -> Tensor:
        follows, before = seen[index]
        version = before[3]
        if follows._version != version:
            _require_same(False, index)
        if index not in values:
            values.clear()
            _again(pack_again, function, x)
        tensor = values.pop(index)
        if tensor._version != version:
            _require_same(False, index)
        return tensor

    return _under(pack, unpack, function, x)


Slot = tuple[int, VersionProbe, TensorMetadata]


def _references(slots: list[Any]) -> list[int]:
    return [sys.getrefcount(slot) for slot in slots]


(_ALONE,) = _references([(object(),)])  # as many as an object has that is nowhere but in the list


def slots(function: Function, x: Tensor) -> Tensor:
    """Slots in the graph whose references are counted: what the graph has cleared is not brought, and ends no run."""
    made: list[Slot] = []
    last: TensorMetadata | None = None
    values: dict[int, Tensor] = {}
    wanted: list[Slot | None] = []
    count = until = 0

    def pack(tensor: Tensor) -> Slot:
        nonlocal last
        now = tensor_metadata(tensor)
        last = now = last if now == last else now  # neighbours share one object
        slot = (len(made), version_probe(tensor), now)
        made.append(slot)
        return slot

    def pack_again(tensor: Tensor) -> Any:
        nonlocal count
        index = count
        count = index + 1
        if tensor_metadata(tensor) != made[index][2]:
            _require_same(False, index)
        slot = wanted[index]
        if slot is None:
            return tensor.detach()
        values[index] = tensor
        if index >= until:
            raise _Stop
        return slot

    def unpack(slot: Slot) -> Tensor:
        nonlocal wanted, until, count
        index, follows, before = slot
        version = before[3]
        if follows._version != version:
            _require_same(False, index)
        if index not in values:
            values.clear()
            wanted = [one if held > _ALONE else None for one, held in zip(made, _references(made), strict=True)]
            until = max(place for place, one in enumerate(wanted) if one is not None)
            count = 0
            _again(pack_again, function, x)
        tensor = values.pop(index)
        if tensor._version != version:
            _require_same(False, index)
        return tensor

    return _under(pack, unpack, function, x)
