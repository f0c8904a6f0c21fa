"""Snapshots hand over what tensors held, whatever has happened to them since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from impls.tensors.snapshots import Snapshot


class _Kind(torch.Tensor):
    pass


def _assign(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": lambda one: one.data.mul_(2),
    "version": lambda one: one.add_(0),
    "other data": lambda one: _assign(one, one.data.clone()),
    "another dtype": lambda one: _assign(one, one.data.to(torch.cdouble if one.is_complex() else torch.float64)),
    "the same bytes of another dtype": lambda one: _assign(one, torch.view_as_real(one.data.resolve_conj()).view(torch.int32)
                                                           if one.is_complex() else one.data.view(torch.int32)),
    "an attribute": lambda one: setattr(one, "scale", 5),
}  # fmt: skip
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a tensor": lambda: torch.arange(6.0),
    "a view with gaps": lambda: torch.arange(12.0).view(3, 4)[:, ::2],
    "an expanded view": lambda: torch.arange(3.0).expand(2, 3).clone().expand(2, 3),
    "a conjugate": lambda: torch.randn(3, dtype=torch.cfloat).conj(),
    "a subclass": lambda: torch.arange(3.0).as_subclass(_Kind),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_what_was_changed_comes_as_it_was(tensor: str, change: str) -> None:
    one: Any = TENSORS[tensor]()
    one.scale = 3
    expected, version = one.detach().clone(), one._version
    before = (type(one), one.dtype, one.stride(), one.is_conj())
    snapshot = Snapshot({7: one})
    CHANGES[change](one)
    (found,) = snapshot.changed().values()
    assert (type(found), found.dtype, found.stride(), found.is_conj()) == before
    assert (found._version, found.scale) == (version, 3)  # type: ignore[attr-defined]
    assert torch.equal(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


def test_what_was_not_changed_is_left_alone() -> None:
    tensors = {key: make() for key, make in enumerate(TENSORS.values())} | {9: torch.empty(0)}
    assert not Snapshot(tensors).changed()


def test_weights_are_what_everybody_has() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    snapshot = Snapshot({0: weight, 1: weight.t()})
    weight.data.mul_(3)
    assert not snapshot.changed()


def test_memory_that_is_known_in_two_sizes() -> None:
    array = np.arange(8.0)
    small, big = torch.from_numpy(array[:2]), torch.from_numpy(array)
    snapshot = Snapshot({0: small, 1: big})
    array[5] = 77
    assert [(key, one.tolist()) for key, one in snapshot.changed().items()] == [(1, [*range(8)])]


def test_memory_that_was_let_go_of_is_not_followed() -> None:
    one = torch.arange(4.0)
    one.untyped_storage().resize_(0)
    snapshot = Snapshot({0: one})
    one.untyped_storage().resize_(16)
    assert not snapshot.changed()
