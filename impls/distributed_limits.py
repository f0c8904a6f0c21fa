"""Known limits under the laws that take ranks, by the names of implementations.

They are not in the implementations' own modules, so that a limit found under ranks does not make results of laws that take one
process out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from impls.implementation import Implementation, Known, known

# Of all that run the function again: its side effects happen twice.
RUN_TWICE = known(
    "diverges",
    "the function runs again, and averages its statistics over ranks once more",
    "Megatron-LM#1330, torchtitan#1593; seen here",
    "statistics_over_ranks_are_updated_once",
)

# Of all that do not compare values: collectives of recomputations are matched in the order in which each rank issues them.
MIXED_UP = {
    **known(
        "diverges",
        "a collective that only forward has runs in the recomputation, too; where ranks come to their regions in another "
        "order, that of one region meets that of another, and gradients are wrong",
        "VeOmni#979; seen here",
        "regions_that_ranks_recompute_in_another_order",
    ),
    **known(
        "hangs",
        "a collective that only forward has runs in the recomputation, too; where ranks come to their regions in another "
        "order, they wait in collectives of different kinds",
        "VeOmni#979; seen here, torch 2.13",
        "regions_of_other_kinds_that_ranks_recompute_in_another_order",
    ),
}

# Of a node with a backward of its own: that one accumulates gradients by itself, once for each region.
OWN_BACKWARD = {
    **known(
        "diverges",
        "each region's own backward accumulates gradients, and the wrapper takes the first one for the last: it reduces too "
        "early, in silence, or says that a parameter was marked ready twice",
        "pytorch#24005, transformers#23018; seen here",
        "ddp_with_shared_weights",
        "ddp_with_several_forwards_before_a_backward",
    ),
    **known(
        "refuses",
        "outputs of a node of its own do not lead to the parameters, so the wrapper takes these for unused ones, and is told "
        "of their gradients later",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html; seen here",
        "ddp_that_finds_unused_parameters",
    ),
    **known(
        "diverges",
        "a microbatch of the first stage does not require grad, and without an argument that does there is no node: the first "
        "stage gets no gradient from the region",
        "pytorch#7617; seen here",
        "pipelines_of_regions",
        "pipelines_of_several_stages_a_rank",
        "pipelines_train_as_one_rank_does",
    ),
}

# Of a node of its own: forward runs without a graph, so that the wrapper does not know of a backward to come.
GATHERS_AGAIN = known(
    "diverges",
    "in forward the wrapper makes no hook for a backward to come, so the recomputation gathers, shards again, and backward "
    "gathers a third time",
    "pytorch#105635, fairscale#777; seen here",
    "fsdp_inside_regions_gathers_as_often_as_plain",
    "hybrid_sharding_communicates_as_often_as_plain",
)

# Of a node of its own, too: each region's own backward is one to the wrapper, which takes it for the whole.
LEFT_UNSHARDED = known(
    "crashes",
    "after backward a unit inside of another may be left unsharded: its parameters are plain tensors, and its gradients are "
    "not reduced, so what takes DTensors raises an error",
    "pytorch#187437, #153354; seen here",
    "fsdp_with_several_forwards_before_a_backward",
)

# Of a node of its own, for the same reason.
REDUCED_ONCE = known(
    "diverges",
    "of a unit that a forward calls twice, each time in a region, only the call that backward comes to first has its gradients "
    "reduced; those of the other one are lost, in silence",
    "seen here, torch 2.13",
    "fsdp_with_shared_weights",
)

# Of PyTorch's checkpoints: no generator but the device's own is restored.
OWN_GENERATOR = known(
    "diverges",
    "generators that are passed to the function are not restored, so a rank's own mask is another one in the recomputation",
    "https://docs.pytorch.org/docs/stable/checkpoint.html; seen here",
    "a_generator_of_each_rank_is_replayed",
)

# Of legacy: no generator is.
DRAWS_ANEW = known(
    "diverges",
    "random numbers are not restored: the recomputation draws others and moves the ambient stream",
    "pytorch#14253; seen here",
    "each_rank_draws_its_own_again",
    "masks_that_ranks_share_stay_shared",
    "masks_of_dtensors_are_replayed",
    "tensor_parallel_regions_with_a_mask_for_each_rank",
    "tensor_parallel_regions_with_one_mask",
)

# Of no checkpointing at all.
PLAIN = known(
    "diverges",
    "plain keeps everything that it saves, and runs nothing again",
    "by definition",
    "recomputations_repeat_forwards_collectives_once",
    "an_error_on_one_rank_is_raised_there",
    "ranks_keep_nothing_that_regions_made",
    "a_split_backward_in_a_group_recomputes_once",
    "each_region_repeats_its_own_collectives",
    "exchanges_in_regions_keep_nothing",
    "a_split_backward_recomputes_twice",
)

# Of selective policies that keep the results of the wrapper's own operators, too.
KEEPS_WHAT_IS_FREED = known(
    "diverges",
    "where forward and recomputation gather in the same places gradients are wrong, in silence, else an operator is not found; "
    "why was not traced: presumably what is kept is memory that the wrapper frees and fills again",
    "torchtitan#3427, pytorch#185178; seen here, torch 2.13",
    "several_fsdp_units_under_a_region_whose_policy_keeps_all",
)

# Of torch-selective, whose policy is asked about every operator of a region, those of a wrapper included.
SELECTIVE = {
    **known(
        "refuses",
        "the wrapper gathers in forward and not in a recomputation, or the other way round, and what it calls for that is one "
        "of the region's operators: it is not found",
        "torchtitan#3427, pytorch#185178; seen here, torch 2.13",
        "several_fsdp_units_under_a_region",
        "fsdp_units_under_a_region_gather_as_often_as_plain",
        "fsdp_with_several_forwards_before_a_backward",
        "fsdp_that_reshards_to_fewer_ranks",
    ),
    **known(
        "refuses",
        "what a policy keeps serves one backward alone, so a second one is refused",
        "https://docs.pytorch.org/docs/stable/checkpoint.html; seen here, torch 2.13",
        "pipelines_of_several_stages_a_rank",
        "each_rank_draws_its_own_again",
        "masks_that_ranks_share_stay_shared",
    ),
    **known(
        "diverges",
        "generators that are passed to the function are not restored; a second backward is refused",
        "https://docs.pytorch.org/docs/stable/checkpoint.html; seen here, torch 2.13",
        "a_generator_of_each_rank_is_replayed",
    ),
    **known(
        "diverges",
        "its policy keeps results until backward",
        "seen here, torch 2.13",
        "exchanges_in_regions_keep_nothing",
        "ranks_keep_nothing_that_regions_made",
    ),
}

# Of a graph of its own in forward: the wrapper makes its hooks for none, and gathers in the recomputation.
REMAT_GATHERS_AGAIN = known(
    "diverges",
    "the wrapper's units are gathered in the recomputation, too",
    "pytorch#105635; seen here, torch_remat 0.2.2, torch 2.13",
    "fsdp_inside_regions_gathers_as_often_as_plain",
    "hybrid_sharding_communicates_as_often_as_plain",
)
# It has no option for random numbers, and does not refuse to draw them.
REMAT_DRAWS_ANEW = known(
    "diverges",
    "random numbers are not restored: the recomputation draws others",
    "seen here, torch_remat 0.2.2, torch 2.13",
    "each_rank_draws_its_own_again",
    "masks_that_ranks_share_stay_shared",
    "masks_of_dtensors_are_replayed",
    "tensor_parallel_regions_with_a_mask_for_each_rank",
    "tensor_parallel_regions_with_one_mask",
)
REMAT_FREES = known(
    "refuses",
    "what is recomputed serves one backward alone, and pipelines that split theirs take two",
    "seen here, torch_remat 0.2.2, torch 2.13",
    "pipelines_of_several_stages_a_rank",
)

REMAT_ONE_NODE = known(
    "crashes",
    "a region is one node, so no result depends on another, and gradients of one by another are an error of autograd",
    "seen here, torch_remat 0.2.2, torch 2.13",
    "a_split_backward_gives_plains_gradients",
    "a_split_backward_recomputes_twice",
    "a_split_backward_in_a_group_recomputes_once",
)

# Of DeepSpeed's own node: it forgets its arguments once backward has run.
DEEPSPEED_FORGETS = known(
    "crashes",
    "a second backward finds none of the arguments that the first one has freed",
    "seen here, deepspeed 0.19.8",
    "each_rank_draws_its_own_again",
    "masks_that_ranks_share_stay_shared",
)
DEEPSPEED_NO_GRAD = known(
    "refuses",
    "stages take gradients of their inputs by torch.autograd.grad, which it refuses",
    "seen here, deepspeed 0.19.8",
    "pipelines_of_regions",
    "pipelines_train_as_one_rank_does",
)

NESTED = {**RUN_TWICE, **MIXED_UP, **KEEPS_WHAT_IS_FREED}
TORCH = {**NESTED, **OWN_GENERATOR}
REMAT = {**REMAT_GATHERS_AGAIN, **REMAT_DRAWS_ANEW, **REMAT_FREES, **REMAT_ONE_NODE}
OWN_NODE = {**RUN_TWICE, **MIXED_UP, **OWN_BACKWARD, **GATHERS_AGAIN, **LEFT_UNSHARDED, **REDUCED_ONCE}
# Under this law FairScale refuses, which is what is expected of it.
FAIRSCALE = {law: limit for law, limit in OWN_NODE.items() if law != "pipelines_train_as_one_rank_does"}
LIMITS: Mapping[str, Mapping[str, Known]] = MappingProxyType(
    {
        "plain": PLAIN,
        "nested": NESTED,
        "native": NESTED,
        "reentrant": OWN_NODE,
        "legacy": {**OWN_NODE, **DRAWS_ANEW},
        "torch-nonreentrant": TORCH,
        "torch-nonreentrant-full": TORCH,
        "torch-reentrant": {**OWN_NODE, **OWN_GENERATOR},
        "fairscale": {**FAIRSCALE, **OWN_GENERATOR},
        "deepspeed-reentrant": {**OWN_NODE, **OWN_GENERATOR, **DEEPSPEED_FORGETS},
        "deepspeed-nonreentrant": {**RUN_TWICE, **MIXED_UP, **OWN_GENERATOR, **DEEPSPEED_NO_GRAD},
        "torch-selective": {**RUN_TWICE, **MIXED_UP, **SELECTIVE},
        "torch-remat": {**RUN_TWICE, **MIXED_UP, **OWN_GENERATOR, **REMAT},
    }
)


def declared(implementation: Implementation) -> Mapping[str, Known]:
    """The known limits of an implementation, those under ranks included."""
    return {**implementation.known, **LIMITS.get(implementation.name, {})}
