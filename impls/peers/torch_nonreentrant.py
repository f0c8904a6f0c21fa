"""PyTorch's non-reentrant checkpoint, as it is."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import CAPABILITIES, Implementation, known
from impls.known_failures import CAPTURED, WITHIN_BUDGET
from impls.peers.torch_limits import DECORATED, TORCH_NONREENTRANT
from impls.peers.torch_options import DROPPED, EXPORTED, EXPORTED_BY_DYNAMO, LACKING, SWITCHED

IMPLEMENTATION = Implementation(
    name="torch-nonreentrant",
    binding="from torch.utils.checkpoint import checkpoint\n\ncheckpoint = functools.partial(checkpoint, use_reentrant=False)",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False),
    summary="torch.utils.checkpoint with use_reentrant=False",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset(CAPABILITIES) - {"explicit-generators"} - LACKING,
    known=TORCH_NONREENTRANT
    | CAPTURED
    | WITHIN_BUDGET
    | DROPPED
    | DECORATED
    | SWITCHED
    | EXPORTED
    | EXPORTED_BY_DYNAMO
    | known(
        "diverges",
        "an operator may save a buffer that it writes later; the stop comes before that, and garbage is used",
        "pytorch#193671",
        "noise_that_is_saved_before_it_is_drawn",
        "operators_that_a_region_ends_with",
        "operators_with_all_their_arguments",
    )
    | known(
        "crashes",
        "the stop is an Exception: a function that catches it runs on, into an assertion",
        "pytorch#101193",
        "except_exception_does_not_catch_the_stop",
        "swallowing_the_stop_changes_no_gradient",
    )
    | known(
        "diverges",
        "arguments are kept as they are, and a function that is stopped early leaves what it has changed in one for a while",
        "seen here",
        "containers_that_the_function_changes_for_a_while",
        "containers_that_the_function_changes_around_regions",
    )
    | known(
        "diverges",
        "a function that is stopped early has removed its hook and registers none",
        "seen here",
        "hooks_that_a_function_registers_anew_at_its_end",
    )
    | known(
        "crashes",
        "the stop is an exception, of which TorchScript's interpreter makes a RuntimeError that says nothing of checkpointing",
        "seen here",
        "scripted_functions",
        "callables_that_are_not_pythons",
        "functions_that_are_scripted_inside",
    )
    | known(
        "diverges",
        "tensors that the graph has freed count as needed, so the stop may come in what a context manager does at its end",
        "seen here",
        "context_managers_inside_are_left",
    )
    | known("diverges", "the stop is an Exception, and is caught", "pytorch#101193", "no_except_exception_catches_the_stop")
    | known(
        "diverges",
        "with early stop, a function that does less than in forward is not noticed when enough was saved",
        "seen here",
        "train_and_eval_flipped_before_backward",
    )
    | known(
        "diverges",
        "operators save more once a leaf was unfrozen; with early stop, tensors of one shape are then taken for each other",
        "seen here",
        "leaves_frozen_or_unfrozen_before_backward",
    ),
)
