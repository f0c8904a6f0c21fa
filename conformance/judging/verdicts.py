"""Verdicts, and how one is reached from what a program did under plain and under an implementation."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import torch

from conformance.judging import causes
from conformance.judging.causes import Cause, Difference
from conformance.judging.refusals import ALWAYS, names_one
from conformance.meters.interruptions import Endless, Timeout
from conformance.programs.sums import rounding

# Bound before any implementation runs: one that replaces methods of tensors must not decide what counts as equal.
_clone, _detach, _to_dense = torch.clone, torch.detach, torch.Tensor.to_dense
_abs, _all, _eq, _isnan, _le, _max, _nan_to_num = (
    torch.abs,
    torch.all,
    torch.eq,
    torch.isnan,
    torch.le,
    torch.max,
    torch.nan_to_num,
)
_resolve_conj, _signbit, _sub, _view_as_real = torch.resolve_conj, torch.signbit, torch.sub, torch.view_as_real
_and, _or = torch.logical_and, torch.logical_or


class Verdict(enum.StrEnum):
    """What an implementation does on a program; later members are worse."""

    AGREES = "agrees"
    REFUSES = "refuses"
    CRASHES = "crashes"
    HANGS = "hangs"
    DIVERGES = "diverges"

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)

    @property
    def rank(self) -> int:
        """For an implementation that declares nothing: agrees before refuses before the rest."""
        return min(self.severity, 2)


@dataclass(frozen=True)
class Measured:
    """What decided a verdict, so that a script can measure it again. For counts, ``due`` has the expected numbers.

    - "values": notes differ from plain's, or there was an error; "error": an error of another type than plain's.
    - "left": an error left wrong gradients behind.
    - "expected": notes differ from what the program itself expects; "noted": their text is not what is due.
    - "raises": an error was due and did not come; "fails": an error came; "ends": the process ended; "hangs": no end in time.
    - "calls": of regions' functions, by name; "kernels": calls of operators, by name.
    - "alive": storages that the program does not hold, by note; "inside": those that functions of regions made (of one
      ``region`` if it is named); "recomputed": those among them that were made after forward.
    - "saved": hooks miss storages of the note "saved", or see others (with ``at_most``: or see one more often than the note has
      it); "packed": how many tensors they see in forward and in backward.
    - "objects": the number of Python objects at notes called "step"; "moved": copies between devices.

    ``exact``: what differs contains no tensor, so it is compared exactly even if rounding may change the program's values.
    """

    what: Literal[
        "values",
        "error",
        "left",
        "expected",
        "noted",
        "raises",
        "fails",
        "ends",
        "hangs",
        "calls",
        "kernels",
        "alive",
        "inside",
        "recomputed",
        "saved",
        "packed",
        "objects",
        "moved",
    ] = "values"
    due: tuple[tuple[str, int | str], ...] = ()
    at_most: bool = False
    region: str = ""
    exact: bool = False


VALUES = Measured()


class Judged(Exception):
    """Ends the judging of a case with a verdict other than agrees. Raised by the suite alone.

    ``measured`` is None if no script of a few lines can measure it again. ``cause`` says what kind of thing was observed.
    """

    verdict: Verdict

    def __init__(self, detail: str, measured: Measured | None = VALUES, cause: Cause | None = None) -> None:
        super().__init__(detail)
        self.detail, self.measured = str(detail), measured
        self.cause = cause or causes.MEASURED.get(measured.what if measured else "", causes.shortened(detail))


class Diverges(Judged):
    """Another value, count or lifetime, and no error."""

    verdict = Verdict.DIVERGES


class Refuses(Judged):
    """An error that names the argument, the option or the operation that it is about, before a wrong gradient is visible."""

    verdict = Verdict.REFUSES


class Crashes(Judged):
    """Any other exception."""

    verdict = Verdict.CRASHES


class Hangs(Judged):
    """No answer in time."""

    verdict = Verdict.HANGS


CALL_REFUSED = "the call itself is refused"  # so the case proves nothing about what would come after it
NOTHING_RECOMPUTED = "nothing was recomputed"
REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError)
NOT_REFUSALS = (RecursionError, torch.OutOfMemoryError, torch.AcceleratorError)


def from_error(error: BaseException, names: Iterable[str] = ALWAYS["checkpoint"], *, of_an_operator: bool = False) -> Judged:
    """The verdict for an exception that came out of an implementation.

    A refusal is one of ``REFUSALS`` that was not raised by an operator that the program called, and whose message contains one
    of ``names``, the words by which a refusal can say what it is about.
    """
    said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else '(no message)'}"
    if isinstance(error, Timeout):
        return Hangs(str(error) or "no answer in time", None if isinstance(error, Endless) else Measured("hangs"))
    if isinstance(error, REFUSALS) and not isinstance(error, NOT_REFUSALS):
        if not of_an_operator and names_one(str(error), names):
            return Refuses(said, cause=causes.raised(error))
        lacking = f"its message has none of the names {', '.join(sorted(names))}"
        said += f"\nNo refusal: {'it came out of an operator that the program called' if of_an_operator else lacking}"
    measured = VALUES if isinstance(error, Exception) else Measured("fails")  # it would end a script, too
    return Crashes(said, measured, causes.raised(error))


@dataclass(frozen=True)
class Seen:
    """A tensor as it was at one moment: type, dtype, shape, device, whether it required grad, and its values."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    requires_grad: bool
    values: torch.Tensor = field(repr=False)

    def __str__(self) -> str:
        return f"{dense(self.values).tolist()} ({str(self.dtype).removeprefix('torch.')}, requires_grad={self.requires_grad})"


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in strided layout."""
    return tensor if tensor.layout is torch.strided else _to_dense(tensor)


def freeze(value: Any) -> Any:
    """A copy of a noted value that later changes do not affect; containers keep the names of their types."""
    if isinstance(value, torch.Tensor):
        kind = type(value).__name__
        return Seen(kind, value.dtype, tuple(value.shape), value.device.type, value.requires_grad, _clone(_detach(value)))
    if isinstance(value, dict):
        return type(value).__name__, tuple((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(freeze(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, tuple((f.name, freeze(getattr(value, f.name))) for f in fields(value))
    return value


def largest(value: Any) -> float:
    """The largest finite entry, in magnitude, of the floating point tensors in a frozen value."""
    if isinstance(value, tuple | list):
        return max(map(largest, value), default=0.0)
    if not isinstance(value, Seen) or not value.values.numel() or not (value.dtype.is_floating_point or value.dtype.is_complex):
        return 0.0
    return float(_max(_nan_to_num(_abs(dense(value.values)), 0, 0, 0)))


def as_constants(value: Any) -> Any:
    """A frozen value of which no tensor requires grad."""
    if isinstance(value, tuple):
        return tuple(map(as_constants, value))
    return replace(value, requires_grad=False) if isinstance(value, Seen) else value


def difference(expected: Any, seen: Any, path: str = "", *, terms: int = 0, scale: float = 0.0) -> Difference | None:
    """The first difference between two frozen values, None if there is none.

    Without ``terms``, tensors are compared bit for bit. With ``terms``, sums of that many terms may have been taken in another
    order, so entries may differ by :func:`~conformance.programs.sums.rounding` times the largest entry of the tensor or
    ``scale``, whichever is larger, because terms that cancel may be far larger than their sum.
    """
    if isinstance(expected, Seen) and isinstance(seen, Seen):
        return _tensor_difference(expected, seen, path, terms, scale)
    if isinstance(expected, tuple) and isinstance(seen, tuple) and len(expected) != len(seen):
        return _other(expected, seen, path)  # tuples of tensors have no ==
    if isinstance(expected, tuple) and isinstance(seen, tuple):
        for index, (one, other) in enumerate(zip(expected, seen, strict=True)):
            found = difference(one, other, f"{path}[{index}]", terms=terms, scale=scale)
            if found:
                return found
        return None
    return None if type(expected) is type(seen) and expected == seen else _other(expected, seen, path)


def _other(expected: Any, seen: Any, path: str) -> Difference:
    what = "missing" if seen is None else "extra" if expected is None else "values"
    return Difference(path, what, expected, seen)


def _tensor_difference(expected: Seen, seen: Seen, path: str, terms: int, scale: float) -> Difference | None:
    for name in ("kind", "dtype", "shape", "device", "requires_grad"):
        if getattr(expected, name) != getattr(seen, name):
            return Difference(path, name, getattr(expected, name), getattr(seen, name))
    one, other = expected.values, seen.values
    if one.layout != other.layout:
        return Difference(path, "layout", one.layout, other.layout)
    one, other = dense(one), dense(other)
    if one.is_complex():
        one, other = _view_as_real(_resolve_conj(one)), _view_as_real(_resolve_conj(other))
    same = _or(_eq(one, other), _and(_isnan(one), _isnan(other)))
    if one.is_floating_point() and terms:
        allowed = rounding(one.dtype, terms) * max(largest(expected), scale, 1e-30)
        same = _or(same, _le(_abs(_sub(one, other)), allowed))
    elif one.is_floating_point():
        same = _and(same, _or(_eq(_signbit(one), _signbit(other)), _isnan(one)))  # 0 and -0 are equal, and not the same
    return None if bool(_all(same)) else _other(expected, seen, path)
