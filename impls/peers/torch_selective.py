"""PyTorch's selective checkpoint: results of matrix products are saved, everything else is recomputed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.checkpoint import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from torch.utils.checkpoint import set_checkpoint_early_stop as set_checkpoint_early_stop

from impls.implementation import CAPABILITIES, Implementation, Known, known
from impls.known_failures import CAPTURED, WITHIN_BUDGET, without
from impls.peers.torch_limits import TORCH_NONREENTRANT
from impls.peers.torch_options import DROPPED, EXPORTED, SWITCHED
from impls.policy_limits import KEPT

_aten = torch.ops.aten
MATRIX_PRODUCTS = [_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default]
_contexts = functools.partial(create_selective_checkpoint_contexts, MATRIX_PRODUCTS)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint with contexts that save results of matrix products.

    Its own ``context_fn`` is this policy: another one is a TypeError.
    """
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=_contexts, **kwargs)


# Refused for want of a capability, so that a limit besides says nothing.
_NEEDS_CONTEXTS = TORCH_NONREENTRANT.keys() & {
    "hooks_get_what_a_policy_keeps_if_asked_to",
    "kept_results_that_may_be_changed_and_are_saved",
    *KEPT,
}

# Laws that ask for more than one backward over a region, or for another one after an error.
_ONCE: dict[str, Known] = known(
    "refuses",
    "a recomputation takes what was saved for it out of the store, so one backward alone may pass a region that saved any",
    "its own error, 'Trying to backward an extra time'; seen here, torch 2.13",
    "calls_with_early_stop",
    "calls_without_early_stop",
    "requests_for_a_subset_recompute_what_they_need",
    "every_backward_recomputes_anew",
    "many_saved_tensors",
    "autograd_grad_of_any_subset",
    "backward_with_inputs",
    "second_derivatives",
    "fast_weights",
    "repeated_backward",
    "backward_of_one_output_first",
    "an_error_leaves_hooks_and_grad_mode",
    "an_error_leaves_the_stream_of_random_numbers",
    "an_error_leaves_autocast",
    "partial_backward_passes_over_one_graph",
    "dropping_the_outputs_frees_everything",
    "recomputed_tensors_live_no_longer_than_saved_ones",
    "trees_of_regions",
    "autocast_is_forwards",
    "recomputation_is_hidden_from_hooks",
    "every_backward_draws_the_same",
    "a_partial_backward_draws_the_same",
    "second_derivatives_see_the_same_masks",
    "keyword_arguments",
    "containers_as_arguments",
    "what_a_function_changes_where_it_runs_on",
    "module_hooks_that_a_function_takes_off_for_a_while",
)
_ONCE |= known(
    "refuses",
    "a recomputation takes what was saved for it out of the store, so one backward alone may pass a region that saved any",
    "its own error, 'Trying to backward an extra time'; seen here, torch 2.13",
    "functions_of_layers",
    "gradients_of_a_batch_of_seeds",
    "gradients_that_come_in",
    seed=0,
)

_KEPT: dict[str, Known] = known(
    "diverges",
    "results of matrix products are kept from forward on, and not computed again: that is the policy",
    "https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.create_selective_checkpoint_contexts",
    "kernels_with_early_stop",
    "kernels_without_early_stop",
    "backward_of_one_output_recomputes_what_it_needs",
    "recomputed_tensors_die_as_they_are_unpacked",
    "schedules_in_any_order",
    "nothing_of_the_inside_is_alive_after_forward",
    "a_retained_backward_keeps_nothing",
    "a_differentiable_backward_keeps_nothing",
    "a_backward_that_is_refused_keeps_nothing",
    "compiled_regions_save_what_they_are_passed",
)

# Recurrent layers change products, in forward and in backward alike.
_RECURRENT: dict[str, Known] = known(
    "diverges",
    "a GRU changes a kept product in place, by parts of it that have version counters of their own: nobody notices that the "
    "recomputation gets it as changed",
    "seen here, torch 2.13",
    "modules_that_are_layers",
    seed=0,
) | known(
    "crashes",
    "an LSTM changes a kept product in place, and the error of that names neither the layer nor what may be done",
    "its own error, 'Tensor cached during selective activation checkpoint has been mutated'; seen here, torch 2.13",
    "layers_with_dropout",
    seed=0,
)

_COUNTED: dict[str, Known] = known(
    "refuses",
    "operators are counted in forward, and a recomputation that runs one more often is refused, whether or not the policy "
    "saves it: a cast that autocast's cache spared forward, a handler that runs after the stop",
    "seen here, torch 2.13",
    "autocast_cache_keeps_gradients",
    "the_determinism_check_can_be_switched_off",
    "except_exception_does_not_catch_the_stop",
    "swallowing_the_stop_changes_no_gradient",
    "no_except_exception_catches_the_stop",
)

# What the function above does, for scripts that are to need the package alone.
_BINDING = """\
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)
"""

IMPLEMENTATION = Implementation(
    name="torch-selective",
    binding=_BINDING,
    checkpoint=checkpoint,
    summary="torch.utils.checkpoint with create_selective_checkpoint_contexts, matrix products saved",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.create_selective_checkpoint_contexts",
    capabilities=frozenset(CAPABILITIES) - {"context-fn", "decorator", "explicit-generators"},
    known=without(
        TORCH_NONREENTRANT,
        "corruption_by_the_recomputation_is_reported",
        "a_function_runs_inside_of_its_context",
        "wrong_arguments_are_refused",
        "a_context_fn_that_returns_no_two_contexts_is_refused",
        "weights_cached_around_forward",
        *_NEEDS_CONTEXTS,
    )
    | _ONCE
    | CAPTURED
    | WITHIN_BUDGET
    | DROPPED
    | SWITCHED
    | EXPORTED
    | known(
        "diverges",
        "strict=True exports a region as one that does not replay random numbers: gradients are of another mask",
        "pytorch#161479; seen here, torch 2.13",
        "regions_exported_by_dynamo_equal_plain",
    )
    | _KEPT
    | _COUNTED
    | _RECURRENT
    | known(
        "diverges",
        "an operator may save a buffer that it writes later; the stop comes before that, and garbage is used",
        "pytorch#193671",
        "noise_that_is_saved_before_it_is_drawn",
        "operators_that_a_region_ends_with",
        "operators_with_all_their_arguments",
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
    | known(
        "diverges",
        "operators save more once a leaf was unfrozen, and tensors of one shape are then taken for each other",
        "seen here",
        "leaves_frozen_or_unfrozen_before_backward",
    )
    | known(
        "refuses",
        "one backward alone may pass a region, and one that runs inside it finds nothing in the store",
        "its own errors; seen here, torch 2.13",
        "autocast_is_forwards_on_another_thread",
        "backward_inside_a_region_without_early_stop",
        "two_threads_over_one_graph",
    )
    | known(
        "refuses",
        "debug=True records operators by a context_fn of its own, and here there is one already",
        "its own error, 'debug=True is incompatible with non-default context_fn'; seen here, torch 2.13",
        "debug_lists_the_operators_of_both_runs",
        "debug_lists_what_the_function_called_alone",
        "debug_is_switched_around_forward",
    )
    | known(
        "agrees",
        "Dynamo lets an option be given twice and takes the last, so that in a graph another context_fn is no TypeError",
        "seen here, torch 2.13",
        "policies_keep_what_they_say_when_compiled",
        "operators_in_place_under_a_compiled_policy",
        "operators_of_the_first_run_alone",
    ),
)
