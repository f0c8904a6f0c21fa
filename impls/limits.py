"""Limits that several implementations share, because they work in the same way: what shows them, why, and where from.

Every entry is checked: a law that an implementation keeps after all, or breaks in another way, fails the run.
"""

from __future__ import annotations

from impls.implementation import Known, known

_OWN_BACKWARD = "https://docs.pytorch.org/docs/stable/checkpoint.html, differences of the reentrant variant"

# Forward runs without a graph inside one node, and that node's backward runs a backward of its own.
SINGLE_NODE: dict[str, Known] = {
    **known(
        "diverges",
        "forward runs without grad mode and the recomputation with it, on detached copies of the arguments, which are "
        "leaves without the attributes of the originals",
        _OWN_BACKWARD,
        "grad_mode_is_forwards",
        "arguments_look_the_same",
        "attributes_of_arguments_are_there",
    ),
    **known(
        "diverges",
        "only random numbers and autocast are restored, if anything is; other modes are those that backward finds",
        "pytorch#147995",
        "device_context_is_forwards",
        "default_dtype_is_forwards",
        "deterministic_flags_are_forwards",
        "train_and_eval_flipped_before_backward",
    ),
    **known(
        "diverges",
        "the node's own backward sends gradients through what the function reads besides its arguments, and frees or "
        "reaches graphs outside of the region",
        "pytorch#37266, pytorch#24005; seen here",
        "intermediates_read_through_a_closure",
        "trees_of_regions_that_share_values_through_closures",
        "accumulation_hooks_fire_once",
    ),
    **known(
        "diverges",
        "forward makes no graph, so a tensor that leaves the function by another way than its result has no gradient",
        "seen here",
        "escaping_intermediates",
    ),
    **known(
        "refuses",
        "forward makes no graph, and a hook needs a tensor that requires grad",
        "seen here",
        "tensor_hooks_inside",
    ),
    **known(
        "diverges",
        "every floating point output is an output of the node and so requires grad",
        "pytorch#37266",
        "outputs_without_grad",
    ),
    **known(
        "refuses",
        "the recomputation makes no graph in inference mode",
        "seen here",
        "backward_in_inference_mode",
    ),
    **known(
        "diverges",
        "the function runs to its end in each recomputation, also where nothing of it is needed",
        _OWN_BACKWARD,
        "calls_with_early_stop",
        "kernels_with_early_stop",
        "backward_of_one_output_recomputes_what_it_needs",
        "requests_for_a_subset_recompute_what_they_need",
        "early_stop_leaves_the_tail_unrun",
    ),
    **known(
        "diverges",
        "the recomputed outputs, and with them the graph, live until the node's own backward has ended",
        "seen here",
        "recomputed_tensors_die_as_they_are_unpacked",
        "each_recomputed_tensor_dies_at_its_unpack",
    ),
    **known(
        "diverges",
        "forward saves the arguments alone: nothing is there that a recomputation could be compared with",
        "seen here",
        "other_saved_tensors_are_reported",
        "changed_closure_tensors",
        "gradients_beside_a_changed_weight",
        "weights_changed_before_backward",
        "hooks_around_do_not_hide_changes",
    ),
}
