"""Parameters after some steps: they are those of the same parallel program with plain regions, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from conformance.distributed.case import RankedCase
from conformance.distributed.law import ranked_law
from conformance.distributed.programs import experts, policies, units
from conformance.programs.scenarios.parallel import exchanged, partitioned, replicated, sharded
from conformance.programs.strategies import named
from conformance.programs.sums import Order, Sums
from conformance.rows.for_readers import for_readers
from impls import Implementation

ORDER = Order.SAME  # of sums within a rank; those over more than two ranks have another, which the case knows
SUMS = Sums(256, ORDER)
REGIONS = st.lists(st.booleans(), min_size=1, max_size=3).filter(any).map(tuple)
TWO = 2  # ranks of a law that says nothing of one alone: what it is about needs another
YES, NO = st.just(True), st.just(False)


def _masks(claims: Implementation) -> st.SearchStrategy[float]:
    """Probabilities of a dropout, which is none where random numbers are not claimed to be restored."""
    return st.sampled_from((0.0, 0.5)) if "rng" in claims.capabilities else st.just(0.0)


def replicated_programs(**drawn: st.SearchStrategy[Any]) -> Callable[[Implementation], st.SearchStrategy[Any]]:
    """Programs of DistributedDataParallel, with what a law says of them."""
    usual: dict[str, st.SearchStrategy[Any]] = {
        "regions": REGIONS,
        "options": st.just({}),
        "shared": NO,
        "frozen": st.booleans(),
        "unused": NO,
        "accumulate": st.just(1),
        "forwards": st.just(1),
        "steps": st.integers(2, 3),
    }
    return lambda claims: named(replicated.trained, SUMS, **{"dropout": _masks(claims), **usual, **drawn})


def sharded_programs(**drawn: st.SearchStrategy[Any]) -> Callable[[Implementation], st.SearchStrategy[Any]]:
    """Programs of fully_shard, with what a law says of them."""
    usual: dict[str, st.SearchStrategy[Any]] = {
        "regions": REGIONS,
        "outside": NO,
        "leaf": NO,
        "units": NO,
        "reshard": st.booleans(),
        "mixed": st.just(""),
        "frozen": NO,
        "offload": NO,
        "prefetch": NO,
        "accumulate": st.just(1),
        "steps": st.just(2),
    }
    return lambda claims: named(sharded.trained, SUMS, **{"dropout": _masks(claims), **usual, **drawn})


@for_readers("everyday", "wrong gradient", "DDP, DistributedDataParallel, data parallel")
@ranked_law(replicated_programs())
def test_ddp_trains_as_with_plain_regions(case: RankedCase) -> None:
    """Under DistributedDataParallel parameters after some steps are plain's on each rank, and the same on all."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("everyday", "wrong gradient", "DDP, tied weights, weight sharing, marked ready twice")
@ranked_law(replicated_programs(shared=YES), ranks=TWO)
def test_ddp_with_shared_weights(case: RankedCase) -> None:
    """A block whose weights are used twice in a forward trains under DistributedDataParallel as with plain regions."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("advanced", "wrong gradient", "DDP, static_graph")
@ranked_law(replicated_programs(options=st.just({"static_graph": True}), shared=st.booleans()))
def test_ddp_with_a_static_graph(case: RankedCase) -> None:
    """With static_graph=True parameters after some steps are plain's on each rank, and the same on all."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("advanced", "wrong gradient", "DDP, find_unused_parameters, unused parameters")
@ranked_law(replicated_programs(options=st.just({"find_unused_parameters": True}), unused=st.booleans()))
def test_ddp_that_finds_unused_parameters(case: RankedCase) -> None:
    """With find_unused_parameters=True parameters after some steps are plain's on each rank, and the same on all."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("advanced", "wrong gradient", "DDP, gradient_as_bucket_view, bucket")
@ranked_law(replicated_programs(options=st.sampled_from(({"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1e-4}))))
def test_ddp_with_other_buckets(case: RankedCase) -> None:
    """With gradients that are views of buckets, and with small buckets, parameters are plain's, and the same on all ranks."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("everyday", "wrong gradient", "DDP, no_sync, gradient accumulation")
@ranked_law(replicated_programs(accumulate=st.integers(2, 3)))
def test_ddp_that_accumulates_without_sync(case: RankedCase) -> None:
    """With gradients accumulated under no_sync() parameters are plain's on each rank, and the same on all."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("advanced", "wrong gradient", "DDP, several forwards, contrastive, siamese")
@ranked_law(replicated_programs(forwards=st.integers(2, 3)), ranks=TWO)
def test_ddp_with_several_forwards_before_a_backward(case: RankedCase) -> None:
    """Several forwards of one DistributedDataParallel before one backward train as with plain regions."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "DDP, wrapping order")
@ranked_law(named(replicated.around, SUMS, blocks=st.integers(1, 3), static=st.booleans(), steps=st.just(2)))
def test_a_region_around_ddp(case: RankedCase) -> None:
    """A region around DistributedDataParallel itself trains as with plain regions."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


@for_readers("everyday", "wrong gradient", "FSDP, FSDP2, fully_shard, reshard_after_forward, ZeRO-3")
@ranked_law(sharded_programs())
def test_fsdp_around_regions(case: RankedCase) -> None:
    """Under fully_shard with regions inside of what is sharded, each rank has plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("everyday", "wrong gradient", "FSDP, FSDP2, fully_shard, apply_activation_checkpointing")
@ranked_law(sharded_programs(outside=YES))
def test_fsdp_inside_regions(case: RankedCase) -> None:
    """With regions around what fully_shard shards, each rank has plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "poor error", "FSDP, FSDP2, embeddings, input that requires grad")
@ranked_law(sharded_programs(outside=YES, leaf=YES))
def test_fsdp_inside_regions_that_are_given_a_leaf(case: RankedCase) -> None:
    """A region around what fully_shard shards may be given a leaf that requires grad, which the wrapper passes on."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, nested units, reshard_after_forward")
@ranked_law(sharded_programs(units=YES, outside=st.booleans()))
def test_several_fsdp_units_under_a_region(case: RankedCase) -> None:
    """Several units that fully_shard shards inside of one region give plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


_USED_AGAIN = {"parent": st.booleans(), "outside": st.booleans(), "forwards": st.integers(2, 3), "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "FSDP2, nested units, several forwards, siamese, mixed Tensor and DTensor")
@ranked_law(named(units.used_again, SUMS, **_USED_AGAIN))
def test_fsdp_with_several_forwards_before_a_backward(case: RankedCase) -> None:
    """Several forwards of units that one region has, before one backward, give plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


_TIED = {"way": st.sampled_from(("calls", "layers")), "outside": st.booleans(), "reshard": st.booleans(), "steps": st.just(2)}


@for_readers("everyday", "wrong gradient", "FSDP2, tied weights, weight sharing, embedding and head")
@ranked_law(named(units.tied, SUMS, **_TIED), ranks=TWO)
def test_fsdp_with_shared_weights(case: RankedCase) -> None:
    """Units whose weights a forward uses twice, by another call or in another layer, have plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("everyday", "wrong gradient", "FSDP2, mixed precision, bfloat16, MixedPrecisionPolicy")
@ranked_law(
    lambda claims: (
        sharded_programs(mixed=st.just("bfloat16"), outside=st.booleans(), dropout=st.just(0.0))(claims),
        named(units.cast, SUMS, regions=st.integers(1, 2), steps=st.just(2)),
    )
)
def test_fsdp_with_mixed_precision(case: RankedCase) -> None:
    """Under a mixed precision policy of fully_shard a recomputation casts what forward cast."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("everyday", "wrong gradient", "FSDP2, frozen parameters, LoRA, fine-tuning")
@ranked_law(sharded_programs(frozen=YES, outside=st.booleans()))
def test_fsdp_with_frozen_parameters(case: RankedCase) -> None:
    """Frozen parameters stay as they are, and the others train as with plain regions."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, gradient accumulation, set_requires_gradient_sync")
@ranked_law(sharded_programs(accumulate=st.integers(2, 3), outside=st.booleans()))
def test_fsdp_that_accumulates_without_sync(case: RankedCase) -> None:
    """With gradients accumulated before they are reduced, each rank has plain's shards."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, prefetch, set_modules_to_forward_prefetch")
@ranked_law(sharded_programs(prefetch=YES, outside=st.booleans(), regions=st.sampled_from(((True, True), (True, False, True)))))
def test_fsdp_with_explicit_prefetch(case: RankedCase) -> None:
    """With prefetch set by hand, each rank has plain's shards, and all of them are sharded again."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


_POLICY = {"regions": st.integers(1, 2), "reshard": st.booleans(), "steps": st.just(2)}
_UNITS = {"units": st.integers(2, 3), "reshard": st.booleans(), "parent": st.booleans(), "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "FSDP2, selective checkpointing, SAC, policy, not found in storage")
@ranked_law(named(policies.sharded, SUMS, outside=st.booleans(), **_POLICY), needs=["context-fn"], context_fn=policies.products)
def test_fsdp_with_a_selective_policy(case: RankedCase) -> None:
    """With regions whose policy keeps products, in units or around them, each rank has plain's shards, and they are sharded."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, selective checkpointing, SAC, policy, not found in storage")
@ranked_law(named(policies.several_units, SUMS, **_UNITS), needs=["context-fn"], context_fn=policies.everything)
def test_several_fsdp_units_under_a_region_whose_policy_keeps_all(case: RankedCase) -> None:
    """A policy may keep all of a region around several units, what these gather included: each rank has plain's shards."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


@for_readers("advanced", "wrong gradient", "FSDP2, CPU offload, CPUOffloadPolicy")
@ranked_law(sharded_programs(offload=YES, outside=st.booleans()), effort=0.5)
def test_fsdp_with_cpu_offload(case: RankedCase) -> None:
    """With parameters offloaded to the CPU, each rank has plain's shards after some steps."""
    case.equals_plain()
    case.same_on_all_ranks("whole parameters")


_TENSOR = {"regions": REGIONS, "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "tensor parallelism, sequence parallelism, DTensor, TP")
@ranked_law(named(partitioned.tensor_parallel, SUMS, sequence=st.booleans(), dropout=st.just(0.0), **_TENSOR))
def test_tensor_parallel_regions(case: RankedCase) -> None:
    """Blocks that are split over ranks, with and without sequence parallelism, train as with plain regions."""
    case.equals_plain()
    case.same_on_all_ranks("parameters")


_INPUTS = {"split": st.integers(0, 1), "keyword": NO, "regions": st.integers(1, 3)}


@for_readers("advanced", "wrong gradient", "DTensor, tensor parallelism")
@ranked_law(named(partitioned.distributed_inputs, SUMS, **_INPUTS))
def test_regions_that_are_given_dtensors(case: RankedCase) -> None:
    """DTensors may be arguments and results of a region; gradients are plain's, and laid out alike."""
    case.equals_plain()


PIPELINES = ["closure-gradients"]  # microbatches do not require grad
_STAGES = {"regions": st.integers(1, 2), "microbatches": st.sampled_from((2, 4)), "steps": st.just(2)}


@for_readers("advanced", "wrong gradient", "pipeline parallelism, 1F1B, GPipe")
@ranked_law(
    named(partitioned.pipeline, SUMS, schedule=st.sampled_from(("ScheduleGPipe", "Schedule1F1B")), **_STAGES),
    needs=PIPELINES,
)
def test_pipelines_of_regions(case: RankedCase) -> None:
    """A pipeline whose stages are made of regions trains as with plain regions."""
    case.equals_plain()


SEVERAL = ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble")


@for_readers("advanced", "wrong gradient", "pipeline parallelism, interleaved, zero bubble, ZBV")
@ranked_law(
    named(partitioned.pipeline, SUMS, schedule=st.sampled_from(SEVERAL), **_STAGES),
    needs=["subset-requests", *PIPELINES],
)
def test_pipelines_of_several_stages_a_rank(case: RankedCase) -> None:
    """Interleaved and zero bubble pipelines, which split backward, train as with plain regions."""
    case.equals_plain()


_KINDS = st.lists(st.sampled_from(("sum", "gather", "exchange")), min_size=1, max_size=2).map(tuple)
INSIDE = {"kinds": _KINDS, "regions": st.integers(1, 2), "nested": st.booleans(), "last": st.booleans(), "steps": st.just(1)}


@for_readers("advanced", "wrong gradient", "all-reduce, all-to-all, expert parallelism, MoE")
@ranked_law(named(exchanged.inside, SUMS, **INSIDE))
def test_collectives_inside_regions(case: RankedCase) -> None:
    """Sums, gathers and exchanges over ranks inside of regions give plain's values and gradients."""
    case.equals_plain()


_ROUTED = {"regions": st.integers(1, 2), "tokens": st.integers(3, 6), "steps": st.integers(2, 3)}


@for_readers("advanced", "wrong gradient", "expert parallelism, MoE, all-to-all, router, uneven splits")
@ranked_law(named(experts.routed, SUMS, **_ROUTED), ranks=TWO)
def test_expert_parallel_regions(case: RankedCase) -> None:
    """Regions that send tokens to the experts of other ranks, to some more than to others, train as plain ones do."""
    case.equals_plain()
    case.same_on_all_ranks("routers")


@for_readers("advanced", "wrong state", "SyncBatchNorm, router statistics, load balancing, counted twice")
@ranked_law(named(exchanged.statistics, SUMS, steps=st.integers(1, 2)))
def test_statistics_over_ranks_are_updated_once(case: RankedCase) -> None:
    """Statistics that a region averages over ranks are updated once for each forward."""
    case.equals_plain()
