"""The model of ranks: its arithmetic, and that what it is made of and compared with is counted rightly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from benches.ranks import memory, predictions
from benches.ranks.decoder import LARGE, TINY, Block, plainly
from benches.ranks.model import Setting, sharded, staged
from benches.ranks.shapes import Parts, parts
from benches.ranks.traffic import GATHER, REDUCE, SCATTER, SEND, Traffic, TrafficMode


@pytest.fixture(scope="module")
def costs() -> Parts:
    return parts(TINY, plainly)


@pytest.mark.parametrize(("name", "weights"), [("7B", 6_738_415_616), ("70B", 68_976_648_192)])
def test_large_decoders_have_as_many_weights_as_published_ones(name: str, weights: int) -> None:
    shape = LARGE[name]
    costs = parts(replace(shape, length=8), plainly, torch.bfloat16)
    assert costs.embedding.elements() + shape.layers * costs.block.elements() + costs.head.elements() == weights


def test_two_equal_shares_of_a_block_are_a_whole_one() -> None:
    torch.manual_seed(0)
    share = Block(TINY, plainly, 2, lambda value: value.mul_(2))  # the other share has the same weights
    whole = Block(TINY, plainly)
    for name, weight in share.named_parameters():
        dim = 1 if name.startswith(("out", "down")) else 0
        whole.get_parameter(name).data = weight.data if "norm" in name else torch.cat([weight.data] * 2, dim)
    values = [torch.randn(TINY.boundary, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)]
    outputs = [block(value) for block, value in zip((share, whole), values, strict=True)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(values[0].grad, values[1].grad)
    torch.testing.assert_close(share.norm.weight.grad, whole.norm.weight.grad)


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_every_unit_is_gathered_twice_and_reduced_once_but_the_rest_gathered_once(costs: Parts, ranks: int) -> None:
    found = sharded(TINY, costs, ranks, Setting()).traffic
    rest = 2 * -(-258 // ranks) * ranks * 64 + -(-64 // ranks) * ranks  # embedding, head and a norm, each padded
    block = costs.block.elements(ranks)
    assert found.number == {(GATHER, ranks): 17, (SCATTER, ranks): 9}
    assert found.payload == {(GATHER, ranks): 4 * (16 * block + rest), (SCATTER, ranks): 4 * (8 * block + rest)}
    assert found.sent * ranks == (ranks - 1) * sum(found.payload.values())


def test_a_stage_keeps_as_many_microbatches_as_there_are_stages_from_it_on(costs: Parts) -> None:
    peaks = [staged(TINY, costs, stage, 4, 8, Setting()).peak for stage in (1, 2)]
    assert peaks[0] - peaks[1] == TINY.layers // 4 * costs.block.kept


def test_regions_keep_what_goes_from_block_to_block(costs: Parts) -> None:
    full = parts(TINY, predictions.TECHNIQUES["full"]).block
    selective = parts(TINY, predictions.TECHNIQUES["selective"]).block
    assert full.kept == full.output == 4 * 2 * 64 * 64
    assert full.kept < selective.kept < costs.block.kept


def test_a_recomputed_share_adds_up_once_more(costs: Parts) -> None:
    plain, full = (parts(TINY, predictions.TECHNIQUES[name], shares=2).block for name in ("none", "full"))
    assert costs.block.added == ()
    assert plain.added == (plain.output,) * 4
    assert full.added == (plain.output,) * 5


def test_predictions_shrink_with_devices_and_recomputation() -> None:
    found = [*predictions.rows({"7B": LARGE["7B"]})]
    assert len(found) == 4 * 4 - 1
    for row in found:
        assert row.peaks["full"] < row.peaks["none"]
    whole = [row.peaks["full"] for row in found if row.parallelism == "FSDP2"]
    assert whole == sorted(whole, reverse=True)


def test_what_is_sent_follows_from_payloads() -> None:
    traffic = Traffic()
    traffic.add(GATHER, 4, 100)
    traffic.add(REDUCE, 4, 100, number=2)
    traffic.add(SEND, 2, 7)
    traffic.add(REDUCE, 1, 999)
    assert traffic.sent == 75 + 2 * 150 + 7
    assert traffic.rows == [[GATHER, 4, 1, 100], [REDUCE, 4, 2, 200], [SEND, 2, 1, 7]]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_collective_that_is_not_counted_is_refused(group: None) -> None:
    with TrafficMode(), pytest.raises(RuntimeError, match="is a collective that is not counted"):
        dist.broadcast(torch.ones(1), 0)


def event(at: float, place: int, size: int, thread: int = 1) -> dict[str, Any]:
    return {"name": "[memory]", "tid": thread, "ts": at, "args": {"Addr": place, "Bytes": size}}


SPANS = [{"name": memory.STEP, "tid": 1, "ts": 10, "dur": 10}, {"name": "c10d::allreduce_", "tid": 1, "ts": 12, "dur": 2}]


def test_peaks_leave_out_collectives_and_other_threads() -> None:
    allocated = [event(1, 1, 100), event(11, 2, 50), event(13, 3, 900), event(14, 4, 900, thread=2), event(15, 2, -50)]
    freed = [event(16, 5, 30), event(21, 6, 800), event(22, 6, -800), event(23, 5, -30), event(24, 1, -100)]
    assert memory.most([*SPANS, *allocated, *freed], 1) == (150, 0)


@pytest.mark.parametrize("then", [event(15, 2, 60), event(15, 9, 60)])
def test_bytes_that_were_not_seen_to_go_are_told(then: dict[str, Any]) -> None:
    last = event(25, then["args"]["Addr"], -60)
    _, unseen = memory.most([*SPANS, event(11, 2, 50), then, last], 1)
    assert unseen == 50
