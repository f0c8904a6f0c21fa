"""Limits that several implementations share, because they work in the same way: what shows them, why, and where from.

Every entry is checked: a law that an implementation keeps after all, or breaks in another way, fails the run.
"""

from __future__ import annotations

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

# Whatever calls the function itself a second time.
RUN_TWICE: dict[str, Known] = {
    **known(
        "diverges",
        "a module that the function calls is called again with it, and updates its buffers again: statistics of a batch norm "
        "count twice, and a spectral norm is another one, so that gradients are wrong, too",
        "pytorch#96136; seen here",
        "a_module_updates_its_buffers_once",
        effect="updated twice",
    ),
    **known(
        "diverges",
        "the function reads what it has put in the tensor's place: the old one is gone by the end of forward, as is what the "
        "function makes itself, so nobody can tell the two apart without keeping both",
        "seen here, torch 2.13",
        "buffers_that_the_function_replaces",
    ),
    **known(
        "diverges",
        "the function runs again without the hook, and what it saves looks the same",
        "seen here, torch 2.13",
        "hooks_that_remove_themselves",
    ),
    **known(
        "diverges",
        "the graph holds the function and the arguments for a second run, and if these lead to an output, that holds the "
        "graph: the garbage collector does not see references inside of it",
        "seen here, torch 2.13",
        "outputs_that_their_own_region_reaches_are_freed",
        "arguments_overwritten_with_the_output_are_freed",
    ),
    **known(
        "diverges",
        "an argument is kept with its history for a second run, whether the function detaches it or not",
        "seen here, torch 2.13",
        "what_a_function_detaches_is_freed",
    ),
    **known(
        "diverges",
        "what a higher-order operator calls is called again with the function, and writes once more",
        "seen here, torch 2.13",
        "higher_order_operators_write_once",
    ),
}

# Whatever brings saved tensors back by hooks: autograd puts each in a new tensor over the same memory.
_TAKEN = (
    "ctx.saved_tensors has a new tensor over the leaf's memory, and autograd takes it for the gradient as it is, instead of a "
    "copy, since nobody else refers to it: a change of .grad is one of the leaf"
)
_NEW = "ctx.saved_tensors has a new tensor over the leaf's memory, without the leaf's attributes and its .grad"
UNPACKED: dict[str, Known] = {
    **known("diverges", _TAKEN, "seen here, torch 2.13", "gradients_are_no_weights"),
    **known("diverges", _NEW, "seen here, torch 2.13", "a_saved_leaf_is_itself"),
}
UNPACKED_UNDER_HOOKS: dict[str, Known] = {
    **known("diverges", _TAKEN, "seen here, torch 2.13", "gradients_under_hooks_are_no_weights"),
    **known("diverges", _NEW, "seen here, torch 2.13", "a_saved_leaf_is_itself_under_hooks"),
}
UNPACKED_IN_OFFLOADED_MODELS: dict[str, Known] = {
    **known("diverges", _TAKEN, "seen here, torch 2.13", "gradients_of_offloaded_models_are_no_weights"),
    **known("diverges", _NEW, "seen here, torch 2.13", "a_saved_leaf_of_an_offloaded_model_is_itself"),
}

# Whatever compares how saved tensors look, and not which operators save them.
SPECIALISED: dict[str, Known] = known(
    "diverges",
    "a scripted function is another graph from its second call on, which saves other tensors of the same shapes: the gradients "
    "of the first step are wrong, unless the function has been called before",
    "seen here",
    "scripted_functions_that_save_in_another_order",
)

# Whatever makes a graph anew when it recomputes a region in which others are.
KEPT_INSIDE: dict[str, Known] = known(
    "diverges",
    "the recomputation calls the inner checkpoint, and no backward frees the graph that this makes. If its function keeps a "
    "result of it in a list in its closure, the graph holds the function, and that the graph: the garbage collector does not "
    "see references inside of it",
    "seen here, torch 2.13",
    "results_that_an_inner_function_keeps_are_freed",
)

# Whatever leaves the function at its last saved tensor.
LEFT_EARLY: dict[str, Known] = known(
    "diverges",
    "a recomputation that ends early leaves a module in the mode, or frozen, if the function would switch it back later: with "
    "try and finally, or a context manager, it is switched back",
    "seen here",
    "what_a_function_switches_back_on_a_module",
)

# Whatever compares how saved tensors look, and stops when it has as many as forward saved.
CACHED: dict[str, Known] = known(
    "diverges",
    "outside of parametrize.cached() a weight is computed anew, which saves another tensor of the same look before those that "
    "forward saved: they are taken for each other",
    "seen here",
    "weights_cached_around_forward",
)

# Whatever PyTorch's checkpoint takes the place of in a graph.
CAPTURED: dict[str, Known] = known(
    "diverges",
    'the backend "eager" runs what a region is in the graph as PyTorch\'s checkpoint without preserve_rng_state, so the '
    "recomputation draws anew: gradients are of another mask, and the stream is left elsewhere",
    "seen here, torch 2.13",
    "masks_in_graphs_that_are_not_compiled",
)

# Whatever stands in a graph beside other operators.
WITHIN_BUDGET: dict[str, Known] = {
    **known(
        "diverges",
        "the partitioner may recompute dropout outside of regions within a budget, and draws other numbers: wrong gradients",
        "pytorch#190758; seen here, torch 2.13",
        "masks_within_a_memory_budget",
    ),
    **known(
        "diverges",
        "a budget is of what is saved for backward: the partitioner does not look at what is alive then, where with a smaller "
        "budget more is recomputed at once, so the peak may be higher",
        "pytorch#197838; seen here, torch 2.13",
        "less_budget_peaks_no_higher",
    ),
}

# Whatever does not look whether the function reads other tensors when it runs again.
REPLACED: dict[str, Known] = {
    **known(
        "diverges",
        "the function reads what its names and attributes stand for by then, and nobody looks whether those are the tensors "
        "that forward read: gradients are of other values, and go to other leaves",
        "seen here",
        "names_that_are_bound_late",
        "weights_and_buffers_that_are_replaced",
        "buffers_that_the_function_replaces_and_others_keep",
        "weights_that_are_replaced_under_autocast",
        "what_is_computed_from_a_tensor_that_is_replaced",
        "regions_inside_a_functional_call",
        "modules_that_are_given_other_weights",
    ),
    **known(
        "diverges",
        "nobody looks at the values of what the function makes: if it makes others when it runs again, gradients are of these",
        "seen here, torch 2.13",
        "kept_values_that_are_computed_anew",
    ),
}

# Whatever does not look whether the function has changed what is in its closure.
CHANGED_AGAIN: dict[str, Known] = known(
    "diverges",
    "a result that the function reads through its closure, and changes in place, is changed again by the recomputation, which "
    "starts from where forward left it",
    "seen here",
    "results_from_a_closure_that_a_function_changes",
)

# What a node with a backward of its own does, whoever wrote it: forward runs without a graph inside that node.
SINGLE_NODE: dict[str, Known] = {
    **known(
        "diverges",
        "the recomputation gets its arguments detached, each a new object",
        "torch/utils/checkpoint.py, detach_variable",
        "arguments_that_are_known_by_identity",
    ),
    **known(
        "diverges",
        "the node keeps the function and its other arguments after its backward, too; of several regions, the collector does "
        "not see the way from one node to the next",
        "seen here, torch 2.13",
        "outputs_that_their_own_region_reaches_after_backward",
    ),
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
        "operators_of_subclasses_are_forwards",
    ),
    **known(
        "diverges",
        "modes of the whole process that the function sets when it runs again are not put back",
        "seen here",
        "modes_that_a_function_sets",
    ),
    **known(
        "diverges",
        "the backward inside the node goes on into whatever the function reads besides its arguments: it accumulates by "
        "itself, and runs over graphs outside of the region, before the outer backward comes to them",
        "pytorch#37266, pytorch#24005; seen here",
        "intermediates_read_through_a_closure",
        "arguments_that_hooks_copy_stay_the_callers",
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
        "backward_of_a_region_that_is_under_way",
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
        "hooks_that_a_function_registers_on_its_arguments_node",
        "hooks_that_a_function_replaces_on_its_argument",
        "hooks_that_another_thread_registers_meanwhile",
    ),
    **REPLACED,
    **CHANGED_AGAIN,
    **known(
        "diverges",
        "arguments are detached for the recomputation, by an operator that a mode around backward sees",
        "seen here",
        "no_operators_are_seen_but_the_functions",
    ),
    **known(
        "diverges",
        "a hook that the function registers is on a leaf of one recomputation, and the next registers another one",
        "seen here",
        "hooks_that_a_function_replaces_inside_another",
    ),
    **known(
        "diverges",
        "gradients go to the leaves that the function reads when it runs again",
        "seen here",
        "weights_with_the_same_values_under_autocast",
    ),
    **known(
        "diverges",
        "the recomputation reads the weights that the module has by then, and these get the gradients of copies that were "
        "called in their place",
        "seen here",
        "copies_of_weights_in_a_functional_call",
    ),
    **known(
        "diverges",
        "each backward makes the node run the function anew: a GraphExecGroup is for checkpoints that are not reentrant",
        "its documentation; seen here",
        "a_group_of_backward_calls_recomputes_once",
    ),
    **known(
        "diverges",
        "the recomputation gives gradients to whatever requires grad by then, also to what was unfrozen since forward",
        "seen here",
        "leaves_frozen_or_unfrozen_before_backward",
    ),
    **known(
        "refuses",
        "arguments are saved tensors of the node, and autograd saves none that was made in inference mode",
        "seen here",
        "arguments_made_in_inference_mode",
    ),
    **known(
        "crashes",
        "torch's custom functions take no nested tensors of strided layout, and end in an internal error",
        "seen here, torch 2.13",
        "nested_tensors",
    ),
    **known("diverges", "a floating point output of a node requires grad", "pytorch#37266", "outputs_without_grad"),
    **known(
        "diverges",
        "the recomputed outputs, and with them the whole graph, live until the node's own backward has ended",
        "seen here",
        "recomputed_tensors_die_as_they_are_unpacked",
        "each_recomputed_tensor_dies_at_its_unpack",
        "what_is_read_again_dies_as_it_is_unpacked",
    ),
    **known(
        "diverges",
        "forward saves the arguments alone, so there is nothing that the recomputation could be compared with",
        "seen here",
        "other_saved_tensors_are_reported",
        "changed_closure_tensors",
        "changed_outputs",
        "a_change_is_reported_however_late",
        "a_changed_tensor_of_a_subclass",
        "gradients_beside_a_changed_weight",
        "weights_changed_before_backward",
        "weights_changed_during_backward",
        "what_higher_order_operators_write",
        "hooks_around_do_not_hide_changes",
    ),
    **RUN_TWICE,
}

# Also of a node with a backward of its own: an operator that returns statistics besides its result shows it.
STATISTICS_REQUIRE_GRAD: dict[str, Known] = known(
    "diverges",
    "a floating point output of a node requires grad, also the statistics that a normalization returns without one",
    "pytorch#37266; seen here",
    "operators_with_all_their_arguments",
    seed=0,
)

# Without early stop; torch says so of the option, the others never had it.
RUNS_TO_THE_END: dict[str, Known] = known(
    "diverges",
    "a recomputation runs the function to its end, whatever is needed of it",
    _OWN_BACKWARD,
    "calls_with_early_stop",
    "kernels_with_early_stop",
    "backward_of_one_output_recomputes_what_it_needs",
    "early_stop_leaves_the_tail_unrun",
    "nothing_runs_after_the_operator_that_saves_last",
)

# Where the state of random number generators is neither saved nor restored.
DRAWS_ANEW: dict[str, Known] = known(
    "diverges",
    "random numbers are not restored: the recomputation draws others and moves the ambient stream",
    "pytorch#14253",
    "anomaly_mode_changes_nothing",
    "an_error_leaves_the_stream_of_random_numbers",
    "dropout_masks_are_replayed",
    "layers_with_dropout",
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
    "recomputations_that_meet_draw_their_own",
    "a_recomputation_that_waits_for_another",
    "every_device_is_replayed",
    "another_thread_draws_the_same",
    "the_same_call_draws_anew",
    "steps_of_training_with_dropout",
    "the_same_module_in_another_mode",
)

# Where the recomputation runs under the autocast that backward finds.
AUTOCAST_LOST: dict[str, Known] = known(
    "diverges",
    "autocast is not restored",
    "PyTorch 0.4; seen here",
    "autocast_is_forwards",
    "autocast_is_forwards_on_another_thread",
    "an_error_leaves_autocast",
    "the_same_function_under_another_autocast",
)
TWO_DTYPES: dict[str, Known] = known(
    "crashes",
    "autocast is not restored, so an operator may meet tensors of two dtypes, and it is the operator that complains",
    "seen here",
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

# On devices whose allocator tells its peak. For the implementations of this testbed it was seen on the simulated device.
PEAKS_WITH_OUTPUTS: dict[str, Known] = known(
    "diverges",
    "the recomputed outputs live until the node's own backward has ended, so the peak is higher than that of the plan",
    "see recomputed_tensors_die_as_they_are_unpacked",
    "the_allocator_peaks_where_the_plan_does",
)
