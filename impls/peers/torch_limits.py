"""Limits of PyTorch's checkpoints, and of those that began as copies of them or are built upon them."""

from __future__ import annotations

import torch

from impls.implementation import Known, known
from impls.known_failures import CACHED, CHANGED_AGAIN, KEPT_INSIDE, LEFT_EARLY, REPLACED, RUN_TWICE, SPECIALISED, UNPACKED
from impls.peers.torch_options import FLAGS_OF_ANY_TYPE, LACKING, OPTIONS
from impls.policy_limits import KEPT

# PyTorch's reentrant checkpoint, and those that began as copies of it.
TORCH_REENTRANT: dict[str, Known] = {
    **known(
        "diverges",
        "the recomputation gets detached copies, without the attributes of the originals",
        "seen here",
        "attributes_of_arguments_are_there",
        "attributes_that_are_tensors_are_freed",
    ),
    **known(
        "crashes",
        "a tensor from outside among the outputs becomes an output of the node, which requires grad and keeps the graph; a "
        "backward through it recomputes without end",
        "seen here",
        "buffers_among_the_outputs",
    ),
    **known(
        "diverges",
        "tensors in containers are neither detached nor saved: gradients flow through them twice or not at all",
        "field report; seen here",
        "changed_arguments_that_nothing_saved",
        "hooks_see_inputs_in_containers",
    ),
    **known(
        "crashes",
        "tensors in containers are neither detached nor saved: where they are all that requires grad, backward finds no graph, "
        "and says nothing of a container",
        "seen here",
        "a_container_passed_twice",
        "containers_that_are_unusual",
        "arguments_in_containers_are_freed",
        "containers_that_a_stopped_run_leaves",
        "containers_that_nested_regions_empty",
        "containers_that_the_function_empties",
        "dataclasses_are_not_constructed_anew",
    ),
    **known(
        "diverges",
        "an argument is saved as often as it occurs, if at all",
        "seen here",
        "hooks_see_repeated_inputs_once",
    ),
    **known(
        "diverges",
        "the recomputation saves through the hooks that are active around backward",
        "pytorch#70134",
        "recomputation_is_hidden_from_hooks",
        "hooks_around_and_inside_regions",
    ),
    **known(
        "crashes",
        "the recomputation makes no graph in inference mode, and the error says that checkpointing was not necessary",
        "seen here",
        "backward_in_inference_mode",
    ),
    **known(
        "diverges",
        "torch.Generator arguments are not saved",
        "field report; seen here",
        "explicit_generators_are_replayed",
    ),
    **known(
        "diverges",
        "recomputations on two threads set the one default generator without taking turns",
        "seen here",
        "two_threads_draw_their_own",
        "recomputations_that_meet_draw_their_own",
    ),
    **known(
        "diverges",
        "forward runs on the argument itself, and the recomputation starts from what forward made of it",
        "seen here",
        "a_function_that_changes_its_argument",
    ),
    **known(
        "diverges",
        "an argument that gets no gradient gets zeros where plain leaves None",
        "seen here",
        "parameters_read_through_a_closure",
        "a_backward_of_some_outputs_keeps_nothing",
        seed=2,
    ),
    **known(
        "diverges",
        "containers are kept as they are: one that an output is put into holds the graph, and the graph the container",
        "seen here",
        "lists_that_outputs_are_appended_to",
    ),
    **known(
        "diverges",
        "containers are kept as they are: the function runs again on what they hold by then",
        "seen here",
        "containers_that_change_after_the_call",
        "containers_whose_keys_are_tensors",
    ),
}

# Of hooks on saved tensors, where nobody looks at the versions of what they pack.
VERSIONS_NOT_COMPARED: dict[str, Known] = known(
    "diverges",
    "version counters of what a region saves are not compared; of arguments, at most those passed by position are",
    "pytorch#128545; seen here",
    "corruption_by_the_recomputation_is_reported",
    "changes_between_forward_and_backward",
    "changed_closure_tensors",
    "changed_outputs",
    "a_change_is_reported_however_late",
    "a_changed_tensor_of_a_subclass",
    "changed_arguments_that_nothing_saved",
    "gradients_beside_a_changed_weight",
    "changes_inside_after_saving",
    "weights_changed_before_backward",
    "weights_changed_during_backward",
    "what_higher_order_operators_write",
    "hooks_around_do_not_hide_changes",
)

# PyTorch's non-reentrant checkpoint, with and without early stop.
TORCH_NONREENTRANT: dict[str, Known] = {
    **FLAGS_OF_ANY_TYPE,
    **known(
        "crashes",
        "the check of metadata asks for a shape, and a nested tensor of strided layout has none: an internal error of torch",
        "seen here, torch 2.13",
        "nested_tensors",
    ),
    **known(
        "refuses",
        "a recomputation in inference mode makes inference tensors, which autograd does not save",
        "seen here",
        "backward_in_inference_mode",
    ),
    **known(
        "diverges",
        "arguments of an inner region come back from hooks as other objects: type, identity and attributes are lost",
        "seen here",
        "arguments_look_the_same",
        "attributes_of_arguments_are_there",
        "gradients_that_a_function_retains_on_its_argument",
        "arguments_that_hooks_copy_stay_the_callers",
    ),
    **known(
        "diverges",
        "the deterministic flags are not restored, and a torch.device context that is active around backward alone stays",
        "pytorch#147995; seen here",
        "device_context_is_forwards",
        "deterministic_flags_are_forwards",
        seed=2,
    ),
    **known(
        "diverges",
        "operators of tensor subclasses are called where backward calls them: not if it is called as a subclass's method",
        "seen here, torch 2.13",
        "operators_of_subclasses_are_forwards",
    ),
    **known(
        "diverges",
        "modes of the whole process that the function sets when it runs again are not put back",
        "seen here",
        "modes_that_a_function_sets",
    ),
    **known(
        "refuses",
        "the default dtype is not restored; the check of metadata notices where another dtype is saved",
        "seen here",
        "default_dtype_is_forwards",
    ),
    **known(
        "refuses",
        "arguments of an inner region come back from hooks without their attributes; where fewer tensors are saved for want "
        "of one, the check of their number notices it",
        "seen here",
        "attributes_that_are_tensors_are_freed",
    ),
    **known(
        "diverges",
        "the operators of the recomputation are listed with a detach for each tensor that it saves",
        "seen here, torch 2.13",
        "debug_lists_what_the_function_called_alone",
    ),
    **VERSIONS_NOT_COMPARED,
    **known(
        "diverges",
        "with grad mode off forward runs without its context, and the exception of an early stop goes through the other one",
        "seen here",
        "a_function_runs_inside_of_its_context",
    ),
    **known(
        "diverges",
        "version counters of what a region saves are not compared, with or without the determinism check",
        "pytorch#128545; seen here",
        "changes_are_reported_in_any_case",
    ),
    **RUN_TWICE,
    **UNPACKED,
    **REPLACED,
    **CHANGED_AGAIN,
    **known(
        "diverges",
        "a scripted function is another graph from its second call on, which saves other tensors of the same shapes",
        "seen here",
        "scripted_functions_that_specialise",
    ),
    **SPECIALISED,
    **LEFT_EARLY,
    **KEPT,
    **known(
        "diverges",
        "allow_cache_entry_mutation=True switches the policy's check of versions off, and nothing else compares them",
        "its documentation; seen here, torch 2.13",
        "kept_results_that_may_be_changed_and_are_saved",
    ),
    **CACHED,
    **KEPT_INSIDE,
    **known(
        "diverges",
        "each tensor that a recomputation saves is detached for it, an operator that a mode around backward sees",
        "seen here",
        "no_operators_are_seen_but_the_functions",
    ),
    **known(
        "diverges",
        "a context_fn that cannot be called is called all the same, and the error names its type and not the option",
        "seen here",
        "wrong_arguments_are_refused",
    ),
    **known(
        "diverges",
        "what context_fn returns is unpacked or entered as it is, and the error names the types alone",
        "seen here",
        "a_context_fn_that_returns_no_two_contexts_is_refused",
    ),
    **known(
        "crashes",
        "a region under torch.func.vmap is recomputed when that is over, and an operator complains of its tensors",
        "pytorch#165880; seen here",
        "transforms_of_functions",
    ),
    **known(
        "diverges",
        "the function runs again on its arguments themselves, so a hook that it registers on one is there once more after "
        "every recomputation, and is applied as often",
        "seen here",
        "hooks_that_a_function_registers_on_its_argument",
        "hooks_that_a_function_registers_on_its_arguments_node",
        "hooks_that_a_function_replaces_on_its_argument",
        "hooks_that_another_thread_registers_meanwhile",
        "hooks_on_arguments_by_keyword_and_in_containers",
    ),
    **known(
        "diverges",
        "the function runs again on its arguments themselves, with the hooks that these have by then: if it takes a gradient "
        "with respect to one, this goes through hooks that were put on it after the call, and into what it retains",
        "seen here, torch 2.13",
        "hooks_that_an_argument_gets_after_the_call",
    ),
    **known(
        "diverges",
        "a hook that the function removes when it runs again stays off",
        "seen here",
        "hooks_that_a_function_replaces_inside_another",
    ),
    **known(
        "refuses",
        "arguments are saved tensors, and autograd saves none that was made in inference mode",
        "seen here",
        "arguments_made_in_inference_mode",
    ),
    **known(
        "diverges",
        "containers are kept as they are: the function runs again on what they hold by then",
        "seen here",
        "containers_that_change_after_the_call",
        "containers_whose_keys_are_tensors",
    ),
    **known(
        "crashes",
        "arguments are kept as they are, so a container that the function empties is empty when it runs again",
        "seen here",
        "containers_that_a_stopped_run_leaves",
        "containers_that_nested_regions_empty",
        "containers_that_the_function_empties",
    ),
    **known(
        "refuses",
        "backward calls of one GraphExecGroup may not need the same tensor",
        "its documentation and its own error",
        "calls_of_a_group_that_overlap",
    ),
    **known(
        "refuses",
        "each saved tensor can be unpacked once in a backward",
        "pytorch#82156",
        "saved_tensors_are_readable_twice",
        "reading_saved_tensors_again_recomputes_once",
        "what_is_read_again_dies_as_it_is_unpacked",
    ),
    **known(
        "diverges",
        "what a backward recomputed and did not unpack stays in the region for as long as the graph lives, and so does "
        "the bookkeeping of every backward",
        "seen here; of the same kind as pytorch#77284",
        "an_error_in_recomputation_keeps_nothing",
        "a_backward_of_some_outputs_keeps_nothing",
        "a_request_for_some_gradients_keeps_nothing",
        "what_a_request_did_not_need_dies_with_it",
        "what_a_group_left_dies_with_it",
        "steps_leave_nothing_behind",
    ),
    **known(
        "diverges",
        "an argument that the function changes in place and returns holds the graph, and the graph the region, and that the "
        "argument; the collector does not find this cycle",
        "seen here",
        "a_region_that_changes_its_input_makes_no_cycle",
    ),
    **known(
        "diverges",
        "containers are kept as they are: one that an output is put into holds the graph, and the graph the container",
        "seen here",
        "what_a_function_puts_into_its_arguments_is_freed",
        "lists_that_outputs_are_appended_to",
    ),
    **known(
        "diverges",
        "tensors that are positional arguments are saved, each as often as it occurs; those in containers and keyword "
        "arguments are kept as they are",
        "xtuner#1979; seen here",
        "hooks_see_inputs_passed_by_keyword",
        "hooks_see_inputs_in_containers",
        "hooks_see_repeated_inputs_once",
    ),
    **known(
        "diverges",
        "tensors that the graph has freed count as needed",
        "seen here",
        "what_the_graph_has_freed_is_not_recomputed",
    ),
    **known(
        "diverges",
        "torch.Generator arguments are not saved",
        "field report; seen here",
        "explicit_generators_are_replayed",
        "explicit_generators_by_keyword",
    ),
    **known(
        "diverges",
        "recomputations on two threads set the one default generator without taking turns",
        "seen here",
        "two_threads_draw_their_own",
        "recomputations_that_meet_draw_their_own",
    ),
}

if "respect_saved_tensors_hooks" not in OPTIONS:  # since torch 2.14
    TORCH_NONREENTRANT |= known(
        "refuses",
        "the option came with torch 2.14; before, it is passed on to the function",
        "seen here, torch 2.13",
        "hooks_get_what_a_policy_keeps_if_asked_to",
    )

# Options alone give a decorator since torch 2.14.
DECORATED: dict[str, Known] = {}
if LACKING:
    TORCH_NONREENTRANT |= known(
        "crashes",
        "an argument called fn is taken for the function: the generator behind the checkpoint has a parameter of that name",
        "seen here, torch 2.12 and 2.13",
        "arguments_of_any_name",
    )
else:
    DECORATED |= known(
        "crashes",
        "a decorated function is an object whose call has a parameter self: an argument of that name is given twice",
        "seen here, torch 2.14 and 2.15",
        "options_alone_give_a_decorator",
    )

# What torch 2.11 does and 2.13 no longer; 2.12 and 2.14 have not been looked at.
if torch.__version__.startswith("2.11."):
    TORCH_NONREENTRANT |= {
        **known(
            "crashes",
            "an error in a recomputation inside another one takes off hooks that are not there",
            "seen here, internal assertion in SavedTensorHooks.cpp",
            "an_error_leaves_hooks_and_grad_mode",
            "an_error_leaves_the_stream_of_random_numbers",
            "an_error_leaves_autocast",
        ),
        **known(
            "diverges",
            "what was recomputed before an error stays alive with the graph's objects after it was dropped",
            "seen here",
            "a_graph_that_failed_is_freed_when_dropped",
        ),
        **known(
            "refuses",
            "the device context is not restored; the check of metadata notices it",
            "seen here",
            "device_context_is_forwards",
        ),
    }
