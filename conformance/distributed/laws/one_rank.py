"""Parallel training beside that of the whole model on one rank, in whose place it is."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.distributed.case import RankedCase
from conformance.distributed.law import ranked_law
from conformance.distributed.laws.parameters import PIPELINES, REGIONS, SUMS
from conformance.distributed.programs import one_rank
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

_BESIDE = {"regions": REGIONS, "outside": st.booleans(), "steps": st.integers(2, 3)}


@for_readers("everyday", "wrong gradient", "DDP, FSDP2, data parallel, unsharded, single device")
@ranked_law(named(one_rank.beside, SUMS, wrapper=st.sampled_from(("replicated", "sharded")), **_BESIDE))
def test_data_parallel_regions_train_as_one_rank_does(case: RankedCase) -> None:
    """Under DDP and fully_shard parameters are those of the whole model on one rank, without regions, on all inputs."""
    case.equals_plain()
    case.as_expected()


@for_readers("advanced", "wrong gradient", "pipeline parallelism, 1F1B, GPipe, single device")
@ranked_law(
    named(
        one_rank.piped,
        SUMS,
        schedule=st.sampled_from(("ScheduleGPipe", "Schedule1F1B")),
        regions=st.integers(1, 2),
        microbatches=st.sampled_from((2, 4)),
        steps=st.just(2),
    ),
    needs=PIPELINES,
)
def test_pipelines_train_as_one_rank_does(case: RankedCase) -> None:
    """In a pipeline parameters are those of the whole model on one rank, without regions, on the same microbatches."""
    case.equals_plain()
    case.as_expected()
