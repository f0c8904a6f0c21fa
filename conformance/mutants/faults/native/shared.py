"""Faults in what C++ leaves to Python."""

from __future__ import annotations

from conformance.mutants.faults.native.seams import replace
from conformance.mutants.mutant import Copy, mutant
from impls.nested.recomputation import NO_CONTEXT
from impls.tensors.versions import tensor_metadata
from impls.torch_private import tree_leaves


@mutant("native.region", "rng", "explicit_generators_are_replayed")
def native_notes_one_generator_alone(copy: Copy) -> None:
    """The states of generators that the function is passed are not noted."""
    replace(copy, "capture_states", lambda region: None)


@mutant("native.region", "errors", "names_that_are_bound_late")
def native_follows_no_tensor_from_outside(copy: Copy) -> None:
    """Where tensors from outside are is forgotten as forward ends."""
    replace(copy, "settle_origins", lambda region, output: None)


@mutant("native.region", "errors", "names_that_are_bound_late")
def native_follows_no_output(copy: Copy) -> None:
    """A leaf that a region returns is taken for any tensor that looks like it."""
    replace(copy, "keeps_leaf", lambda region, index, leaf, output: all(leaf is not one for one in tree_leaves(output)))


@mutant("native.region", "errors", "missing_tensors_are_reported_in_any_case")
def native_misses_nothing(copy: Copy) -> None:
    """A recomputation that saves less than forward did is not refused."""
    replace(copy, "refuse_difference", lambda region, run, values: None)


@mutant("native.region", "costs", "no_operators_are_seen_but_the_functions")
def native_runs_again_without_a_mode(copy: Copy) -> None:
    """A function that ran inside a dispatch mode runs again inside none, where linear adds its bias in place."""
    replace(copy, "stand_in", lambda pass_through: NO_CONTEXT)


@mutant("native.region", "structure", "hooks_that_a_function_registers_anew_at_its_end")
def native_ends_before_hooks_are_back(copy: Copy) -> None:
    """A run that has removed a hook ends before the function registers it anew."""
    replace(copy, "has_removed_hooks_for_now", lambda: False)


@mutant("native.region", "gradients", "nested_tensors")
def native_asks_each_tensor_for_its_shape(copy: Copy) -> None:
    """A nested tensor of strided layout, which has none, is asked for its shape."""
    replace(copy, "any_tensor_metadata", tensor_metadata)
