"""OffloadModel: a model that computes on one device, slice by slice, and lives on another."""

from __future__ import annotations

from impls.implementation import Implementation, known
from impls.known_failures import UNPACKED_IN_OFFLOADED_MODELS
from impls.offload.model import OffloadModel
from impls.offload.slicing import slices

__all__ = ["IMPLEMENTATION", "OffloadModel", "slices"]

IMPLEMENTATION = Implementation(
    name="offload",
    kind="offload",
    provides=OffloadModel,
    summary="slices of a model on the device in turn, activations checkpointed, microbatches",
    source="FairScale's OffloadModel; arXiv 2002.05645, arXiv 2101.06840",
    known=known(
        "diverges",
        "autocast caches the casts of leaves, and a loaded copy is none: its gradients are added after the cast, not before",
        "at::autocast::cached_cast",
        "autocast_casts_a_weight_once",
    )
    | known(
        "diverges",
        "forward sees a copy of a buffer, of which those are taken back that operators of torch have changed",
        "seen here",
        "a_buffer_that_is_changed_through_numpy",
    )
    | known(
        "diverges",
        "operators that a higher-order operator calls are not seen, so a change that no version tells of is not taken back",
        "seen here, torch 2.13",
        "buffers_that_higher_order_operators_write_where_no_version_tells",
    )
    | known(
        "diverges",
        "modules run on copies of their buffers, and a copy is what the caller gets: it shares no memory with the buffer",
        "seen here, torch 2.13",
        "a_buffer_that_a_module_returns_is_the_buffer",
    )
    | known(
        "diverges",
        "modules run once for each microbatch, and outputs alone are joined: an attribute keeps what the last one stored",
        "seen here, torch 2.13",
        "what_a_module_keeps_is_of_the_whole_batch",
    )
    | UNPACKED_IN_OFFLOADED_MODELS,
)
