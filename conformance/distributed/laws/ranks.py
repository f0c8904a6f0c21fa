"""What belongs to each rank: its random numbers, its errors, its memory, and backward in two halves."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.distributed.case import RankedCase, on_rank, unmeasured
from conformance.distributed.law import ranked_law
from conformance.distributed.laws.parameters import SUMS, TWO
from conformance.distributed.programs import recovery, units
from conformance.judging.causes import Cause
from conformance.judging.verdicts import Diverges, Measured
from conformance.programs.scenarios.parallel import faulty, partitioned
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

SWALLOWED = Cause("the error of a region is not raised on its rank")
WENT_ON = Cause("a rank goes on without one that raised")
TOO_EARLY = Cause("a rank raises before it has done what plain does")
_REGIONS = st.integers(1, 3)
_DRAWS = {"probability": st.sampled_from((0.25, 0.5)), "regions": _REGIONS, "passes": st.integers(1, 2)}


@for_readers("everyday", "wrong gradient", "dropout, seed, random numbers, rank")
@ranked_law(named(faulty.masks, SUMS, seeds=st.just("own"), generator=st.just(False), **_DRAWS), needs=["rng"])
def test_each_rank_draws_its_own_again(case: RankedCase) -> None:
    """A mask that a rank draws in a region is that rank's own, is replayed on it, and leaves its stream as plain does."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "dropout, tensor parallelism, seed")
@ranked_law(named(faulty.masks, SUMS, seeds=st.just("shared"), generator=st.just(False), **_DRAWS), needs=["rng"])
def test_masks_that_ranks_share_stay_shared(case: RankedCase) -> None:
    """Ranks with the same seed draw the same mask in a region, and again in its recomputation."""
    case.equals_plain()
    case.same_on_all_ranks("forward", "gradients 0")


@for_readers("advanced", "wrong gradient", "torch.Generator, tensor parallelism, seed")
@ranked_law(
    named(faulty.masks, SUMS, seeds=st.just("shared"), generator=st.just(True), **_DRAWS), needs=["rng", "explicit-generators"]
)
def test_a_generator_of_each_rank_is_replayed(case: RankedCase) -> None:
    """A region that draws from a stream which ranks share, and from a generator of each rank, replays both."""
    case.equals_plain()


_MASKS = {"split": st.booleans(), "probability": st.sampled_from((0.25, 0.5)), "regions": _REGIONS}


@for_readers("advanced", "wrong gradient", "DTensor, dropout, random numbers")
@ranked_law(named(faulty.sharded_masks, SUMS, **_MASKS), needs=["rng"])
def test_masks_of_dtensors_are_replayed(case: RankedCase) -> None:
    """The mask that a rank draws in a region, of its own part of a DTensor or of one that all have, is drawn again."""
    case.equals_plain()


@for_readers("advanced", "poor error", "exception, one rank, hang, abort")
@ranked_law(
    named(
        faulty.raises,
        SUMS,
        where=st.sampled_from(("forward", "recomputation")),
        on=st.integers(0, 1),
        exchange=st.sampled_from(("no", "before", "after")),
        regions=st.integers(1, 2),
    ),
    gradients=False,
    recomputes=False,
    ranks=TWO,
)
def test_an_error_on_one_rank_is_raised_there(case: RankedCase) -> None:
    """An error in a region on one rank, in forward or in recomputation, is raised there; the others come back."""
    drawn = case.arguments
    on, waits = drawn["on"], drawn["exchange"] != "no"  # an exchange before the error waits in backward, which has it again
    raised = {one: case.ranks[one].answer.observation.error for one in range(case.size)}
    if not isinstance(raised[on], ArithmeticError):
        due = Measured("raises", (("rank", on),))
        raise Diverges(f"rank {on} is to raise the error of its region; raised is {raised}", due, SWALLOWED)
    if waits and any(one is None for one in raised.values()):
        raise Diverges(f"a rank that waits for rank {on} went on: {raised}", None, WENT_ON)
    with unmeasured():  # a script compares with plain, and would take the error that is due for the fault
        for rank in range(case.size):
            if waits or rank == on:
                _up_to_its_error(case, rank)
            else:
                with on_rank(rank):
                    case.ranks[rank].equals_plain()


def _up_to_its_error(case: RankedCase, rank: int) -> None:
    """A rank that raises notes before what plain does: all but gradients, which come last."""
    case.noted_as_plain(rank)
    seen = case.ranks[rank].answer.observation
    if lacking := [label for label in case.plain[rank].observation.notes if label not in {*seen.notes, "gradients"}]:
        raise Diverges(f"rank {rank} raises {seen.error!r} before it notes {lacking[0]!r}", cause=TOO_EARLY)


@for_readers("advanced", "wrong state", "FSDP2, exception, unsharded, out of memory")
@ranked_law(
    named(faulty.sharded_after_an_error, SUMS, regions=_REGIONS, reshard=st.booleans(), outside=st.booleans()),
)
def test_an_error_leaves_as_much_sharded_as_plain(case: RankedCase) -> None:
    """After a backward parameters are sharded again, and after one that ends in an error as many of them as with plain."""
    case.equals_plain()


@for_readers("advanced", "leaked or late memory", "exception, out of memory, one rank, leak")
@ranked_law(
    named(recovery.caught, SUMS, on=st.integers(0, 1), regions=_REGIONS, exchange=st.booleans()), counts=True, ranks=TWO
)
def test_an_error_that_is_caught_leaves_nothing_alive(case: RankedCase) -> None:
    """After an error in a recomputation, on one rank or on all, nothing that regions made is alive, and the next is right."""
    case.equals_plain()
    case.keeps_nothing()


@for_readers("advanced", "wrong state", "exception, out of memory, DDP, FSDP2, bucket, retry")
@ranked_law(
    lambda _: (
        named(recovery.trained_after, SUMS, where=st.just("last"), wrapper=st.just("replicated"), regions=_REGIONS),
        named(
            recovery.trained_after, SUMS, where=st.sampled_from(("first", "last")), wrapper=st.just("sharded"), regions=_REGIONS
        ),
    )
)
def test_training_goes_on_after_an_error(case: RankedCase) -> None:
    """After a backward that ends in an error on all ranks no bucket and no shard is stale, and the next step is plain's."""
    case.equals_plain()
    case.same_on_all_ranks("parameters 2")


@for_readers("advanced", "leaked or late memory", "all-to-all, expert parallelism, MoE, leak")
@ranked_law(
    named(units.exchanged, SUMS, way=st.sampled_from(("functional", "function")), regions=_REGIONS, steps=st.integers(1, 2)),
    counts=True,
)
def test_exchanges_in_regions_keep_nothing(case: RankedCase) -> None:
    """After forward and after backward nothing that an all-to-all inside of a region made is alive on any rank."""
    case.equals_plain()
    case.keeps_nothing()


_HELD = {"regions": _REGIONS, "exchange": st.booleans(), "steps": st.integers(1, 2)}


@for_readers("everyday", "leaked or late memory", "activation memory, peak memory, DDP, FSDP2, OOM")
@ranked_law(
    named(faulty.held, SUMS, wrapper=st.sampled_from(("none", "replicated", "sharded")), **_HELD), counts=True, gradients=False
)
def test_ranks_keep_nothing_that_regions_made(case: RankedCase) -> None:
    """After forward and after backward nothing that a region made is alive on any rank but its inputs and outputs."""
    case.equals_plain()
    case.keeps_nothing()


def _calls(case: RankedCase, times: int) -> None:
    """On each rank functions of regions are called so many times as often as with plain regions."""
    for plain, seen in zip(case.plain, case.seen, strict=True):
        due, found = times * plain.observation.calls.total(), seen.observation.calls.total()
        if found != due:
            told = f"rank {seen.rank}: functions of regions are called {found} times; due: {due}"
            raise Diverges(told, Measured("calls", (("calls", due),)))


_SPLIT = {"regions": _REGIONS, "exchange": st.booleans()}


@for_readers("advanced", "wrong gradient", "pipeline, zero bubble, split backward")
@ranked_law(named(partitioned.split_backward, SUMS, group=st.just(False), **_SPLIT), needs=["subset-requests"])
def test_a_split_backward_gives_plains_gradients(case: RankedCase) -> None:
    """Gradients of inputs first and of weights later, each with collectives in regions, are plain's on each rank."""
    case.equals_plain()


@for_readers("advanced", "more work than needed", "pipeline, zero bubble, split backward")
@ranked_law(named(partitioned.split_backward, SUMS, group=st.just(False), **_SPLIT), needs=["subset-requests"])
def test_a_split_backward_recomputes_twice(case: RankedCase) -> None:
    """Without a group each half of a split backward has a recomputation of its own, on each rank."""
    case.equals_plain()
    _calls(case, 3)


@for_readers("advanced", "more work than needed", "pipeline, zero bubble, GraphExecGroup")
@ranked_law(named(partitioned.split_backward, SUMS, group=st.just(True), **_SPLIT), needs=["subset-requests"])
def test_a_split_backward_in_a_group_recomputes_once(case: RankedCase) -> None:
    """Inside of a GraphExecGroup one recomputation serves both halves of a split backward, on each rank."""
    case.equals_plain()
    _calls(case, 2)
