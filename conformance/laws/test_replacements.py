"""Tensors that are replaced between forward and backward by others that look the same: never a wrong gradient."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.programs.scenarios import kept_values, replaced_tensors
from conformance.programs.scenarios.state import autocast
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="errors", about=REQUIRES_GRAD | {"replace", "replaced"})
BOTH, REGIONS = st.booleans(), st.integers(2, 3)
_MAY_REFUSE: dict[str, Any] = {"gradients": False, "recomputes": False}

_KINDS = st.sampled_from(["view", "result", "constant", "module", "transposed", "imaginary part"])
_WAYS = st.sampled_from(["lambda", "function", "partial", "nothing", "output"])


@for_readers("advanced", "wrong gradient", "lambda, loop variable, closure, late binding")
@law(named(replaced_tensors.late, kind=_KINDS, through=_WAYS, regions=REGIONS, nested=BOTH), floor=6, **_MAY_REFUSE)
def test_names_that_are_bound_late(case: Case) -> None:
    """A function whose name for a tensor stands for another tensor by the time of backward gets no wrong gradient."""
    case.equals_plain_or_refuses()


_HOW = st.sampled_from(["attribute", "data", "data twice", "average"])
_SAVED = st.sampled_from(["weight", "buffer", "part of a buffer"])


@for_readers("adversarial", "wrong gradient", ".data, EMA, weight swap, FSDP")
@law(named(replaced_tensors.changed, how=_HOW, saved=_SAVED, passed=BOTH, after=BOTH, nested=BOTH), floor=6, **_MAY_REFUSE)
def test_weights_and_buffers_that_are_replaced(case: Case) -> None:
    """A weight or buffer that is assigned anew before backward, or is given other data, makes no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "functional_call, MAML, torch.func, ensemble")
@law(
    named(replaced_tensors.called, computed=BOTH, stacked=BOTH, saved=st.sampled_from(["product", "weight"])),
    floor=4,
    **_MAY_REFUSE,
)
def test_regions_inside_a_functional_call(case: Case) -> None:
    """A model that checkpoints inside, called with other parameters, gets no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()


_COPIES = named(replaced_tensors.called_with_copies, leaf=BOTH, initialised=BOTH, twice=st.just(False))
_COPIES_TWICE = named(replaced_tensors.called_with_copies, leaf=BOTH, initialised=BOTH, twice=st.just(True))


@for_readers("advanced", "wrong gradient", "functional_call, MAML, torch.func")
@law(_COPIES, floor=3)
def test_copies_of_weights_in_a_functional_call(case: Case) -> None:
    """A model that checkpoints inside, called with copies of its weights, gets plain's gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "double backward, functional_call, MAML, create_graph")
@law(_COPIES_TWICE, needs=["higher-order"], floor=3)
def test_copies_of_weights_and_second_derivatives(case: Case) -> None:
    """A model that checkpoints inside, called with copies of its weights, gets plain's gradients of gradients."""
    case.equals_plain()


_ALIKE = ["a mask that is kept", "masks that are kept", "a cache", "data for a while", "moved and back", "freed and filled"]
_alike = named(replaced_tensors.alike, kind=st.sampled_from(_ALIKE), nested=BOTH)


@for_readers("advanced", "poor error", "causal mask, cache, RoPE")
@law(_alike | named(replaced_tensors.stored, flat=BOTH, nested=BOTH), floor=6)
def test_other_tensors_with_the_same_values(case: Case) -> None:
    """What a function makes anew in each run, or finds replaced by equal values, is no reason to refuse."""
    case.equals_plain()


_UNDER_AUTOCAST = {"together": BOTH, "nested": BOTH}
_WAY = st.sampled_from(["late", "assigned", "data", "changed"])


@for_readers("everyday", "wrong gradient", "AMP, mixed precision, lambda, loop variable, EMA")
@law(named(autocast.replaced, how=_WAY, **_UNDER_AUTOCAST), needs=["autocast"], floor=6, **_MAY_REFUSE)
def test_weights_that_are_replaced_under_autocast(case: Case) -> None:
    """A weight that autocast casts, and that changes or is replaced before backward, makes no wrong gradient."""
    case.equals_plain_or_refuses()


_CAST_ANEW = st.sampled_from(["kept", "equal", "data"])


@for_readers("advanced", "poor error", "AMP, mixed precision, FSDP, ZeRO")
@law(named(autocast.kept_or_cast_anew, how=_CAST_ANEW, nested=BOTH), needs=["autocast"], floor=3)
def test_weights_with_the_same_values_under_autocast(case: Case) -> None:
    """A cast that is kept while its weight changes, and a weight that has its values again, are no reason to refuse."""
    case.equals_plain()


_COMPUTED = st.sampled_from(["a sum", "a cast", "nothing", "autocast"])


@for_readers("advanced", "wrong gradient", "lambda, loop variable, closure, late binding")
@law(named(autocast.computed, how=_COMPUTED, regions=REGIONS), needs=["closure-gradients"], floor=3, **_MAY_REFUSE)
def test_what_is_computed_from_a_tensor_that_is_replaced(case: Case) -> None:
    """Replacing a tensor of which only a result was saved, or nothing, makes no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()


_INSIDE = {"where": st.sampled_from(["buffer", "attribute", "dict"]), "calls": st.integers(1, 2), "nested": BOTH}
_ALONE = named(replaced_tensors.replaced_inside, kept=st.just(False), **_INSIDE)
_KEPT = named(replaced_tensors.replaced_inside, kept=st.just(True), **_INSIDE)


@for_readers("everyday", "wrong gradient", "EMA, moving average, register_buffer, running statistics, codebook")
@law(_ALONE, floor=4, **_MAY_REFUSE)
def test_buffers_that_the_function_replaces(case: Case) -> None:
    """A tensor that the function reads and then replaces, which nobody else keeps, makes no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "EMA, moving average, register_buffer, running statistics, codebook")
@law(_KEPT, floor=4, **_MAY_REFUSE)
def test_buffers_that_the_function_replaces_and_others_keep(case: Case) -> None:
    """A tensor that the function reads and then replaces, and that somebody else keeps, makes no wrong gradient."""
    case.equals_plain_or_refuses()


_CACHED = {"layers": st.integers(1, 2), "calls": st.integers(1, 3), "nested": BOTH}


@for_readers("advanced", "wrong gradient", "parametrize.cached, weight_norm, spectral_norm")
@law(named(replaced_tensors.cached, **_CACHED), floor=4, **_MAY_REFUSE)
def test_weights_cached_around_forward(case: Case) -> None:
    """Parametrized weights that are cached in forward, and not in backward, make no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()


_SOURCE, _HELD = st.sampled_from(["a counter", "a generator", "Python's random"]), st.sampled_from(["an attribute", "a list"])
_ANEW = {"saved": st.sampled_from(["the whole", "a part"]), "tries": st.integers(1, 2), "nested": BOTH}


@for_readers("advanced", "wrong gradient", "nondeterminism, mask, cache, random, attribute")
@law(named(kept_values.computed_anew, source=_SOURCE, kept=_HELD, **_ANEW), floor=4, **_MAY_REFUSE)
def test_kept_values_that_are_computed_anew(case: Case) -> None:
    """A tensor that the function makes and keeps, and makes with other values when it runs again, makes no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "poor error", "determinism_check, nondeterminism, mask")
@law(named(kept_values.unchecked, kept=_HELD, nested=BOTH), needs=["determinism-check"], floor=2, determinism_check="none")
def test_kept_values_may_be_computed_anew(case: Case) -> None:
    """With determinism_check="none" a tensor that the function keeps may get other values: gradients are of the last run's."""
    case.as_expected()
