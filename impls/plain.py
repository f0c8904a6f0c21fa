"""No checkpointing: the function is called and autograd keeps what it saves. Every law compares with this."""

from __future__ import annotations

from typing import Any

from impls.implementation import CAPABILITIES, Implementation, known
from impls.known_failures import WITHIN_BUDGET


def checkpoint(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Call ``function(*args, **kwargs)`` and return its value; without any argument, a decorator that changes nothing."""
    return function(*args, **kwargs) if args or function is not None else lambda f: f


IMPLEMENTATION = Implementation(
    name="plain",
    checkpoint=checkpoint,
    summary="no checkpointing: autograd keeps everything",
    source="torch.autograd",
    capabilities=frozenset(CAPABILITIES)
    - {
        "recomputes",
        "hidden-saves",
        "early-stop",
        "early-stop-option",
        "rng-option",
        "context-fn",
        "determinism-check",
    },
    known=known(
        "diverges",
        "plain keeps everything that it saves, and runs nothing again",
        "by definition",
        "calls_with_early_stop",
        "kernels_with_early_stop",
        "backward_of_one_output_recomputes_what_it_needs",
        "requests_for_a_subset_recompute_what_they_need",
        "a_leaf_at_depth_d_runs_d_plus_one_times",
        "a_parent_is_recomputed_once_for_all_its_regions",
        "recomputed_tensors_die_as_they_are_unpacked",
        "what_the_graph_has_freed_is_not_recomputed",
        "an_error_in_recomputation_keeps_nothing",
        "attributes_that_are_tensors_are_freed",
        "schedules_in_any_order",
        "nothing_of_the_inside_is_alive_after_forward",
        "a_retained_backward_keeps_nothing",
        "a_backward_of_some_outputs_keeps_nothing",
        "a_request_for_some_gradients_keeps_nothing",
        "containers_that_nested_regions_empty",
        "a_differentiable_backward_keeps_nothing",
        "what_a_request_did_not_need_dies_with_it",
        "a_backward_that_is_refused_keeps_nothing",
        "what_a_group_left_dies_with_it",
        "options_alone_give_a_decorator",
        "a_copied_module_is_checkpointed_as_well",
        "hooks_see_the_outermost_inputs_alone",
        "hooks_see_inputs_passed_by_keyword",
        "hooks_see_inputs_in_containers",
        "hooks_see_repeated_inputs_once",
        "the_allocator_peaks_where_the_plan_does",
        "compiled_regions_save_what_they_are_passed",
        "compiled_regions_are_recomputed_once",
        "the_process_grows_by_outputs_alone",
    )
    | WITHIN_BUDGET
    | known(
        "diverges",
        "there are no regions, so what is within them is recomputed as what is beside them",
        "see masks_within_a_memory_budget",
        "masks_of_regions_within_a_memory_budget",
    )
    | known("diverges", "hooks switch the check of versions off", "pytorch#128545", "hooks_around_do_not_hide_changes")
    | known(
        "agrees",
        "there is no recomputation",
        "by definition",
        "containers_that_a_stopped_run_leaves",
        "early_stop_leaves_the_tail_unrun",
        "nothing_runs_after_the_operator_that_saves_last",
    ),
)
