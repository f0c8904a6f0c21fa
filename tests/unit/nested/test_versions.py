"""Versions and metadata of tensors that may be gone."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.tensors.versions import tensor_metadata, version_probe


def test_a_counter_outlives_the_storage() -> None:
    tensor = torch.ones(1000)
    storage = StorageWeakRef(tensor.untyped_storage())
    following = version_probe(tensor)
    tensor.add_(1)
    assert following._version == 1
    assert not storage.expired()
    del tensor
    assert storage.expired()
    assert following._version == 1


def test_a_change_through_a_view_counts() -> None:
    base = torch.ones(2, 2)
    following = [version_probe(base), version_probe(base[0]), version_probe(base.detach())]
    base.t()[1].mul_(2)
    assert [one._version for one in following] == [1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.ones(2, device="meta"),
        lambda: torch.ones(2).as_subclass(type("Kind", (torch.Tensor,), {})),
        lambda: torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["sparse", "meta", "subclass", "parameter"],
)
def test_unusual_tensors_are_followed(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    following = version_probe(tensor)
    with torch.no_grad():
        tensor.mul_(2)
    assert following._version == tensor._version == 1
    del tensor
    gc.collect()
    assert following._version == 1


def test_a_look_tells_other_tensors_apart() -> None:
    one, changed = tensor_metadata(torch.ones(2, 2)), torch.ones(2, 2)
    changed.add_(1)
    leaf = torch.ones(2, 2, requires_grad=True)
    others = [torch.ones(4), torch.ones(2, 2).double(), torch.ones(2, 2, device="meta"), changed, leaf, leaf * 1]
    assert one == tensor_metadata(torch.zeros(2, 2).t())
    assert len(set(map(tensor_metadata, others))) == len(others)
    assert one not in [tensor_metadata(other) for other in others]
