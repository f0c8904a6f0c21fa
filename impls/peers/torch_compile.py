"""PyTorch's checkpoint, compiled: torch.compile with the backend aot_eager around a region that checkpoints inside."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch._dynamo
import torch.utils.checkpoint

from impls.implementation import Implementation, Known, known
from impls.known_failures import CAPTURED, WITHIN_BUDGET
from impls.peers.torch_options import LACKING


def _region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def _compiled() -> Callable[..., Any]:
    """The region, compiled by itself: what is compiled is kept with the code, and counted by it up to a limit."""
    return torch.compile(FunctionType(_region.__code__.replace(), dict(_region.__globals__)), backend="aot_eager")


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint, compiled anew; the compiler decides what to recompute.

    What the function does besides computing happens in forward alone (skip_fwd_side_effects_in_bwd_under_checkpoint):
    with the option's default, a function that notes anything is not compiled at all. Raises TypeError for what is not
    callable.
    """
    if torch.compiler.is_compiling():
        return _region(function, *args, **kwargs)  # a region inside belongs to what is being compiled
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return _compiled()(function, *args, **kwargs)


_SEEN = "seen here, torch 2.13"

# The function is traced once; what runs later on are two graphs.
_TRACED: dict[str, Known] = {
    **known(
        "diverges",
        "backward runs a graph, never the function, and what is recomputed in it is the partitioner's choice",
        "https://docs.pytorch.org/docs/stable/torch.compiler.html",
        "calls_with_early_stop",
        "kernels_with_early_stop",
        "calls_without_early_stop",
        "kernels_without_early_stop",
        "backward_of_one_output_recomputes_what_it_needs",
        "requests_for_a_subset_recompute_what_they_need",
        "a_leaf_at_depth_d_runs_d_plus_one_times",
        "a_parent_is_recomputed_once_for_all_its_regions",
    ),
    **known(
        "diverges",
        "what the function would do another time does not happen, so nothing can differ",
        _SEEN,
        "more_saved_tensors_are_reported",
        "missing_tensors_are_reported_in_any_case",
    ),
    **known(
        "agrees",
        "no recomputation goes through the function, so there is nothing to switch off, to leave early or to keep too long",
        _SEEN,
        "backward_inside_a_region_without_early_stop",
        "the_determinism_check_can_be_switched_off",
        "context_managers_without_finally",
        "early_stop_leaves_the_tail_unrun",
        "nothing_runs_after_the_operator_that_saves_last",
        "recomputed_tensors_die_as_they_are_unpacked",
        "a_differentiable_backward_keeps_nothing",
    ),
    **known(
        "diverges",
        "weights that are cached while a region is traced get wrong gradients",
        _SEEN,
        "weights_cached_around_forward",
    ),
    **known(
        "agrees",
        "contexts that only make a policy become marks in the graph; others end in an error of the compiler",
        _SEEN,
        "selective_checkpointing",
        "policies_keep_what_they_say_when_compiled",
        "a_policy_takes_no_hooks_for_the_users",
        "what_is_drawn_after_what_a_policy_keeps",
    ),
    **known(
        "diverges",
        "what the function asks of the process while it is traced is not what holds when it is called",
        _SEEN,
        "arguments_look_the_same",
        "device_context_is_forwards",
        "deterministic_flags_are_forwards",
        "default_dtype_is_forwards",
        "modes_that_a_function_sets",
    ),
    **known(
        "diverges",
        "casts are moved in the graph, so gradients in half precision are rounded in other places",
        _SEEN,
        "autocast_is_forwards",
    ),
}

_TRACED |= known(
    "diverges",
    "what runs is what the compiler made of the function, detached tensors among it",
    _SEEN,
    "no_operators_are_seen_but_the_functions",
)
_TRACED |= known(
    "diverges",
    "a hook in the function, or a Function's backward, is traced with it: an error that it would raise later never comes",
    _SEEN,
    "a_retry_after_an_error_in_backward",
)
_TRACED |= known(
    "agrees",
    "in a graph what is saved and recomputed is as due: what does not happen is that the function is called again",
    _SEEN,
    "compiled_regions_save_what_they_are_passed",
    "compiled_regions_are_recomputed_once",
)

if not LACKING:
    _TRACED |= known(
        "diverges",
        "the compiled graph saves what the partitioner chose, whatever the policy keeps",
        "seen here, torch 2.15",
        "hooks_get_what_a_policy_keeps_if_asked_to",
    )

# What breaks the graph is run by PyTorch's non-reentrant checkpoint as it is.
_UNTRACED: dict[str, Known] = known(
    "refuses",
    "what cannot be traced runs as it is, and arguments of its regions come back from hooks without their attributes",
    _SEEN,
    "attributes_that_are_tensors_are_freed",
)
_UNTRACED |= known(
    "diverges",
    "what cannot be traced, a subclass of Tensor here, comes back from hooks as a plain tensor without attributes",
    _SEEN,
    "attributes_of_arguments_are_there",
)
_UNTRACED |= known(
    "crashes",
    "what cannot be traced runs as it is, and the check of metadata asks a nested tensor of strided layout for its shape",
    _SEEN,
    "nested_tensors",
)
_UNTRACED |= known(
    "diverges",
    "what cannot be traced runs as it is, and arguments come back from hooks as other objects",
    _SEEN,
    "gradients_that_a_function_retains_on_its_argument",
    "arguments_that_hooks_copy_stay_the_callers",
)
_UNTRACED |= known(
    "diverges",
    "a function that waits in its recomputation for another thread's waits in vain, though not every time: theirs take turns",
    _SEEN,
    "regions_of_two_threads_run_at_once",
)

_UNTRACED |= known(
    "refuses",
    "a Function that reads its saved tensors twice is not traced, and each can be unpacked once in a backward",
    _SEEN,
    "reading_saved_tensors_again_recomputes_once",
    "what_is_read_again_dies_as_it_is_unpacked",
)

_UNTRACED |= known(
    "crashes",
    "a scripted function is not traced; the stop is an exception, of which TorchScript's interpreter makes a RuntimeError",
    _SEEN,
    "scripted_functions",
    "callables_that_are_not_pythons",
)
_UNTRACED |= known(
    "crashes",
    "a scripted function is not traced; the stop is an exception, of which TorchScript's interpreter makes a RuntimeError",
    _SEEN,
    "functions_that_are_scripted_inside",
    seed=0,
)
_UNTRACED |= known(
    "diverges",
    "a scripted function is not traced, and is another graph from its second call on, which saves other tensors of the same "
    "shapes",
    _SEEN,
    "scripted_functions_that_specialise",
    "scripted_functions_that_save_in_another_order",
)
_UNTRACED |= known(
    "diverges",
    "a function that freezes a module is not traced: a recomputation that ends early leaves the module frozen",
    _SEEN,
    "what_a_function_switches_back_on_a_module",
)
_UNTRACED |= known(
    "diverges",
    "a function that takes off a hook, or asks for a node, is not traced: it runs again on its arguments themselves, and "
    "hooks that it registers are there once more",
    _SEEN,
    "hooks_that_a_function_replaces_on_its_argument",
    "hooks_that_a_function_registers_on_its_arguments_node",
)
_UNTRACED |= known(
    "diverges",
    "a function that takes off a hook is not traced: what it takes off when it runs again stays off, also if it is stopped "
    "before it registers another",
    _SEEN,
    "hooks_that_a_function_replaces_inside_another",
    "hooks_that_a_function_registers_anew_at_its_end",
)
_UNTRACED |= known(
    "diverges",
    "an operator may save a buffer that it writes later; where it is not traced, the early stop comes before that",
    "pytorch#193671; seen here, torch 2.13",
    "operators_that_a_region_ends_with",
    "operators_with_all_their_arguments",
    seed=0,
)

_INTERNAL: dict[str, Known] = known(
    "crashes",
    "a value that a region inside a region hands out past its result ends in an internal error of Dynamo",
    _SEEN,
    "all_claimed_features_combined",
    "trees_of_regions_that_share_values_through_closures",
    seed=2,
)
_INTERNAL |= known(
    "crashes",
    "a value that a region inside a region hands out past its result ends in an internal error of Dynamo",
    _SEEN,
    "two_threads_ask_for_parts_of_nested_regions",
    "containers_that_an_inner_region_alone_is_passed",
)

_INTERNAL |= known(
    "crashes",
    "arguments are kept as they are, so a container that the function empties is empty when it runs again",
    _SEEN,
    "containers_that_nested_regions_empty",
)
_INTERNAL |= known(
    "crashes",
    "a mask that a region inside a region hands out past its result, in a dict, ends in an internal error of Dynamo",
    _SEEN,
    "other_tensors_with_the_same_values",
    seed=0,
)
_INTERNAL |= known(
    "crashes",
    "a number that the function takes out of a list and passes to a region in another ends in an assertion of Dynamo",
    _SEEN,
    "containers_that_the_function_changes_around_regions",
    seed=0,
)
_INTERNAL |= known(
    "crashes",
    "under torch.func.vmap a region recomputes in backward, when the transform that its tensors belong to has ended",
    _SEEN,
    "transforms_of_functions",
    seed=0,
)
_INTERNAL |= known(
    "crashes",
    "a function that asks whether casts are cached, and switches it, ends in an internal error of Dynamo",
    _SEEN,
    "an_autocast_cache_that_a_function_switches",
)

_REFUSED: dict[str, Known] = {
    **known(
        "refuses",
        "inference mode around backward makes the recomputation save nothing",
        _SEEN,
        "backward_in_inference_mode",
    ),
    **known(
        "refuses",
        "the determinism flag may not change between forward and backward: the compiled backward checks it",
        "its own error; seen here, torch 2.13",
        "an_error_leaves_modes_as_they_were",
    ),
    **known(
        "crashes",
        "an option that is wrong ends in an internal error of the compiler, which is no TypeError or ValueError",
        _SEEN,
        "wrong_arguments_are_refused",
    ),
    **known(
        "crashes",
        "thousands of operators cannot be compiled on a thread with a small stack: the process ends with a segmentation fault, "
        "as it does without a checkpoint",
        _SEEN,
        "deep_graphs_are_freed",
    ),
}

_CHANGED: dict[str, Known] = {
    **known(
        "diverges",
        "an output that plain saves is computed again from inputs: backward gives the gradient of what forward returned",
        _SEEN,
        "changed_outputs",
        "a_change_is_reported_however_late",
        "changes_are_reported_in_any_case",
    ),
    **known(
        "diverges",
        "a weight whose data is swapped before backward is read as it is by then: nothing compares what it was",
        _SEEN,
        "weights_and_buffers_that_are_replaced",
        "weights_that_are_replaced_under_autocast",
    ),
    **known(
        "crashes",
        "a weight whose data is swapped before backward is read as it is by then, and an operator complains of another dtype",
        _SEEN,
        "modules_that_are_given_other_weights",
    ),
    **known(
        "diverges",
        "a function that changes its argument becomes one that returns the change, and what is recomputed starts from it: "
        "a wrong gradient",
        _SEEN,
        "a_function_that_changes_its_argument",
    ),
    **known(
        "diverges",
        "a buffer that the module changes in place is changed again by what is recomputed: batches are counted twice",
        _SEEN,
        "a_module_updates_its_buffers_once",
    ),
    **known(
        "diverges",
        "where hooks are active, version counters are not compared",
        "pytorch#128545",
        "hooks_around_do_not_hide_changes",
    ),
    **known(
        "diverges",
        "the graph saves the inputs that its backward reads, each once, and results that the partitioner keeps",
        _SEEN,
        "hooks_see_the_outermost_inputs_alone",
        "hooks_see_inputs_passed_by_keyword",
        "hooks_see_inputs_in_containers",
        "hooks_see_repeated_inputs_once",
    ),
}

_KEPT: dict[str, Known] = {
    **known(
        "diverges",
        "an error while a function is traced, and the guards on what it reads, hold it in cycles until the collector runs",
        _SEEN,
        "an_error_in_forward_keeps_nothing",
        "schedules_in_any_order",
        "a_region_that_changes_its_input_makes_no_cycle",
    ),
    **known(
        "diverges",
        "an object that the function puts a value into is held in a cycle, with the value, until the collector runs",
        _SEEN,
        "what_a_function_puts_into_its_arguments_is_freed",
    ),
    **known(
        "diverges",
        "the compiler's notes on each function that it compiled stay after the function is gone",
        _SEEN,
        "steps_leave_nothing_behind",
    ),
    **known(
        "diverges",
        "torch.Generator arguments are not replayed",
        _SEEN,
        "explicit_generators_are_replayed",
        "explicit_generators_by_keyword",
    ),
    **known(
        "refuses",
        "arguments are saved tensors, and autograd saves none that was made in inference mode",
        _SEEN,
        "arguments_made_in_inference_mode",
    ),
    **known(
        "diverges",
        "versions of saved tensors of a subclass are not compared",
        _SEEN,
        "a_changed_tensor_of_a_subclass",
    ),
}

# What the function above does, for scripts that are to need the package alone.
_BINDING = """\
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)
"""

IMPLEMENTATION = Implementation(
    name="torch-compile",
    binding=_BINDING,
    checkpoint=checkpoint,
    summary="torch.compile, backend aot_eager, around a region of torch.utils.checkpoint",
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    capabilities=frozenset(
        {
            *(
                "autocast",
                "closure-gradients",
                "compiled",
                "containers",
                "keyword-arguments",
                "nesting",
                "non-tensor-arguments",
            ),
            *("non-tensor-outputs", "rng", "rng-option", "subset-requests"),
        }
    ),
    known=CAPTURED | WITHIN_BUDGET | _TRACED | _UNTRACED | _INTERNAL | _REFUSED | _CHANGED | _KEPT,
    share=0.1,  # each region of each program is compiled anew
)
