"""Faults in C++: of regions, of their recomputations, and of what these set and put back."""

from __future__ import annotations

from conformance.mutants.faults.native.seams import compiled

overlooks_changes = compiled(
    "native-overlooks-changes",
    "errors",
    "a_change_is_reported_however_late",
    "region.h",
    "require_version",
    "return;",
    "A saved tensor that was changed in place since is not told from another.",
)
overlooks_changed_inputs = compiled(
    "native-overlooks-changed-inputs",
    "errors",
    "changed_arguments_that_nothing_saved",
    "region.h",
    "first_changed",
    "return -1;",
    "An input that was changed in place since is passed again.",
)
takes_any_tensor = compiled(
    "native-takes-any-tensor",
    "errors",
    "other_saved_tensors_are_reported",
    "recomputation.h",
    "fits",
    "return true;",
    "What a recomputation saves is not compared with what forward saved.",
)
never_stops = compiled(
    "native-never-stops",
    "costs",
    "calls_with_early_stop",
    "recomputation.h",
    "stop",
    "if (!reason) return stopped = true;",
    "A recomputation runs on when all is there.",
)
looks_nowhere = compiled(
    "native-looks-nowhere",
    "errors",
    "weights_and_buffers_that_are_replaced",
    "recomputation.h",
    "has_moved",
    "return false;",
    "A tensor from outside is taken for the one that was there, wherever it is.",
)
takes_all_for_its_own = compiled(
    "native-takes-all-for-its-own",
    "errors",
    "weights_and_buffers_that_are_replaced",
    "region.h",
    "may_be_from_outside",
    "return false;",
    "Every saved tensor is taken for a result that the region has made.",
)
forgets_parameters = compiled(
    "native-forgets-parameters",
    "errors",
    "weights_and_buffers_that_are_replaced",
    "region.h",
    "settle",
    "return false;",
    "A parameter that a region saved is taken for any tensor that looks like it.",
)
lets_views_of_leaves_go = compiled(
    "native-lets-views-of-leaves-go",
    "errors",
    "names_that_are_bound_late",
    "region.h",
    "settle",
    "if (is_view) return false;",
    "A view of a leaf is taken for any tensor that looks like it.",
)
remembers_one_normal_number = compiled(
    "native-remembers-one-normal-number",
    "rng",
    "all_distributions_are_replayed",
    "shared.h",
    "put_into",
    "const_cast<GeneratorState*>(this)->next_double.reset();",
    "Of a pair of normal numbers that the generator has drawn, the second one is lost.",
    on_cpu_alone=True,
)
counts_no_inner_inputs = compiled(
    "native-counts-no-inner-inputs",
    "structure",
    "containers_that_an_inner_region_alone_is_passed",
    "recomputation.h",
    "capture_inner",
    "return call(shared.capture_inputs, args, kwargs);",
    "How many tensors an inner region is passed is not compared with forward.",
)
does_not_wait_for_inner_inputs = compiled(
    "native-does-not-wait-for-inner-inputs",
    "structure",
    "containers_that_an_inner_region_alone_is_passed",
    "recomputation.h",
    "stop",
    "Py_CLEAR(put_off);",
    "A recomputation ends amid the arguments of an inner region.",
)
draws_anew = compiled(
    "native-draws-anew",
    "rng",
    "dropout_masks_are_replayed",
    "surroundings.h",
    "Recomputation::enter",
    "if (region->cpu_state) region->cpu_state = GeneratorState::current();",
    "A recomputation draws from where backward's generator is.",
    on_cpu_alone=True,
)
leaves_the_generator = compiled(
    "native-leaves-the-generator",
    "rng",
    "ambient_stream_is_left_alone",
    "surroundings.h",
    "Recomputation::release_lock",
    "if (holds_lock) found_state = GeneratorState::current();",
    "The generator stays where the recomputation has left it.",
    on_cpu_alone=True,
)
keeps_what_is_unpacked = compiled(
    "native-keeps-what-is-unpacked",
    "lifetimes",
    "each_recomputed_tensor_dies_at_its_unpack",
    "tensors.h",
    "pop",
    "if (has(index)) return get(index);",
    "A recomputed tensor lives on after it is unpacked (rule 4).",
)
never_lets_go_of_regions = compiled(
    "native-never-lets-go-of-regions",
    "lifetimes",
    "dropping_the_outputs_frees_everything",
    "region.h",
    "let_go",
    "py::gil_scoped_acquire gil; Py_INCREF(self());",
    "What the graph has of a saved tensor does not let go of the region.",
)
forgets_what_is_recomputed = compiled(
    "native-forgets-what-is-recomputed",
    "costs",
    "calls_with_early_stop",
    "region.h",
    "keep_values",
    "return;",
    "Each unpacking recomputes anew.",
)
stops_before_the_noise = compiled(
    "native-stops-before-the-noise",
    "rng",
    "noise_that_is_saved_before_it_is_drawn",
    "recomputation.h",
    "find_late_write",
    "return -1;",
    "A recomputation ends before an operator writes what it has saved.",
)
overlooks_closures = compiled(
    "native-overlooks-closures",
    "structure",
    "results_from_a_closure_that_a_function_changes",
    "region.h",
    "closes_over_results",
    "return false;",
    "What is in the closure of a function is not looked at.",
)
overlooks_casts = compiled(
    "native-overlooks-casts",
    "errors",
    "weights_that_are_replaced_under_autocast",
    "region.h",
    "is_cast_of_leaf",
    "return false;",
    "A cast of a leaf is taken for any result that the region makes.",
)
