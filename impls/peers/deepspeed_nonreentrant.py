"""DeepSpeed's non-reentrant activation checkpointing, as it is before any ``configure``."""

from __future__ import annotations

from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint

from impls.implementation import CAPABILITIES, Implementation, known
from impls.known_failures import (
    AUTOCAST_LOST,
    CHANGED_AGAIN,
    MOVED_BY_AN_ERROR,
    REPLACED,
    RUN_TWICE,
    RUNS_TO_THE_END,
    TWO_DTYPES,
    UNPACKED,
    among,
)
from impls.peers.torch_limits import TORCH_NONREENTRANT, VERSIONS_NOT_COMPARED

_SEEN = "seen here, deepspeed 0.19.8"

IMPLEMENTATION = Implementation(
    name="deepspeed-nonreentrant",
    checkpoint=non_reentrant_checkpoint,
    summary="deepspeed.checkpointing.non_reentrant_checkpoint (0.19.8)",
    source="https://deepspeed.readthedocs.io/en/stable/activation-checkpointing.html",
    capabilities=frozenset(CAPABILITIES)
    - {
        "compiled",  # DeepSpeed#6811: under torch.compile its masks differ
        "containers",
        "context-fn",
        "decorator",
        "determinism-check",
        "early-stop",
        "early-stop-option",
        "explicit-generators",
        "higher-order",
        "keyword-arguments",
        "rng-option",
        "subset-requests",
    },
    known=VERSIONS_NOT_COMPARED
    | REPLACED
    | CHANGED_AGAIN
    | RUN_TWICE
    | UNPACKED
    | MOVED_BY_AN_ERROR
    | RUNS_TO_THE_END
    | among(
        TORCH_NONREENTRANT,
        "backward_in_inference_mode",
        "device_context_is_forwards",
        "operators_of_subclasses_are_forwards",
        "deterministic_flags_are_forwards",
        "explicit_generators_are_replayed",
        "hooks_that_a_function_replaces_inside_another",
        "hooks_see_inputs_in_containers",
        "hooks_see_repeated_inputs_once",
        "lists_that_outputs_are_appended_to",
        "results_that_an_inner_function_keeps_are_freed",
        "modes_that_a_function_sets",
        "no_operators_are_seen_but_the_functions",
        "recomputations_that_meet_draw_their_own",
        "scripted_functions_that_save_in_another_order",
        "scripted_functions_that_specialise",
        "two_threads_draw_their_own",
        "what_a_function_puts_into_its_arguments_is_freed",
        "what_the_graph_has_freed_is_not_recomputed",
    )
    | known(
        "diverges",
        "arguments are moved to the device, and an OrderedDict comes to the function as a dict, without its attributes",
        _SEEN,
        "what_is_beside_tensors_in_an_argument",
    )
    | known(
        "diverges",
        "the recomputation gets detached copies: they are leaves, and without the attributes of the originals",
        _SEEN,
        "arguments_look_the_same",
        "attributes_of_arguments_are_there",
        "arguments_that_are_known_by_identity",
    )
    | known(
        "diverges",
        "backward gets detached tensors, without the attributes of those that were saved",
        _SEEN,
        "what_is_saved_where_a_recomputation_runs_on",
    )
    | known(
        "crashes",
        "each argument is detached by itself: one that is passed twice comes as two, so a function that asks whether they are "
        "one saves more than in forward, and that ends in an IndexError about a list",
        _SEEN,
        "arguments_that_hooks_copy_stay_the_callers",
    )
    | known(
        "diverges",
        "the recomputation gets detached copies: the hook that it takes off is forward's on the argument itself, and the one "
        "that it registers is on the copy",
        _SEEN,
        "hooks_that_a_function_replaces_on_its_argument",
        "hooks_that_a_function_registers_anew_at_its_end",
    )
    | known(
        "diverges",
        "what the recomputation saves is not compared with what forward saved",
        _SEEN,
        "default_dtype_is_forwards",
        "other_saved_tensors_are_reported",
        "train_and_eval_flipped_before_backward",
    )
    | known(
        "diverges",
        "under torch.compile forward runs compiled and the recomputation does not: it saves a mask that is scaled, forward one "
        "that is not, and they are taken for each other",
        _SEEN,
        "compiled_autograd_over_eager_regions",
        "graph_breaks_change_no_number",
    )
    | known(
        "crashes",
        "under torch.compile forward runs compiled and the recomputation does not: it saves tensors in another order, which "
        "are not compared, and an operator complains of their shapes",
        _SEEN,
        "compiled_inside_or_around",
    )
    | known(
        "crashes",
        "a choice of kernels is not restored, and another kernel of attention saves other tensors, which are not compared: an "
        "operator complains of their shapes",
        _SEEN,
        "contexts_around_forward_alone",
    )
    | known(
        "crashes",
        "a jagged tensor that is made anew has offsets of its own, which are not compared with forward's: autograd complains "
        "of a gradient's shape",
        _SEEN,
        "jagged_tensors_with_offsets_of_their_own",
    )
    | known(
        "diverges",
        "forward runs on the argument itself, and the recomputation starts from what forward made of it",
        _SEEN,
        "a_function_that_changes_its_argument",
    )
    | known(
        "diverges",
        "what was recomputed stays for as long as the graph lives, so a retained graph is recomputed once and kept whole",
        _SEEN,
        "every_backward_recomputes_anew",
        "recomputed_tensors_die_as_they_are_unpacked",
        "an_error_in_recomputation_keeps_nothing",
        "a_retained_backward_keeps_nothing",
        "a_backward_of_some_outputs_keeps_nothing",
        "each_recomputed_tensor_dies_at_its_unpack",
        "what_a_group_left_dies_with_it",
        "what_is_read_again_dies_as_it_is_unpacked",
        "recomputed_tensors_live_no_longer_than_saved_ones",
    )
    | known(
        "diverges",
        "a region holds its arguments itself, past the hooks of regions around it: those of inner regions stay alive",
        _SEEN,
        "nothing_of_the_inside_is_alive_after_forward",
        "attributes_that_are_tensors_are_freed",
        "a_request_for_some_gradients_keeps_nothing",
        "a_backward_that_is_refused_keeps_nothing",
        "schedules_in_any_order",
    )
    | known(
        "agrees",
        "an inner backward reads what the outer one has recomputed, so it is not refused",
        _SEEN,
        "a_backward_during_another_recomputes_for_itself",
    )
    | known(
        "refuses",
        "a recomputation that fails leaves what it has saved so far, and is not begun again: a retry ends in an error",
        _SEEN,
        "an_error_leaves_modes_as_they_were",
        "an_error_leaves_hooks_and_grad_mode",
        "another_thread_goes_on_after_an_error",
        "settings_of_the_process_are_left_alone",
        "steps_leave_nothing_behind",
    )
    | known(
        "diverges",
        "after a recomputation that fails the stream of random numbers is not put back; the retry ends in an error",
        _SEEN,
        "an_error_leaves_the_stream_of_random_numbers",
    )
    | AUTOCAST_LOST
    | TWO_DTYPES
    | known(
        "crashes",
        "a recomputation that saves more or fewer tensors than forward did ends in an IndexError about a list",
        _SEEN,
        "weights_cached_around_forward",
    )
    | known(
        "crashes",
        "autocast is not restored, so an operator meets tensors of two dtypes, and it is the operator that complains",
        _SEEN,
        "an_error_leaves_autocast",
        "autocast_is_forwards_on_another_thread",
        "the_same_function_under_another_autocast",
        "weights_that_are_replaced_under_autocast",
        "weights_with_the_same_values_under_autocast",
    )
    | known(
        "diverges",
        "arguments are kept as they are, so hooks do not see them",
        _SEEN,
        "hooks_see_the_outermost_inputs_alone",
    )
    | known(
        "refuses",
        "a backward that comes while another one recomputes finds a store that is partly filled, recomputes nothing, and "
        "misses what it needs",
        "its own error, 'multiple times without checkpoint recomputation being triggered'; " + _SEEN,
        "two_threads_over_one_graph",
    )
    | known(
        "refuses",
        "a request for gradients of some leaves is refused, also for a graph that is none of the region's",
        _SEEN,
        "backward_inside_a_region",
        "backward_of_another_region_inside_a_region",
    )
    | known(
        "crashes",
        "what a recomputation needs is noted when forward has ended, and without it there is a TypeError about NoneType",
        _SEEN,
        "backward_of_a_region_that_is_under_way",
    )
    | known(
        "diverges",
        "a region holds its arguments: one that the function changes in place belongs to the graph that holds the region",
        _SEEN,
        "a_region_that_changes_its_input_makes_no_cycle",
    )
    | known(
        "diverges",
        "the function gets containers that were built anew, in forward too, so the caller's own stay as they were and are not "
        "recognised",
        _SEEN,
        "containers_that_a_stopped_run_leaves",
        "containers_that_a_function_changes_around_another_region",
        "containers_that_nested_regions_empty",
        "containers_that_the_function_empties",
        "containers_that_the_function_identifies",
        "containers_that_the_function_identifies_and_changes",
        "containers_whose_tensors_are_watched",
    )
    | known(
        "diverges",
        "containers among the arguments are built anew at each place",
        _SEEN,
        "a_container_passed_twice",
    )
    | known(
        "agrees",
        "containers are taken apart, and their tensors are freed like other arguments",
        _SEEN,
        "arguments_in_containers_are_freed",
    )
    | known(
        "diverges",
        "a dataclass is kept as it is, so the recomputation reads what it holds by then",
        _SEEN,
        "containers_that_change_after_the_call",
        seed=0,
    )
    | known(
        "agrees",
        "a dataclass is kept as it is, so nothing is constructed anew",
        _SEEN,
        "dataclasses_are_not_constructed_anew",
    )
    | known(
        "crashes",
        "containers among the arguments are built anew, a namedtuple as a tuple without its fields",
        _SEEN,
        "containers_as_arguments",
    )
    | known(
        "diverges",
        "a list comes back as a tuple, a container of one as what it holds, a dict as its keys",
        _SEEN,
        "containers_as_outputs",
    )
    | known(
        "diverges",
        "one of torch.return_types comes back as a plain tuple",
        _SEEN,
        "containers_that_are_unusual",
        seed=0,
    )
    | known(
        "diverges",
        "the function runs again on the very object in a container, with the hook that it registered on it in forward",
        "seen here",
        "hooks_on_arguments_by_keyword_and_in_containers",
    )
    | known(
        "diverges",
        "operators save more once a leaf was unfrozen, and tensors of one shape are then taken for each other",
        "seen here",
        "leaves_frozen_or_unfrozen_before_backward",
    )
    | known(
        "crashes",
        "containers among the arguments are built anew, in forward too, so the caller's own is not filled",
        _SEEN,
        "containers_that_the_function_reads_by_another_name",
    )
    | known(
        "agrees",
        "while torch.export traces with strict=False, a region is traced as any other function",
        _SEEN,
        "exported_regions_equal_plain",
    ),
)
