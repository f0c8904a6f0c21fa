"""Faults of the offloaded model that laws about forward-mode differentiation and transforms must catch."""

from __future__ import annotations

from conformance.mutants.mutant import Copy, mutant


@mutant("offload.loaded_copies", "offload-models", "tangents_go_through_a_model")
def loses_tangents_of_frozen_parameters(copy: Copy) -> None:
    """A copy of a parameter that requires no grad has no tangent."""
    copy.replace("offload.loaded_copies", "tangent_of", lambda tensor: None, only_here=True)


@mutant("offload.loaded_copies", "offload-models", "tangents_go_through_a_model")
def halves_tangents(copy: Copy) -> None:
    """A copy has half the tangent of its parameter."""
    copy.replace("offload.loaded_copies", "_Arrive.jvp", lambda ctx, *tangents: tangents[0] / 2)


@mutant("offload.loaded_copies", "offload-models", "gradients_have_tangents")
def sends_no_tangents_of_gradients(copy: Copy) -> None:
    """The tangent of a gradient is doubled on its way to the host."""
    copy.replace("offload.loaded_copies", "_Send.jvp", lambda ctx, *tangents: tangents[0].to("cpu") * 2)


@mutant("offload.slice_run", "offload-models", "a_slice_that_ran_on_tangents_does_not_run_again")
def runs_again_without_tangents(copy: Copy) -> None:
    """A slice that ran on tangents is recomputed without them."""
    copy.set_after("offload.slice_run", "_Region.__init__", has_tangents=lambda _: False)


@mutant("offload.boundary", "offload-models", "a_slice_that_ran_on_tangents_does_not_run_again")
def overlooks_tangents_of_inputs(copy: Copy) -> None:
    """Tangents of a slice's inputs are not noticed."""
    copy.set_after("offload.boundary", "Boundary.__init__", has_tangents=lambda _: False)


@mutant("offload.model", "offload-models", "transforms_are_right_or_refused")
def is_transformed_by_halves(copy: Copy) -> None:
    """A model is not refused inside transforms of torch.func that do not see its parameters."""
    copy.replace("offload.model", "OffloadModel._refuse_transforms", lambda self: None)
