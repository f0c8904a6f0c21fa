"""torch_remat's checkpoint, as it is: PyTorch's non-reentrant one, always run to its end, with marks for what to keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_remat

from impls.implementation import CAPABILITIES, Implementation, known
from impls.known_failures import CAPTURED, DRAWS_ANEW, RUNS_TO_THE_END, WITHIN_BUDGET, without
from impls.peers.torch_limits import TORCH_NONREENTRANT
from impls.peers.torch_options import DROPPED, EXPORTED_BY_DYNAMO
from impls.policy_limits import KEPT

_SOURCE = "https://pypi.org/project/torch-remat/0.2.2/"
_OPTIONS = ("determinism_check", "preserve_rng_state")


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``torch_remat.checkpoint(**options)(function)(*args, **kwargs)``; the options are those that others have too."""
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)


# What the function above does, for scripts that are to need the package alone.
_BINDING = """\
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)
"""

IMPLEMENTATION = Implementation(
    name="torch-remat",
    binding=_BINDING,
    checkpoint=checkpoint,
    summary="torch_remat.checkpoint (0.2.2)",
    source=_SOURCE,
    capabilities=frozenset(CAPABILITIES)
    - {
        "context-fn",
        "decorator",
        "early-stop",
        "early-stop-option",
        "exact-sums",
        "explicit-generators",
        "nesting",
        "non-tensor-outputs",
        "rng",
    },
    known=without(
        TORCH_NONREENTRANT,
        "a_change_is_reported_however_late",
        "a_function_runs_inside_of_its_context",
        "arguments_look_the_same",
        "attributes_of_arguments_are_there",
        "attributes_that_are_tensors_are_freed",
        "gradients_that_a_function_retains_on_its_argument",
        "changed_outputs",
        "containers_that_a_stopped_run_leaves",
        "device_context_is_forwards",
        "nested_tensors",
        "transforms_of_functions",
        "wrong_arguments_are_refused",
        "a_context_fn_that_returns_no_two_contexts_is_refused",
        "what_a_function_switches_back_on_a_module",
        "kept_results_that_may_be_changed_and_are_saved",
        "results_that_an_inner_function_keeps_are_freed",
        *KEPT,
    )
    | DRAWS_ANEW
    | CAPTURED
    | WITHIN_BUDGET
    | DROPPED
    | EXPORTED_BY_DYNAMO
    | known(
        "agrees",
        "compiled, a region is PyTorch's: it takes options, and the graph draws masks again alike, whatever is said of random "
        "numbers",
        "seen here, torch_remat 0.2.2",
        "masks_of_compiled_regions_are_replayed",
        "masks_of_regions_within_a_memory_budget",
        "policies_keep_what_they_say_when_compiled",
        "operators_in_place_under_a_compiled_policy",
        "operators_of_the_first_run_alone",
    )
    | known(
        "diverges",
        "under hooks that copy, the function runs again on another object of the same node: ``retain_grad`` on that takes the "
        "gradient away from the caller's",
        "seen here, torch_remat 0.2.2",
        "arguments_that_hooks_copy_stay_the_callers",
    )
    | known(
        "diverges",
        "an output comes back as another object, without the attributes that the function gave it",
        "seen here",
        "attributes_of_arguments_are_there",
        "buffers_among_the_outputs",
    )
    | known(
        "refuses",
        "an output is a view from a custom Function, which autograd lets nobody change in place",
        "autograd's own error; seen here, torch_remat 0.2.2",
        "outputs_that_are_changed_in_place",
    )
    | RUNS_TO_THE_END
    | known("diverges", "a recomputation runs to its end", _SOURCE, "requests_for_a_subset_recompute_what_they_need")
    | known("agrees", "without nesting, an early stop changes no number of calls", "the rules", "calls_with_early_stop")
    | known(
        "diverges",
        "random numbers are not restored",
        _SOURCE,
        "second_derivatives_see_the_same_masks",
    )
    | known(
        "diverges",
        "the determinism check is off unless it is asked for",
        _SOURCE,
        "default_dtype_is_forwards",
        "other_saved_tensors_are_reported",
        "train_and_eval_flipped_before_backward",
    )
    | known(
        "crashes",
        "the determinism check is off unless it is asked for: operators get other tensors than forward saved, and complain of "
        "their shapes",
        "seen here, torch_remat 0.2.2",
        "contexts_around_forward_alone",
        "jagged_tensors_with_offsets_of_their_own",
    )
    | known(
        "diverges",
        "a recomputation begins when the gradient reaches an output of the region, before anything is unpacked",
        "seen here, torch_remat 0.2.2",
        "recomputed_tensors_die_as_they_are_unpacked",
    )
    | known(
        "diverges",
        "with several outputs, some of what was recomputed before an error lives on until another backward",
        "seen here, torch_remat 0.2.2",
        "a_graph_that_failed_is_freed_when_dropped",
    )
    | known(
        "crashes",
        "what a region returns goes through a node that makes a view of it, and tensors in compressed sparse layouts have none",
        "seen here, torch_remat 0.2.2",
        "operators_that_a_region_begins_with",
        "operators_that_a_region_ends_with",
        "operators_with_all_their_arguments",
        seed=0,
    )
    | known(
        "crashes",
        "the token of a ContextVar is kept with the region: two threads that recompute it at once reset each other's",
        "seen here, torch_remat 0.2.2",
        "two_threads_over_one_graph",
    )
    | known(
        "refuses",
        "a region returns a tensor, or a tuple or list of tensors",
        _SOURCE,
        "containers_as_outputs",
        "containers_that_are_unusual",
    )
    | known(
        "diverges",
        "operators save more once a leaf was unfrozen, and tensors of one shape are then taken for each other",
        "seen here, torch_remat 0.2.2",
        "leaves_frozen_or_unfrozen_before_backward",
    )
    | known(
        "crashes",
        "what make_fx traces is taken for torch.compile, where PyTorch's checkpoint asserts that contexts are dispatch modes",
        "seen here, torch_remat 0.2.2",
        "steps_that_make_fx_traces",
    )
    | known(
        "refuses",
        "the package passes debug to PyTorch's checkpoint itself, so a user's own is given twice",
        "its TypeError, 'got multiple values for argument'; seen here, torch_remat 0.2.2",
        "debug_lists_the_operators_of_both_runs",
        "debug_lists_what_the_function_called_alone",
    )
    | known(
        "refuses",
        "the package has no switch of its own",
        "its public names, torch_remat 0.2.2",
        "debug_is_switched_around_forward",
    ),
)
