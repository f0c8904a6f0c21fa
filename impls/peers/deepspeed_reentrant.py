"""DeepSpeed's activation checkpointing, as it is before any ``configure``: nothing is partitioned or moved."""

from __future__ import annotations

from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from impls.implementation import Implementation, known
from impls.known_failures import (
    AUTOCAST_LOST,
    MOVED_BY_AN_ERROR,
    RUNS_TO_THE_END,
    SINGLE_NODE,
    STATISTICS_REQUIRE_GRAD,
    TWO_DTYPES,
    without,
)
from impls.peers.torch_limits import TORCH_REENTRANT

_SEEN = "seen here, deepspeed 0.19.8"

IMPLEMENTATION = Implementation(
    name="deepspeed-reentrant",
    checkpoint=checkpoint,
    summary="deepspeed.checkpointing.checkpoint (0.19.8)",
    source="https://deepspeed.readthedocs.io/en/stable/activation-checkpointing.html",
    capabilities=frozenset(
        {
            "autocast",
            "hidden-saves",
            "keyword-arguments",
            "nesting",
            "non-tensor-arguments",
            "non-tensor-outputs",
            "recomputes",
            "rng",
        }
    ),
    known=SINGLE_NODE
    | STATISTICS_REQUIRE_GRAD
    | without(RUNS_TO_THE_END, "backward_of_one_output_recomputes_what_it_needs")
    | TORCH_REENTRANT
    | AUTOCAST_LOST
    | TWO_DTYPES
    | MOVED_BY_AN_ERROR
    | known(
        "diverges",
        "arguments are moved to the device, and an OrderedDict comes to the function as a dict, without its attributes",
        _SEEN,
        "what_is_beside_tensors_in_an_argument",
    )
    | known(
        "diverges",
        "no output of the recomputation requires grad, and the backward of none at all is no error",
        _SEEN,
        "backward_in_inference_mode",
    )
    | known(
        "crashes",
        "a backward drops the arguments, retained graph or not; the next one ends in a TypeError about NoneType",
        _SEEN,
        "backward_again_without_retaining",
        "backward_of_one_output_recomputes_what_it_needs",
        "every_backward_recomputes_anew",
        "what_the_graph_has_freed_is_not_recomputed",
        "keyword_arguments",
        "two_threads_over_one_graph",
        "many_saved_tensors",
        "very_many_saved_tensors",
        "objects_are_let_go_with_the_graph",
        "containers_whose_keys_are_tensors",
        "repeated_backward",
        "backward_of_one_output_first",
        "an_error_in_recomputation_keeps_nothing",
        "backward_in_another_thread",
        "a_retained_backward_keeps_nothing",
        "a_backward_of_some_outputs_keeps_nothing",
        "a_backward_that_is_refused_keeps_nothing",
        "dropping_the_outputs_frees_everything",
        "recomputed_tensors_live_no_longer_than_saved_ones",
        "a_callable_of_any_kind_makes_no_cycle",
        "hooks_of_the_user_make_no_cycle",
        "trees_of_regions",
        "hooks_around_and_inside_regions",
        "every_backward_draws_the_same",
        "a_partial_backward_draws_the_same",
        "steps_leave_nothing_behind",
        "reading_saved_tensors_again_recomputes_once",
        "a_group_of_backward_calls_recomputes_once",
        "calls_of_a_group_that_overlap",
        "what_a_group_left_dies_with_it",
        "a_recomputation_that_waits_for_another",
        "hooks_that_a_function_replaces_on_its_argument",
        "hooks_that_another_thread_registers_meanwhile",
        "containers_that_the_function_identifies",
        "objects_that_clean_up_at_their_end",
        "a_module_is_left_with_nothing",
        "a_retry_after_an_error_in_backward",
        "containers_that_the_function_identifies_and_changes",
        "functions_of_layers",
        "gradients_that_a_function_retains_on_its_argument",
        "gradients_that_come_in",
        "hooks_that_a_function_registers_anew_at_its_end",
        "hooks_that_a_function_replaces_inside_another",
        "layers_with_dropout",
        "modules_that_are_layers",
        "outputs_that_are_changed_in_place",
        "work_of_python_grows_in_proportion",
    )
    | known(
        "diverges",
        "a second backward is refused with another error than autograd's",
        _SEEN,
        "a_second_backward_raises_what_plain_raises",
    )
    | known(
        "diverges",
        "arguments are kept as attributes of the node, so neither their versions are compared nor do hooks see them",
        _SEEN,
        "changes_between_forward_and_backward",
        "changes_inside_after_saving",
        "hooks_see_the_outermost_inputs_alone",
        "hooks_see_inputs_passed_by_keyword",
    )
    | known(
        "diverges",
        "outputs that are complex count as not differentiable",
        _SEEN,
        "complex_tensors",
    )
    | known(
        "crashes",
        "an output that is complex counts as not differentiable, and autograd finds nothing to go backward from",
        _SEEN,
        "operators_that_a_region_begins_with",
        "operators_that_a_region_ends_with",
        "layouts_are_plains",
        "nothing_of_the_inside_is_alive_after_forward",
        "values_that_are_rarely_met",
    )
    | known(
        "diverges",
        "the node makes zeros for the gradient of an output that got none, an operator that a mode around backward sees",
        _SEEN,
        "no_operators_are_seen_but_the_functions",
    )
    | known(
        "diverges",
        "containers among the arguments are built anew, a namedtuple as a tuple without its fields, which ends in an error; "
        "and where all tensors are in containers, no input requires grad: the region silently gives no gradient",
        _SEEN,
        "containers_as_arguments",
        seed=1,
    )
    | known(
        "diverges",
        "a list comes back as a tuple, a container of one as what it holds, a dict as its keys",
        _SEEN,
        "containers_as_outputs",
    )
    | known("diverges", "torch.Generator arguments are not saved", "seen here", "explicit_generators_by_keyword")
    | known(
        "diverges",
        "the function runs again on the very object in a container, with the hook that it registered on it in forward",
        "seen here",
        "hooks_on_arguments_by_keyword_and_in_containers",
    )
    | known(
        "crashes",
        "an argument that was made in inference mode cannot be kept, and the error about that fails over None",
        _SEEN,
        "arguments_made_in_inference_mode",
    )
    | known(
        "diverges",
        "containers among the arguments are built anew, in forward too, so the caller's own is not emptied",
        _SEEN,
        "containers_that_a_function_changes_around_another_region",
        "containers_that_nested_regions_empty",
        seed=0,
    )
    | known(
        "diverges",
        "containers among the arguments are built anew, in forward too, so the caller's own are not recognised",
        _SEEN,
        "containers_whose_tensors_are_watched",
    )
    | known(
        "crashes",
        "containers among the arguments are built anew, in forward too: the caller's own still holds the leaf, and where "
        "tensors in containers are all that requires grad, backward finds no graph",
        _SEEN,
        "containers_that_a_stopped_run_leaves",
    )
    | known(
        "crashes",
        "containers among the arguments are built anew, in forward too, so the caller's own is not filled",
        _SEEN,
        "containers_that_the_function_reads_by_another_name",
    )
    | known(
        "diverges",
        "strict=False exports what a node of its own calls without grad mode: gradients are lost",
        _SEEN,
        "exported_regions_equal_plain",
    ),
)
