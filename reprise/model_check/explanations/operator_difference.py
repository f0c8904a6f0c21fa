"""The first operator at which two runs of a region, or of a step, differ: how, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reprise.model_check.explanations.recording import Operator

OWN_GENERATOR = ": it draws from a torch.Generator that it is given, whose state a recomputation does not restore"
ANOTHER_STATE = ": it draws from a torch.Generator that it is given, whose state is another"
DRAW_ELSEWHERE = (
    "Use torch's own generator, whose state is restored (without generator=), or draw outside of the region and pass "
    "the numbers in."
)
MAKE_GENERATOR = "Make the generator in build(), or seed it there."
SEED_GENERATOR = (
    "If random numbers are in it, seed their generator in build() (a check seeds those of torch, random and numpy.random "
    "alone), and draw outside of regions, since a recomputation draws others."
)
BE_DETERMINISTIC = (
    "If the operator is not deterministic, let build() call torch.use_deterministic_algorithms(True); if that does not know "
    "the operator, call it outside of the region and pass its result in."
)
KEEP_STATE = (
    "If a number, a flag, a cache or another state that the region reads was changed, by the region or in between, change it "
    "outside of regions and after backward, or pass it to the region as an argument."
)
UNWRITTEN = ": it reads memory that no operator has written, as of torch.empty"
FILL = "Fill it before it is read, as with torch.zeros in place of torch.empty."
RESTORE = (
    "If random numbers are not restored, as with preserve_rng_state=False, let them be; if the region seeds torch itself, seed "
    "it outside of regions."
)
PASS_IN = "Make it outside of the region, and pass it in."
IN_REGION = "in forward", "again"
OF_PLAIN = "in one run", "in another"
BESIDE_PLAIN = "in plain", "with checkpointing"


@dataclass(frozen=True)
class OperatorDifference:
    """The first operators that differ between two runs; ``changed`` are the inputs of which another value was read.

    One is None if the other runs in its run alone, at the end. ``remedy`` says what to do, if that is known.
    """

    first: Operator | None
    second: Operator | None
    lines: tuple[str, ...]
    changed: tuple[int, ...] = ()
    remedy: str = ""

    @property
    def is_of_values(self) -> bool:
        """Whether the same operator ran, with other values; where another one ran, it may give the same in the end."""
        return self.first is not None and self.second is not None and self.first.name == self.second.name


def first_difference(
    one: Sequence[Operator],
    other: Sequence[Operator],
    runs: tuple[str, str] = IN_REGION,
    *,
    both_ended: bool,
    start: int = 0,
    calls_alone: bool = False,
) -> OperatorDifference | None:
    """The first operator of ``other`` that is not the one in ``one``, or reads or makes other values; None if there is none.

    Those before number ``start`` are not looked at. With ``calls_alone``, operators and whole numbers are
    compared, and no values, from which other numbers may come.

    If ``both_ended`` by themselves, the first that ``other`` lacks at its end is one, too: what is stopped has fewer anyway.
    """
    for number, (first, second) in enumerate(zip(one, other, strict=False)):
        if number < start or (found := _difference(first, second, runs, calls_alone=calls_alone)) is None:
            continue
        told, changed = found
        place = f"operator {number}{_module(first, second, runs)}"
        where = (f"  {run} at {operator.line}" for run, operator in zip(runs, (first, second), strict=True))
        return OperatorDifference(first, second, (f"{place}: {told}", *where), changed, _remedy(first, second, runs))
    if len(other) > len(one):
        extra = other[len(one)]
        return OperatorDifference(None, extra, _alone(len(one), extra, runs[1]), remedy=_of_path(runs))
    if both_ended and len(one) > len(other):
        missing = one[len(other)]
        return OperatorDifference(missing, None, _alone(len(other), missing, runs[0]), remedy=_of_path(runs))
    return None


def _of_path(runs: tuple[str, str]) -> str:
    """What to do if a recomputation runs other operators than forward, or with other numbers."""
    return KEEP_STATE if runs == IN_REGION else ""


def _module(first: Operator, second: Operator, runs: tuple[str, str]) -> str:
    """In which module an operator ran; both, if they are not the same."""
    if first.module and second.module and first.module != second.module:
        return f", in module {first.module} {runs[0]}, {second.module} {runs[1]}"
    return in_module(second.module or first.module)


def in_module(name: str) -> str:
    """In which module an operator ran, if that is known."""
    return f", in module {name}" if name else ""


def _alone(number: int, operator: Operator, run: str) -> tuple[str, str]:
    place = f"operator {number}{in_module(operator.module)}"
    return f"{place}: {operator.name} runs {run} alone", f"  at {operator.line}"


def _difference(
    one: Operator, other: Operator, runs: tuple[str, str], *, calls_alone: bool
) -> tuple[str, tuple[int, ...]] | None:
    """How two operators differ, in words, and of which inputs they read other values."""
    if one.name != other.name:
        return f"{one.name} {runs[0]}, {other.name} {runs[1]}", ()
    if len(one.read) != len(other.read):
        return f"{one.name} reads {len(one.read)} tensor{'s' * (len(one.read) != 1)} {runs[0]}, {len(other.read)} {runs[1]}", ()
    changed = tuple(i for i, (a, b) in enumerate(zip(one.read, other.read, strict=True)) if a != b)
    if changed and not calls_alone:
        names = {i: one.origins[i] or f"its tensor {i}" for i in changed}
        at = changed[0]
        if one.origins[at] != other.origins[at]:
            first, second = (operator.origins[at] or "another tensor" for operator in (one, other))
            return f"{one.name} reads {first} {runs[0]}, {second} {runs[1]}", ()
        if one.is_from_data:
            return f"a tensor that is made of data of Python or numpy has other values ({one.name})", changed
        if one.dtypes[at] != other.dtypes[at]:
            return f"{one.name} reads {names[at]} in {one.dtypes[at]} {runs[0]}, in {other.dtypes[at]} {runs[1]}", changed
        return f"{one.name} reads another value of {', '.join(dict.fromkeys(names.values()))}", changed
    if one.options != other.options and not (calls_alone and one.fixed_options == other.fixed_options):
        first, second = (", ".join(operator.options) or "nothing else" for operator in (one, other))
        return f"{one.name} is called with {first} {runs[0]}, with {second} {runs[1]}", ()
    if one.made != other.made and not calls_alone and one.reads_unwritten:
        return f"{one.name} gives another value{UNWRITTEN}", ()
    if one.made != other.made and not calls_alone:
        own = (OWN_GENERATOR if runs == IN_REGION else ANOTHER_STATE) if one.has_generator else ""
        return f"{one.name} gives another value for the same inputs{_modes(one, other, runs)}{own}", ()
    return None


def _remedy(one: Operator, other: Operator, runs: tuple[str, str]) -> str:
    """What to do about two operators that differ; "" if that is not known, or for a warning to tell."""
    is_other_call = len(one.read) != len(other.read) or (one.read == other.read and one.options != other.options)
    if one.name != other.name or is_other_call or (one.read != other.read and one.origins != other.origins):
        return _of_path(runs)
    is_same_call = (one.name, one.read, one.options) == (other.name, other.read, other.options)
    if one.is_from_data and one.read != other.read:
        return SEED_GENERATOR if runs == OF_PLAIN else PASS_IN if runs == IN_REGION else ""
    if is_same_call and one.reads_unwritten:
        return FILL
    if is_same_call and one.has_generator:
        return DRAW_ELSEWHERE if runs == IN_REGION else MAKE_GENERATOR
    if is_same_call and one.is_random and one.has_grad_mode == other.has_grad_mode and runs == IN_REGION:
        return RESTORE
    return BE_DETERMINISTIC if is_same_call and not one.is_random and one.has_grad_mode == other.has_grad_mode else ""


def _modes(one: Operator, other: Operator, runs: tuple[str, str]) -> str:
    """Grad mode in both, if it differs."""
    first, second = ("with grad mode" if side.has_grad_mode else "without grad mode" for side in (one, other))
    return f", {first} {runs[0]} and {second} {runs[1]}" if first != second else ""
