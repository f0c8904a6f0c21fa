"""Tensors that are changed between forward and backward: an error where plain raises, and never a wrong gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import CAPABILITIES
from conformance.judging.verdicts import Diverges, Measured
from conformance.programs.generator.operators import SIN, uncounted
from conformance.programs.nesting_switch import if_nesting
from conformance.programs.scenarios import in_place_changes
from conformance.programs.strategies import named, programs
from conformance.rows.for_readers import for_readers
from impls import Implementation

TRIES = st.integers(1, 2)
changes_law = functools.partial(law, family="errors")

# For programs that plain may refuse before anything is recomputed.
RAISING: dict[str, Any] = {"gradients": False, "recomputes": False}
CLAIMED = {
    "containers": "containers",
    "keyword": "keyword-arguments",
    "grad": "subset-requests",
    "closure": "closure-gradients",
}


def _changing(
    *always: str, sometimes: Sequence[str] = (), besides: st.SearchStrategy[Any] | None = None, **options: Any
) -> Callable[[Implementation], Any]:
    """Programs that change tensors in place and otherwise keep to what an implementation claims; others besides."""

    def of(claims: Implementation) -> Any:
        drawn = ("nesting", "partial", "retain", "grad", *sometimes)
        made = programs(always, [f for f in drawn if CLAIMED.get(f) in {None, *claims.capabilities}], **options)
        return made if besides is None else made | besides

    return of


WHICH, BOTH = st.sampled_from(["first", "second"]), st.booleans()
_unsaved = functools.partial(
    named, in_place_changes.unsaved, changed=WHICH, after=st.integers(0, 1), parameters=BOTH, nested=BOTH
)


@for_readers("adversarial", "wrong gradient", "in place, version counter")
@changes_law(_changing("mutated", sometimes=["containers", "keyword"], besides=_unsaved(form=st.just("positional"))), floor=8,
     **RAISING)  # fmt: skip
def test_changes_between_forward_and_backward(case: Case) -> None:
    """A tensor changed in place after forward gives an error where plain raises, and never a wrong gradient."""
    case.equals_plain_or_refuses()


SAVING = (SIN, uncounted("{0} * {0}"), uncounted("torch.sin({0}) * torch.cos({1})"))  # these save what they read


@for_readers("adversarial", "wrong gradient", "in place, optimizer step")
@changes_law(_changing("mutated-closure", "closure", operators=SAVING), floor=8, **RAISING)
def test_changed_closure_tensors(case: Case) -> None:
    """A saved parameter that functions read through a closure gives an error when it was changed in place."""
    case.equals_plain_or_refuses()


PASSED = st.sampled_from(["positional", "keyword", "list", "dict", "subclass"])


@for_readers("adversarial", "wrong gradient", "in place, buffer reuse")
@changes_law(_unsaved(form=PASSED), recomputes=False, effort=2, floor=3,
             about=CAPABILITIES["keyword-arguments"] | CAPABILITIES["containers"])  # fmt: skip
def test_changed_arguments_that_nothing_saved(case: Case) -> None:
    """An argument that plain did not save gives no wrong gradient when it is changed after forward or after a backward."""
    case.equals_plain_or_refuses()


_LAST = st.sampled_from(["tanh", "exp", "sigmoid"])
_output = named(in_place_changes.output, last=_LAST, before=st.integers(0, 1), tries=TRIES, nested=st.booleans())


@for_readers("adversarial", "wrong gradient", "in place")
@changes_law(_output, **RAISING)
def test_changed_outputs(case: Case) -> None:
    """An output that its operator saved gives an error each time once it was changed, also after a backward, as in plain."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "in place, nn.ReLU(inplace=True), ResNet, convolutional network")
@changes_law(named(in_place_changes.argument, saved=BOTH, constant=BOTH, nested=BOTH), **RAISING)
def test_a_function_that_changes_its_argument(case: Case) -> None:
    """A function that changes an argument in place gives no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses(in_forward=True)


DEPTH = if_nesting(st.integers(0, 2), 0)
READ, REQUEST = st.sampled_from(["p", "q"]), st.sampled_from(["backward", "p", "q"])


@for_readers("adversarial", "wrong gradient", "in place, optimizer step")
@changes_law(named(in_place_changes.stale, request=REQUEST, depth=DEPTH, changed=READ), **RAISING)
def test_gradients_beside_a_changed_weight(case: Case) -> None:
    """When a saved weight was changed in place, gradients that do not need it are plain's too, or there is an error."""
    case.equals_plain_or_refuses()


@for_readers("adversarial", "wrong gradient", "determinism_check, in place")
@changes_law(
    named(in_place_changes.stale, request=st.just("backward"), depth=DEPTH, changed=READ) | _output,
    needs=["determinism-check"],
    determinism_check="none",
    **RAISING,
)
def test_changes_are_reported_in_any_case(case: Case) -> None:
    """With determinism_check="none", too, a saved tensor that was changed in place gives an error as under plain."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "in place")
@changes_law(_changing("corrupted", sometimes=["closure"]), **RAISING, floor=8)
def test_changes_inside_after_saving(case: Case) -> None:
    """A tensor changed in place inside the function after an operator saved it gives an error where plain raises."""
    case.equals_plain_or_refuses(in_forward=True)


CHANGE = st.sampled_from(["SGD", "Adam", "load_state_dict", "copy_"])


@for_readers("adversarial", "wrong gradient", "optimizer step, load_state_dict, GAN, pipeline")
@changes_law(named(in_place_changes.stepped, change=CHANGE, layer=st.integers(0, 2), regions=st.integers(1, 2)), **RAISING)
def test_weights_changed_before_backward(case: Case) -> None:
    """A weight changed before backward, by an optimizer step or load_state_dict, gives an error as under plain."""
    if case.plain.error is None:
        raise AssertionError("the program is to be one that plain refuses")
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "optimizer in backward, fused optimizer, register_post_accumulate_grad_hook")
@changes_law(named(in_place_changes.stepped_meanwhile, depth=DEPTH, shared=st.booleans()), **RAISING)
def test_weights_changed_during_backward(case: Case) -> None:
    """A weight that a hook changes during backward, as an optimizer in backward does, gives no wrong gradient."""
    case.equals_plain_or_refuses()


HOOKS, CHANGED = st.sampled_from(["save_on_cpu", "identity"]), st.sampled_from(["argument", "parameter", "output"])


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, save_on_cpu, in place")
@changes_law(named(in_place_changes.hooked, hooks=HOOKS, changed=CHANGED, form=st.sampled_from(["alone", "list"])), **RAISING)
def test_hooks_around_do_not_hide_changes(case: Case) -> None:
    """Saved-tensor hooks around a region do not turn the error for a change in place into a wrong gradient."""
    _, right = case.run().notes["right or none"]
    if not all(right):
        measured = Measured("noted", (("right or none", str([True for _ in right])),))
        raise Diverges(f"gradients of (p, x) should be right, or none after an error, and are right: {right}", measured)


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@changes_law(named(in_place_changes.copied, changes=st.integers(0, 3), kept=BOTH, nested=BOTH, around=BOTH))
def test_hooks_that_copy_after_changes(case: Case) -> None:
    """A tensor changed in place before it is passed is no error under hooks that bring back copies."""
    case.equals_plain()
