"""Meshes: hybrid sharding, tensor parallelism inside of sharding, what tensor-parallel regions draw, and a split sequence."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.distributed.case import RankedCase
from conformance.distributed.law import ranked_law
from conformance.distributed.laws.collectives import as_plain
from conformance.distributed.laws.parameters import REGIONS, SUMS, sharded_programs
from conformance.distributed.programs import meshes
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

FOUR = 4  # ranks, of which a mesh has two in each dimension
_MESH = {"regions": REGIONS, "outside": st.booleans(), "reshard": st.booleans(), "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "HSDP, hybrid sharding, FSDP2, DeviceMesh")
@ranked_law(named(meshes.trained, SUMS, inner=st.just("shards"), **_MESH), ranks=FOUR, effort=0.5)
def test_hybrid_sharding(case: RankedCase) -> None:
    """Under fully_shard on a mesh that copies over one dimension and shards over the other, each rank has plain's shards."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "more work than needed", "HSDP, hybrid sharding, all-gather, all-reduce, communication")
@ranked_law(
    tuple(named(meshes.trained, SUMS, inner=st.just("shards"), **{**_MESH, "outside": st.just(one)}) for one in (True, False)),
    ranks=FOUR,
    effort=0.5,
    counts=True,
)
def test_hybrid_sharding_communicates_as_often_as_plain(case: RankedCase) -> None:
    """With hybrid sharding each rank issues the collectives of plain regions, and none in a recomputation."""
    as_plain(case)


@for_readers("advanced", "wrong gradient", "2-D parallelism, TP and FSDP2, DTensor, DeviceMesh")
@ranked_law(named(meshes.trained, SUMS, inner=st.just("splits"), **_MESH), ranks=FOUR, effort=0.5)
def test_fsdp_of_tensor_parallel_blocks(case: RankedCase) -> None:
    """Blocks that are split over one dimension of a mesh and sharded over the other train as with plain regions."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, reshard_after_forward, ZeRO++, hpZ")
@ranked_law(sharded_programs(reshard=st.just(2), outside=st.booleans(), units=st.booleans()), ranks=FOUR, effort=0.5)
def test_fsdp_that_reshards_to_fewer_ranks(case: RankedCase) -> None:
    """With reshard_after_forward=2, which shards over two ranks until backward, each rank has plain's shards."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


_MASKED = {"regions": st.integers(1, 3), "probability": st.sampled_from((0.25, 0.5)), "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "tensor parallelism, dropout, random numbers, rank")
@ranked_law(named(meshes.masked, SUMS, where=st.just("split"), **_MASKED), needs=["rng"])
def test_tensor_parallel_regions_with_a_mask_for_each_rank(case: RankedCase) -> None:
    """What ranks have split between them in a region gets a mask of each rank's own, and the same one again."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "tensor parallelism, dropout, random numbers, seed")
@ranked_law(named(meshes.masked, SUMS, where=st.just("whole"), **_MASKED), needs=["rng"])
def test_tensor_parallel_regions_with_one_mask(case: RankedCase) -> None:
    """What all ranks have in a tensor-parallel region gets one mask on all of them, and the same one again."""
    case.equals_plain()
    case.same_on_all_ranks("forward 0", "parameters", "what is drawn next")


@for_readers("advanced", "wrong gradient", "context parallelism, CP, attention, long sequences")
@ranked_law(
    named(meshes.attended, SUMS, regions=st.integers(1, 2), heads=st.integers(1, 2), steps=st.integers(1, 2)),
    effort=0.5,
)
def test_context_parallel_regions(case: RankedCase) -> None:
    """Attention over a sequence that context_parallel splits over ranks trains in regions as in plain ones."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")
