"""PyTorch's reentrant checkpoint, as it is."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import Implementation, known
from impls.limits import RUNS_TO_THE_END, SINGLE_NODE

IMPLEMENTATION = Implementation(
    name="torch-reentrant",
    binding="from torch.utils.checkpoint import checkpoint\n\ncheckpoint = functools.partial(checkpoint, use_reentrant=True)",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=True),
    summary="torch.utils.checkpoint with use_reentrant=True",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset(
        {
            *("autocast", "early-stop-option", "hidden-saves", "nesting", "non-tensor-arguments", "non-tensor-outputs"),
            *("recomputes", "rng", "rng-option"),
        }
    ),
    known=SINGLE_NODE
    | RUNS_TO_THE_END
    | known(
        "refuses",
        "the recomputation makes no graph in inference mode",
        "seen here",
        "backward_in_inference_mode",
    )
    | known(
        "diverges",
        "the recomputation gets detached copies, without the attributes of the originals",
        "seen here",
        "attributes_of_arguments_are_there",
    )
    | known(
        "diverges",
        "options of the other variant are taken without a word",
        "seen here",
        "wrong_arguments_are_refused",
        "more_saved_tensors_are_reported",
        "missing_tensors_are_reported_in_any_case",
    )
    | known(
        "agrees",
        "the options that would switch a check or the early stop off are taken, and there is nothing to switch off",
        "seen here",
        "the_determinism_check_can_be_switched_off",
    )
    | known(
        "diverges",
        "tensors in containers are neither detached nor saved: gradients flow through them twice or not at all",
        "field report; seen here",
        "containers_as_arguments",
        "containers_as_outputs",
        "changed_arguments_that_nothing_saved",
        "hooks_see_inputs_in_containers",
    )
    | known("diverges", "an argument is saved as often as it occurs", "seen here", "hooks_see_repeated_inputs_once")
    | known(
        "diverges",
        "the recomputation saves through the hooks that are active around backward",
        "pytorch#70134",
        "recomputation_is_hidden_from_hooks",
        "hooks_around_and_inside_regions",
    )
    | known(
        "diverges",
        "an argument that gets no gradient gets zeros where plain leaves None",
        "seen here",
        "parameters_read_through_a_closure",
        "a_backward_of_some_outputs_keeps_nothing",
    )
    | known("diverges", "torch.Generator arguments are not saved", "seen here", "explicit_generators_are_replayed")
    | known(
        "diverges",
        "recomputations on two threads set the one default generator without taking turns",
        "seen here",
        "two_threads_draw_their_own",
    )
    | known(
        "diverges",
        "forward runs on the argument itself, and the recomputation starts from what forward made of it",
        "seen here",
        "a_function_that_changes_its_argument",
    ),
)
