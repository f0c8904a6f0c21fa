"""Faults in what C++ leaves to Python."""

from __future__ import annotations

from conformance.mutants.faults.native.seams import replace
from conformance.mutants.mutant import Copy, mutant


@mutant("native.region", "rng", "explicit_generators_are_replayed")
def native_notes_one_generator_alone(copy: Copy) -> None:
    """The states of generators that the function is passed are not noted."""
    replace(copy, "capture_states", lambda region: None)


@mutant("native.region", "errors", "names_that_are_bound_late")
def native_follows_no_tensor_from_outside(copy: Copy) -> None:
    """Where tensors from outside are is forgotten as forward ends."""
    replace(copy, "settle_origins", lambda region, output: None)


@mutant("native.region", "errors", "missing_tensors_are_reported_in_any_case")
def native_misses_nothing(copy: Copy) -> None:
    """A recomputation that saves less than forward did is not refused."""
    replace(copy, "refuse_difference", lambda region, run, values: None)
