"""PyTorch's non-reentrant checkpoint with early stop switched off: every recomputation runs to its end."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import CAPABILITIES, Implementation, known
from impls.known_failures import CACHED, CAPTURED, LEFT_EARLY, RUNS_TO_THE_END, WITHIN_BUDGET, without
from impls.peers.torch_limits import DECORATED, TORCH_NONREENTRANT
from impls.peers.torch_options import DROPPED, EXPORTED, EXPORTED_BY_DYNAMO, LACKING, SWITCHED

IMPLEMENTATION = Implementation(
    name="torch-nonreentrant-full",
    binding="from torch.utils.checkpoint import checkpoint\n\n"
    "checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, early_stop=False),
    summary="torch.utils.checkpoint with use_reentrant=False and early_stop=False",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset(CAPABILITIES) - {"early-stop", "explicit-generators"} - LACKING,
    known=without(TORCH_NONREENTRANT, *LEFT_EARLY, *CACHED)
    | RUNS_TO_THE_END
    | CAPTURED
    | WITHIN_BUDGET
    | DROPPED
    | DECORATED
    | SWITCHED
    | EXPORTED
    | EXPORTED_BY_DYNAMO
    | known("diverges", "a recomputation runs to its end", "the option", "requests_for_a_subset_recompute_what_they_need")
    | known(
        "diverges",
        "a recomputation runs to its end, so that backward gets what it saved as the rest of the function has changed it",
        "seen here, torch 2.13",
        "what_a_function_changes_where_it_runs_on",
    )
    | known(
        "agrees",
        "what a recomputation makes at its end takes no more than the gradient that is made next",
        "seen here",
        "the_allocator_peaks_where_the_plan_does",
    ),
)
