"""PyTorch's reentrant checkpoint, as it is."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import Implementation, known
from impls.known_failures import (
    CAPTURED,
    PEAKS_WITH_OUTPUTS,
    RUNS_TO_THE_END,
    SINGLE_NODE,
    STATISTICS_REQUIRE_GRAD,
    WITHIN_BUDGET,
)
from impls.peers.torch_limits import DECORATED, TORCH_REENTRANT
from impls.peers.torch_options import DROPPED, EXPORTED, EXPORTED_BY_DYNAMO, FLAGS_OF_ANY_TYPE, SWITCHES_UNHEEDED

IMPLEMENTATION = Implementation(
    name="torch-reentrant",
    binding="from torch.utils.checkpoint import checkpoint\n\ncheckpoint = functools.partial(checkpoint, use_reentrant=True)",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=True),
    summary="torch.utils.checkpoint with use_reentrant=True",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset(
        {
            *(
                "autocast",
                "compiled",
                "early-stop-option",
                "hidden-saves",
                "nesting",
                "non-tensor-arguments",
                "non-tensor-outputs",
            ),
            *("recomputes", "rng", "rng-option"),
        }
    ),
    known=SINGLE_NODE
    | STATISTICS_REQUIRE_GRAD
    | RUNS_TO_THE_END
    | SWITCHES_UNHEEDED
    | FLAGS_OF_ANY_TYPE
    | PEAKS_WITH_OUTPUTS
    | CAPTURED
    | WITHIN_BUDGET
    | DROPPED
    | DECORATED
    | EXPORTED
    | EXPORTED_BY_DYNAMO
    | known(
        "agrees",
        "in a graph the region is one of the other variant, and takes its options without a word",
        "seen here, torch 2.13",
        "policies_keep_what_they_say_when_compiled",
        "operators_in_place_under_a_compiled_policy",
        "operators_of_the_first_run_alone",
    )
    | TORCH_REENTRANT
    | known(
        "diverges",
        "options of the other variant are taken without a word",
        "seen here",
        "wrong_arguments_are_refused",
        "more_saved_tensors_are_reported",
        "missing_tensors_are_reported_in_any_case",
        "changes_are_reported_in_any_case",
    )
    | known(
        "refuses",
        "forward makes no graph inside the function, so there is nothing to differentiate",
        "seen here",
        "backward_inside_a_region_without_early_stop",
    )
    | known(
        "agrees",
        "the options that would switch a check or the early stop off are taken, and there is nothing to switch off",
        "seen here",
        "the_determinism_check_can_be_switched_off",
        "kept_values_may_be_computed_anew",
    )
    | known(
        "diverges",
        "the node makes zeros for the gradient of an output that got none, an operator that a mode around backward sees",
        "seen here",
        "no_operators_are_seen_but_the_functions",
    )
    | known(
        "diverges",
        "tensors in containers are neither detached nor saved: gradients flow through them twice or not at all",
        "field report; seen here",
        "containers_as_arguments",
        "containers_as_outputs",
        seed=1,
    )
    | known(
        "diverges",
        "tensors in containers are neither detached nor saved: what a region inside of another returns in one requires no grad",
        "seen here",
        "containers_that_are_unusual",
        seed=10,
    )
    | known(
        "crashes",
        "tensors in containers are neither detached nor saved: where they are all that requires grad, backward finds no graph, "
        "and says nothing of a container",
        "seen here",
        "hooks_on_arguments_by_keyword_and_in_containers",
    ),
)
