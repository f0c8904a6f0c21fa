"""What implementations declare about the laws that take ranks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from impls import Implementation, Known
from impls.distributed_limits import DRAWS_ANEW, LIMITS, OWN_BACKWARD
from impls.implementation import known


def _also(earlier: Mapping[str, Known], law: str, *laws: str) -> dict[str, Known]:
    """The limit that is declared of one law, of others that ask the same of other programs."""
    return dict.fromkeys(laws, earlier[law])


_PLAIN = known(
    "diverges",
    "plain keeps everything that it saves, and runs nothing again",
    "by definition",
    "each_region_repeats_its_own_collectives",
    "exchanges_in_regions_keep_nothing",
    "a_split_backward_recomputes_twice",
)
_NODE = _also(OWN_BACKWARD, "pipelines_of_regions", "pipelines_train_as_one_rank_does")
_DRAWS_ANEW = _also(
    DRAWS_ANEW,
    "masks_that_ranks_share_stay_shared",
    "tensor_parallel_regions_with_a_mask_for_each_rank",
    "tensor_parallel_regions_with_one_mask",
)
_DATA_PARALLEL = (
    "ddp_with_shared_weights",
    "ddp_with_several_forwards_before_a_backward",
    "ddp_that_finds_unused_parameters",
)
_PEERS_NODE = {law: OWN_BACKWARD[law] for law in _DATA_PARALLEL}
# Of laws that are younger than ``impls.distributed_limits``, and of what is judged where it is installed or built.
MORE: Mapping[str, Mapping[str, Known]] = MappingProxyType(
    {
        "plain": _PLAIN,
        "legacy": {**_NODE, **_DRAWS_ANEW},
        "reentrant": _NODE,
        "torch-reentrant": _NODE,
        "native": LIMITS["nested"],
        "fairscale": _PEERS_NODE,
        "deepspeed-reentrant": _PEERS_NODE,
    }
)


def all_limits() -> Mapping[str, Mapping[str, Known]]:
    """The limits that show under ranks alone, by the names of implementations."""
    return {name: {**LIMITS.get(name, {}), **MORE.get(name, {})} for name in dict.fromkeys((*LIMITS, *MORE))}


def declared(implementation: Implementation) -> Mapping[str, Known]:
    """The known limits of an implementation, those under ranks included."""
    return {**implementation.known, **all_limits().get(implementation.name, {})}
