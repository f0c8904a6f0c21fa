"""To which region, and to which of forward, recomputation and backward, the collectives of a program count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.nn.functional import all_gather, all_reduce

from conformance.distributed.collectives import Collectives
from impls import get


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def first(h: torch.Tensor) -> torch.Tensor:
    return all_reduce(torch.sin(h)).tanh()


def second(h: torch.Tensor) -> torch.Tensor:
    return torch.stack(list(all_gather(torch.sin(h)))).sum(0).tanh()


def around(checkpoint: Any) -> Any:
    def outer(h: torch.Tensor) -> torch.Tensor:
        return checkpoint(first, h.exp()).exp()

    return outer


def found(checkpoint: Any, *functions: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    with Collectives() as meter:
        x = torch.ones(2, requires_grad=True)
        h = x * 1
        for function in functions:
            h = checkpoint(meter.around(function), h)
        h.sum().backward()
    return [(one.name, one.place, one.region) for one in meter.found]


FORWARD = [("allreduce", "forward", ("first",)), ("allgather", "forward", ("second",))]
AGAIN = {name: (name, "recomputation", (region,)) for name, region in (("allreduce", "first"), ("allgather", "second"))}


def test_backward_of_plain_regions_counts_to_the_regions_that_made_its_nodes() -> None:
    plain = found(lambda function, h: function(h), first, second)
    assert plain[:2] == FORWARD
    assert {one[2] for one in plain[2:]} == {("second",), ("first",)}
    assert {one[1] for one in plain[2:]} == {"backward"}


@pytest.mark.parametrize("name", ["nested", "reentrant", "torch-reentrant", "torch-nonreentrant"])
def test_backward_counts_to_the_same_regions_with_a_checkpoint(name: str) -> None:
    seen, plain = found(get(name).checkpoint, first, second), found(lambda function, h: function(h), first, second)
    assert [one for one in seen if one[1] == "recomputation"] == [AGAIN["allgather"], AGAIN["allreduce"]]
    assert [one for one in seen if one[1] != "recomputation"] == plain


def test_what_a_region_inside_another_made_counts_to_both() -> None:
    with Collectives() as meter:
        x = torch.ones(2, requires_grad=True)

        def inside(function: Any, h: torch.Tensor) -> torch.Tensor:
            return meter.around(function)(h)

        inside(around(inside), x * 1).sum().backward()
    assert [(one.place, one.region) for one in meter.found] == [
        ("forward", ("outer", "first")),
        ("backward", ("outer", "first")),
    ]


def test_what_hooks_of_leaves_issue_counts_to_no_region() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    with Collectives() as meter:
        meter.around(lambda h: h * weight)(torch.ones(2)).sum().backward()
    assert [(one.place, one.region) for one in meter.found] == [("backward", ())]
