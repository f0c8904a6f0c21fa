"""Gradients of tensors that are rarely met, by their layout, dtype or values, and of very many."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.scenarios.regions import values
from conformance.programs.strategies import named
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="gradients")
LAYOUTS = st.sampled_from(("channels last", "permuted", "slice", "expanded", "overlapping", "conj", "neg"))


@for_readers("advanced", "wrong gradient", "strides, channels_last, conj")
@law(named(values.laid_out, kind=LAYOUTS, nested=st.booleans()))
def test_layouts_are_plains(case: Case) -> None:
    """Strides, conjugation and negation of arguments, saved tensors, outputs and gradients are plain's in both runs."""
    case.equals_plain()


RARE = st.sampled_from(("complex128", "float16", "int32", "bool", "uint8", "special", "large"))


@for_readers("advanced", "wrong gradient", "NaN, inf, float8, overflow")
@law(named(values.rare, kind=RARE, nested=st.booleans()))
def test_values_that_are_rarely_met(case: Case) -> None:
    """Large tensors, NaN and infinity, and dtypes that are rare among saved tensors give plain's gradients."""
    case.equals_plain()


_KEPT = ("float32", "bfloat16", "int64", "bool")
_ALIKE = ("float64", *_KEPT)
_SUMS = Sums(24)  # a dozen roundings of operators on a path, and what was expanded gets sums of 7 gradients at most
_held = functools.partial(named, values.held, _SUMS, nested=st.booleans())
SHAPES = st.sampled_from(
    ((), (1,), (7,), (33,), (257,), (7, 33), (257, 1), (3, 7, 5), (1, 33, 1, 7), (2, 1, 3, 1, 7), (2, 3, 2, 2, 3))
)


@for_readers("everyday", "wrong gradient", "scalar, vector, odd sizes, batch, video, 3D convolution")
@law(_held(shape=SHAPES, layout=st.just(""), holds=st.sampled_from(_ALIKE)))
def test_tensors_of_any_rank(case: Case) -> None:
    """Tensors of ranks 0 to 5 and of odd sizes, which a region is passed and saves, give plain's gradients."""
    case.equals_plain()


_THREE = {"shape": st.sampled_from(((3, 7, 5), (5, 1, 7))), "layout": st.sampled_from(("permuted", "sliced", "expanded"))}


@for_readers("everyday", "wrong gradient", "strides, transpose, sequence first, batch first")
@law(_held(holds=st.sampled_from(_ALIKE), **_THREE), floor=4, effort=0.5)
def test_strides_of_three_dimensions(case: Case) -> None:
    """Tensors of three dimensions that are transposed, sliced or expanded, passed or saved, give plain's gradients."""
    case.equals_plain()


LARGE = st.sampled_from(((10_007,), (257, 257), (7, 33, 257), (250_007,)))


@for_readers("everyday", "wrong gradient", "large batch, long sequence, mask, token ids")
@law(_held(shape=LARGE, layout=st.just(""), holds=st.sampled_from(_KEPT)), floor=3, effort=0.5)
def test_large_tensors(case: Case) -> None:
    """Tensors of tens or hundreds of thousands of numbers, integers or booleans give plain's gradients."""
    case.equals_plain()


EXTREMES = st.sampled_from(("1e30", "1e-30", "above 2**15", "above 2**24", "int64"))


@for_readers("advanced", "wrong gradient", "token ids, hash, offsets, overflow, underflow")
@law(_held(shape=st.sampled_from(((), (3,), (2, 2))), layout=st.just(""), holds=EXTREMES), effort=0.7)
def test_numbers_of_any_magnitude(case: Case) -> None:
    """Very large and very small numbers, and integers of more than 15, 24 and 31 bits, give plain's gradients."""
    case.equals_plain()


_of_nested = functools.partial(named, values.of_nested_tensors, nested=st.booleans())
MADE = st.sampled_from(("strided", "strided, passed", "with offsets", "jagged, passed"))


@for_readers("advanced", "poor error", "torch.nested, NJT, ragged, variable length, padding")
@law(_of_nested(made=MADE), floor=4)
def test_nested_tensors(case: Case) -> None:
    """Nested tensors that a function is passed, or makes of strided layout or from offsets from outside, get gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "torch.nested, NJT, jagged, ragged")
@law(_of_nested(made=st.just("jagged")), recomputes=False, gradients=False, floor=1)
def test_jagged_tensors_with_offsets_of_their_own(case: Case) -> None:
    """Nested tensors of jagged layout, of which each run makes offsets of its own, give plain's gradients or an error."""
    case.equals_plain_or_refuses()


COUNT = st.sampled_from([1, 10, 50, 130])


@for_readers("advanced", "wrong gradient", "large region")
@law(named(values.many, count=COUNT, versions=st.sampled_from([0, 1, 5]), passes=st.integers(1, 2)), floor=3, effort=0.3)
def test_very_many_saved_tensors(case: Case) -> None:
    """However many tensors a region saves, and however often each was changed before, gradients are plain's."""
    case.equals_plain()


_LATE = {"count": COUNT, "times": st.integers(1, 9), "tries": st.integers(1, 2)}


@for_readers("adversarial", "wrong gradient", "in place, version counter")
@law(named(values.changed, **_LATE), family="errors", gradients=False, recomputes=False, effort=0.4)
def test_a_change_is_reported_however_late(case: Case) -> None:
    """A change in place of the last of many saved tensors, once or several times, gives an error each time, as in plain."""
    case.equals_plain()


_SPECIAL = {"passed": st.booleans(), "before": st.integers(0, 1), "times": st.integers(1, 3), "nested": st.booleans()}


@for_readers("adversarial", "wrong gradient", "tensor subclass, in place")
@law(named(values.special, **_SPECIAL), family="errors", gradients=False, recomputes=False)
def test_a_changed_tensor_of_a_subclass(case: Case) -> None:
    """A saved tensor of a subclass that is changed in place, after forward or a backward, gives an error as in plain."""
    case.equals_plain()
