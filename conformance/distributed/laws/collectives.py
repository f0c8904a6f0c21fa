"""Which collectives ranks issue, and in which order."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from conformance.distributed.case import HANGS, RankedCase
from conformance.distributed.law import ranked_law
from conformance.distributed.laws.parameters import INSIDE, SUMS, TWO, replicated_programs, sharded_programs
from conformance.distributed.programs import orders, units
from conformance.judging.verdicts import Hangs, Measured
from conformance.programs.scenarios.parallel import exchanged
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

NOTHING = Counter[str]()
_MIXED = st.lists(st.sampled_from(("sum", "gather", "exchange")), max_size=2).map(tuple)


def as_plain(case: RankedCase) -> None:
    """Each rank issues what it issues with plain regions, and none of it in a recomputation; all in one order."""
    case.equals_plain()
    for rank in range(case.size):
        whole = case.plain[rank].issued()
        case.issues(whole, rank, whole=whole, why="as with plain regions")
        case.issues(NOTHING, rank, "recomputation", whole=whole, why="in what runs again")
    case.in_one_order()


@for_readers("everyday", "more work than needed", "DDP, all-reduce, communication, bucket")
@ranked_law(replicated_programs(options=st.sampled_from(({}, {"static_graph": True}))), counts=True)
def test_ddp_reduces_as_often_as_plain(case: RankedCase) -> None:
    """Under DistributedDataParallel each rank issues the collectives of plain regions, and none in a recomputation."""
    as_plain(case)


@for_readers("everyday", "more work than needed", "FSDP2, all-gather twice, communication")
@ranked_law(sharded_programs(prefetch=st.booleans()), counts=True, ranks=TWO)
def test_fsdp_around_regions_gathers_as_often_as_plain(case: RankedCase) -> None:
    """FSDP(checkpoint(m)) gathers in forward and in backward as plain does, and not once more for a recomputation."""
    as_plain(case)


@for_readers("everyday", "more work than needed", "FSDP2, all-gather three times, communication")
@ranked_law(sharded_programs(outside=st.just(True)), counts=True, ranks=TWO)
def test_fsdp_inside_regions_gathers_as_often_as_plain(case: RankedCase) -> None:
    """checkpoint(FSDP(m)) gathers twice, in forward and in backward, for backward gathers what a recomputation needs."""
    as_plain(case)


@for_readers("advanced", "more work than needed", "FSDP2, nested units, all-gather, communication")
@ranked_law(sharded_programs(units=st.just(True), outside=st.booleans()), counts=True, ranks=TWO)
def test_fsdp_units_under_a_region_gather_as_often_as_plain(case: RankedCase) -> None:
    """Units inside of one region gather as often as with plain regions, those of a recomputation included; all in one order."""
    case.equals_plain()
    for rank in range(case.size):
        whole = case.plain[rank].issued()
        case.issues(whole, rank, whole=whole, why="as with plain regions")
    case.in_one_order()


@for_readers("advanced", "more work than needed", "collective, recomputation, early stop, deadlock")
@ranked_law(named(exchanged.inside, SUMS, **{**INSIDE, "last": st.just(False), "nested": st.just(False)}), counts=True)
def test_recomputations_repeat_forwards_collectives_once(case: RankedCase) -> None:
    """Collectives before the last operator that saves are issued once more in a recomputation; backward issues plain's."""
    case.equals_plain()
    for rank in range(case.size):
        forward, backward = (case.plain[rank].issued(place) for place in ("forward", "backward"))
        whole = forward + forward + backward
        case.issues(forward, rank, "forward", whole=whole, why="as with plain regions")
        case.issues(forward, rank, "recomputation", whole=whole, why="as in forward")
        case.issues(backward, rank, "backward", whole=whole, why="as with plain regions")


@for_readers("advanced", "more work than needed", "collective, recomputation, region, deadlock")
@ranked_law(
    named(units.of_its_own, SUMS, kinds=st.lists(_MIXED, min_size=2, max_size=3).filter(any).map(tuple), steps=st.just(1)),
    counts=True,
)
def test_each_region_repeats_its_own_collectives(case: RankedCase) -> None:
    """Each region issues what plain's does in forward and in backward, and in its recomputation what it issued in forward."""
    case.equals_plain()
    for rank in range(case.size):
        plain = case.plain[rank]
        whole = plain.issued("forward") + plain.issued()
        case.issues(plain.issued("forward"), rank, "forward", whole=whole, why="as with plain regions")
        for region in sorted({*plain.regions, *case.seen[rank].regions}):  # with plain one may issue nothing
            due = plain.issued("forward", region=region)
            for place in ("forward", "recomputation"):
                case.issues(due, rank, place, whole=whole, why="as in forward with plain regions", region=region)
            due = plain.issued("backward", region=region)
            case.issues(due, rank, "backward", whole=whole, why="as in its backward with plain regions", region=region)
        case.issues(plain.issued("backward"), rank, "backward", whole=whole, why="as with plain regions")


@for_readers("advanced", "wrong gradient", "collective, early stop, deadlock, NCCL timeout")
@ranked_law(named(exchanged.inside, SUMS, **INSIDE), counts=True, ranks=TWO)
def test_ranks_issue_the_same_collectives(case: RankedCase) -> None:
    """All ranks issue the same collectives in the same order, whether or not a recomputation ends early."""
    case.equals_plain()
    case.in_one_order()


@for_readers("advanced", "wrong gradient", "order of backward, MoE, all-to-all")
@ranked_law(named(exchanged.two_regions, SUMS, swapped=st.just(False), differentiable=st.booleans()), floor=1)
def test_regions_that_all_ranks_recompute_in_one_order(case: RankedCase) -> None:
    """Regions with collectives whose backward all ranks call in one order give plain's gradients."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "deadlock, order of backward, MoE, all-to-all")
@ranked_law(named(exchanged.two_regions, SUMS, swapped=st.just(True), differentiable=st.just(False)), floor=1, ranks=TWO)
def test_regions_that_ranks_recompute_in_another_order(case: RankedCase) -> None:
    """If ranks call the backward of their regions in different orders, collectives that only forward has are not mixed up."""
    case.equals_plain_or_refuses()


_PAIRS = (("sum", "gather"), ("sum", "exchange"), ("gather", "exchange"))


@for_readers("adversarial", "poor error", "deadlock, order of backward, MoE, all-to-all, NCCL timeout")
@ranked_law(named(orders.of_two_kinds, SUMS, kinds=st.sampled_from(_PAIRS)), floor=1, ranks=TWO)
def test_regions_of_other_kinds_that_ranks_recompute_in_another_order(case: RankedCase) -> None:
    """If ranks call backward in different orders, ranks do not wait in collectives of different kinds that only forward has."""
    for plain, seen in zip(case.plain, case.seen, strict=True):
        if plain.observation.error is None and "waited up to the limit" in seen.observation.notes:
            told = f"rank {seen.rank} waits up to the limit of its group: {seen.observation.error}"
            raise Hangs(told, Measured("hangs"), HANGS)
    case.equals_plain_or_refuses()
