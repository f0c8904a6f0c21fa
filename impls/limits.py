"""Limits that several implementations share, because they work in the same way: what shows them, why, and where from.

Every entry is checked: a law that an implementation keeps after all, or breaks in another way, fails the run.
"""

from __future__ import annotations

import torch

from impls.implementation import Known, known


def without(limits: dict[str, Known], *laws: str) -> dict[str, Known]:
    """The limits but for those under the given laws. Raises KeyError for a law that is not among them."""
    kept = dict(limits)
    for law in laws:
        del kept[law]
    return kept


def among(limits: dict[str, Known], *laws: str) -> dict[str, Known]:
    """The limits under the given laws. Raises KeyError for a law that is not among them."""
    return {law: limits[law] for law in laws}


_OWN_BACKWARD = "https://docs.pytorch.org/docs/stable/checkpoint.html, differences of the reentrant variant"

# What a node with a backward of its own does, whoever wrote it: forward runs without a graph inside that node.
SINGLE_NODE: dict[str, Known] = {
    **known(
        "diverges",
        "forward runs the function without grad mode and the recomputation with it, on leaves in place of the arguments",
        _OWN_BACKWARD,
        "grad_mode_is_forwards",
        "arguments_look_the_same",
    ),
    **known(
        "diverges",
        "random numbers and autocast are restored, if anything is; other modes are those that backward finds",
        "pytorch#147995",
        "device_context_is_forwards",
        "default_dtype_is_forwards",
        "deterministic_flags_are_forwards",
        "train_and_eval_flipped_before_backward",
    ),
    **known(
        "diverges",
        "the backward inside the node goes on into whatever the function reads besides its arguments: it accumulates by "
        "itself, and runs over graphs outside of the region, before the outer backward comes to them",
        "pytorch#37266, pytorch#24005; seen here",
        "intermediates_read_through_a_closure",
        "trees_of_regions_that_share_values_through_closures",
        "accumulation_hooks_fire_once",
    ),
    **known(
        "diverges",
        "forward makes no graph, so a tensor that leaves the function by another way than its result has no gradient",
        "field report; seen here",
        "escaping_intermediates",
    ),
    **known(
        "diverges",
        "without an argument that requires grad there is no node: what the function reads gets no gradient, which is an "
        "error only where nothing else in the loss requires grad",
        "pytorch#7617",
        "no_input_requires_grad",
    ),
    **known(
        "refuses",
        "forward makes no graph inside the function, so there is nothing to hook or to differentiate",
        "pytorch#90105; seen here",
        "tensor_hooks_inside",
        "backward_inside_a_region",
        "backward_of_another_region_inside_a_region",
    ),
    **known(
        "diverges",
        "a request for some gradients sees no way from the node to what the function reads besides its arguments: where "
        "nothing else makes the node run and refuse, that gradient is missing without an error",
        "seen here",
        "autograd_grad_of_any_subset",
        "backward_with_inputs",
    ),
    **known(
        "diverges",
        "a hook that the function registers on its argument is registered in forward, and again on the leaf that stands for "
        "the argument when the function runs again: it is applied twice",
        "seen here",
        "hooks_that_a_function_registers_on_its_argument",
    ),
    **known("diverges", "a floating point output of a node requires grad", "pytorch#37266", "outputs_without_grad"),
    **known(
        "diverges",
        "the recomputed outputs, and with them the whole graph, live until the node's own backward has ended",
        "seen here",
        "recomputed_tensors_die_as_they_are_unpacked",
        "each_recomputed_tensor_dies_at_its_unpack",
    ),
    **known(
        "diverges",
        "forward saves the arguments alone, so there is nothing that the recomputation could be compared with",
        "seen here",
        "other_saved_tensors_are_reported",
        "changed_closure_tensors",
        "changed_outputs",
        "gradients_beside_a_changed_weight",
        "weights_changed_before_backward",
        "weights_changed_during_backward",
        "hooks_around_do_not_hide_changes",
    ),
}

# Without early stop; torch says so of the option, the others never had it.
RUNS_TO_THE_END: dict[str, Known] = known(
    "diverges",
    "a recomputation runs the function to its end, whatever is needed of it",
    _OWN_BACKWARD,
    "calls_with_early_stop",
    "kernels_with_early_stop",
    "backward_of_one_output_recomputes_what_it_needs",
    "early_stop_leaves_the_tail_unrun",
)

# Where the state of random number generators is neither saved nor restored.
DRAWS_ANEW: dict[str, Known] = known(
    "diverges",
    "random numbers are not restored: the recomputation draws others and moves the ambient stream",
    "pytorch#14253",
    "anomaly_mode_changes_nothing",
    "an_error_leaves_the_stream_of_random_numbers",
    "dropout_masks_are_replayed",
    "ambient_stream_is_left_alone",
    "draws_between_regions",
    "all_distributions_are_replayed",
    "noise_that_is_saved_before_it_is_drawn",
    "every_backward_draws_the_same",
    "a_partial_backward_draws_the_same",
    "generator_state_is_left_alone",
    "seeding_inside",
    "fork_rng_inside",
    "an_error_leaves_the_stream_alone",
    "two_threads_draw_their_own",
    "every_device_is_replayed",
    "cuda_is_not_initialised",
    "another_thread_draws_the_same",
    "the_same_call_draws_anew",
)

# Where the recomputation runs under the autocast that backward finds.
AUTOCAST_LOST: dict[str, Known] = known(
    "diverges",
    "autocast is not restored",
    "PyTorch 0.4; seen here",
    "autocast_is_forwards",
    "an_error_leaves_autocast",
)
TWO_DTYPES: dict[str, Known] = known(
    "refuses",
    "autocast is not restored, so an operator may meet tensors of two dtypes",
    "seen here, fairscale 0.4.13 and deepspeed 0.19.8",
    "autocast_cache_keeps_gradients",
)

# Where nothing sees to it that the state of the generator comes back after an error, too.
MOVED_BY_AN_ERROR: dict[str, Known] = known(
    "diverges",
    "the state of the generator is put back after the recomputation, unless that ends with an error",
    "seen here, fairscale 0.4.13 and deepspeed 0.19.8",
    "an_error_leaves_the_stream_alone",
    "an_error_leaves_the_stream_of_random_numbers",
)

# PyTorch's reentrant checkpoint, and those that began as copies of it.
TORCH_REENTRANT: dict[str, Known] = {
    **known(
        "diverges",
        "the recomputation gets detached copies, without the attributes of the originals",
        "seen here",
        "attributes_of_arguments_are_there",
    ),
    **known(
        "diverges",
        "tensors in containers are neither detached nor saved: gradients flow through them twice or not at all",
        "field report; seen here",
        "changed_arguments_that_nothing_saved",
        "hooks_see_inputs_in_containers",
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
        "refuses",
        "the recomputation makes no graph in inference mode",
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
    "changed_arguments_that_nothing_saved",
    "gradients_beside_a_changed_weight",
    "changes_inside_after_saving",
    "weights_changed_before_backward",
    "weights_changed_during_backward",
    "hooks_around_do_not_hide_changes",
)

# PyTorch's non-reentrant checkpoint, with and without early stop.
TORCH_NONREENTRANT: dict[str, Known] = {
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
    ),
    **known(
        "diverges",
        "the deterministic flags are not restored, and a torch.device context that is active around backward alone stays",
        "pytorch#147995; seen here",
        "device_context_is_forwards",
        "deterministic_flags_are_forwards",
    ),
    **known(
        "refuses",
        "the default dtype is not restored; the check of metadata notices where another dtype is saved",
        "seen here",
        "default_dtype_is_forwards",
    ),
    **VERSIONS_NOT_COMPARED,
    **known(
        "diverges",
        "the function runs again on its arguments themselves, so a hook that it registers on one is there once more after "
        "every recomputation, and is applied as often",
        "seen here",
        "hooks_that_a_function_registers_on_its_argument",
    ),
    **known(
        "crashes",
        "arguments are kept as they are, so a container that the function empties is empty when it runs again",
        "seen here",
        "containers_that_the_function_empties",
    ),
    **known(
        "refuses",
        "each saved tensor can be unpacked once in a backward",
        "pytorch#82156",
        "saved_tensors_are_readable_twice",
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
    ),
}

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
