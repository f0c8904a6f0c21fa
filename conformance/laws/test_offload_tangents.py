"""Offloaded models under forward-mode differentiation and transforms of torch.func."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.offloaded_models import as_expected, equals_plain, written
from conformance.programs.scenarios.offload import tangents
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.4, floor=3)
OF = st.sampled_from(("parameters", "input", "both"))
CUT: dict[str, st.SearchStrategy[Any]] = {"slices": st.integers(1, 2), "checkpoint": st.booleans()}


def _tangents(checkpoint: st.SearchStrategy[bool], *, backward: bool) -> st.SearchStrategy[Any]:
    asked = {"frozen": st.booleans(), "backward": st.just(backward)}
    return written(tangents.tangents, of=OF, slices=st.integers(1, 2), checkpoint=checkpoint, **asked)


@for_readers("advanced", "wrong gradient", "forward mode, jvp, LoRA, frozen")
@offload_law(_tangents(st.booleans(), backward=False))
def test_tangents_go_through_a_model(case: Case) -> None:
    """Tangents of parameters, frozen or not, and of inputs give the output plain's tangent."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "forward over reverse, Hessian, jvp")
@offload_law(_tangents(st.just(False), backward=True))
def test_gradients_have_tangents(case: Case) -> None:
    """Gradients that are computed forward over reverse are plain's, and so are their tangents."""
    equals_plain(case)


LOST: dict[str, st.SearchStrategy[Any]] = {
    "of": st.sampled_from(("input", "a weight", "a bias")),
    "frozen": st.booleans(),
    "slices": st.integers(1, 3),
}


@for_readers("advanced", "poor error", "forward mode, jvp")
@offload_law(written(tangents.lost, **LOST), gradients=False)
def test_a_slice_that_ran_on_tangents_does_not_run_again(case: Case) -> None:
    """Backward through a slice that is checkpointed and had tangents is refused by an error that says so."""
    as_expected(case)


KINDS = ("jvp", "jvp of the input", "grad", "grad of the input", "vjp", "jacfwd", "vmap", "vmap of the input", "vmap of grad")


@for_readers("advanced", "wrong gradient", "torch.func, functorch, vmap, jvp")
@offload_law(
    written(tangents.transformed, kind=st.sampled_from(KINDS), frozen=st.booleans(), away=st.just(False), **CUT),
    gradients=False,
)
def test_transforms_are_right_or_refused(case: Case) -> None:
    """A transform of torch.func, over parameters or inputs, gives plain's result, or an error that says so."""
    as_expected(case)
