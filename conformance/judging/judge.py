"""One case: a program runs under plain and under an implementation, and a law says whether what was seen is right.

A law is a function of a :class:`Case`. It returns if the implementation keeps the law on that program, and raises a
:class:`~conformance.judging.verdicts.Judged` if not. An implementation's exception becomes a verdict only in ``Case.run``, so
that a fault of a law or of the suite is never taken for one. ``explorer`` draws the programs and takes the worst case.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from conformance.judging.causes import NONE, Cause, left_behind, noted, unexpected
from conformance.judging.process_state import isolated
from conformance.judging.references import REFERENCES
from conformance.judging.refusals import ALWAYS, is_of_an_operator
from conformance.judging.verdicts import (
    CALL_REFUSED,
    NOTHING_RECOMPUTED,
    VALUES,
    Diverges,
    Judged,
    Measured,
    Refuses,
    Seen,
    Verdict,
    as_constants,
    dense,
    difference,
    freeze,
    from_error,
    largest,
)
from conformance.meters.interruptions import Timeout
from conformance.meters.meter import Calls, Meter
from conformance.meters.metered_functions import metered
from conformance.programs.notes import CALLS, WHOLE_FORWARD, Note, Role, read
from conformance.programs.program import Runnable, load
from conformance.programs.sums import Comparable, rounding, terms_in_any_order
from impls import Implementation, Kind

SECONDS_PER_CASE = 20
SECONDS_TO_COMPILE = 100  # more for a program that compiles
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # the file of its code
INTERRUPTED = True  # whether a user's interrupt reaches this process


def is_users(error: BaseException) -> bool:
    """Whether the user interrupts the run: an interrupt that a program raises itself has arguments."""
    return INTERRUPTED and isinstance(error, KeyboardInterrupt) and not error.args


def announce(seconds: int) -> None:
    """Called with the limit when a limited time begins, and with 0 when it ends. A sandbox worker replaces this function."""


@dataclass
class Observation:
    """What one run showed: notes in their order, calls of each region, whether regions nested, the error it ended with."""

    notes: dict[str, Any] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    nested: bool = False
    error: BaseException | None = None
    of_an_operator: bool = False  # whether an operator that the program called raised the error
    leaves: tuple[torch.Tensor, ...] = ()
    tried: list[Any] = field(default_factory=list)  # the leaves' gradients after each backward that may fail
    earlier: list[tuple[str, Any]] = field(default_factory=list)  # labels that were noted again, with their earlier values

    @property
    def gradients(self) -> list[Any]:
        return [value for label, value in self.notes.items() if read(label).role.has_gradients]

    @property
    def vacuous(self) -> bool:
        """Whether all gradients are zero, or there are none."""
        return not any(isinstance(v, Seen) and bool((dense(v.values) != 0).any()) for v in _flat(self.gradients))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _floating(value: Any) -> set[torch.dtype]:
    """The dtypes of the tensors of floating point or complex numbers in a frozen value."""
    found = {one.dtype for one in _flat(value) if isinstance(one, Seen)}
    return {dtype for dtype in found if dtype.is_floating_point or dtype.is_complex}


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame, or one of its callers, is that of an import."""
    return any(one.f_code.co_filename == _IMPORT_SYSTEM for one, _ in traceback.walk_stack(frame)) if frame else False


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise Timeout inside after that many seconds. Works on the main thread, once Python code runs.

    An import may end first, if that takes no longer than the limit again: a module whose import was cut off would stay half
    loaded for all later programs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    latest = time.monotonic() + 2 * seconds

    def expire(_: int, frame: FrameType | None) -> None:
        if _imports(frame) and time.monotonic() < latest:
            signal.alarm(1)
        else:
            raise Timeout(f"no answer in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    announce(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        announce(0)


def execute(
    program: Runnable,
    subject: Any,
    device: str,
    meters: Sequence[Meter] = (),
    kind: Kind = "checkpoint",
    share: float = 1.0,
    *,
    wrapped: bool = True,
) -> Observation:
    """Run a program once on ``subject``; what it raises is part of the observation. A ``share`` below 1 gives more time.

    Meters, and the counter of calls, wrap the functions of regions. Without ``wrapped``, and in a program that compiles them,
    the subject gets the functions themselves.
    """
    compiles = getattr(program, "compiles", False)
    seconds = SECONDS_PER_CASE + SECONDS_TO_COMPILE * compiles
    seen = Observation()
    calls = Calls()
    run = load(program)
    faults: list[Exception] = []
    steps: list[str] = []  # if a program has steps, earlier notes are not kept: they would count as a leak

    def note(label: str, value: Any = None) -> None:
        for meter in meters:
            try:
                meter.at(label, value)
            except Exception as error:
                faults.append(error)  # the suite's own fault, which is no verdict
                raise
        role = read(label).role
        if role is Role.LEAVES:
            seen.leaves = value
        else:
            with _disable_current_modes():  # the suite's own copies are not part of the run
                if label in seen.notes and role not in (Role.COST, Role.DUE) and not steps:
                    seen.earlier.append((label, seen.notes[label]))
                seen.notes[label] = freeze(value)
                if role is Role.STEP and not steps:
                    steps.append(label)
                if role is Role.ATTEMPT:
                    seen.tried.append(tuple(freeze(leaf.grad) for leaf in seen.leaves if leaf.requires_grad))

    through = metered(subject, (calls, *meters)) if kind == "checkpoint" and wrapped and not compiles else subject
    with isolated(device), ExitStack() as stack:
        for meter in meters:
            stack.enter_context(meter)
        try:
            with limited(round(seconds / share)):
                run(through, note, device)
        except BaseException as error:  # an implementation's stop signal need not be an Exception
            if is_users(error):
                raise
            seen.of_an_operator = is_of_an_operator(error)
            seen.error = error.with_traceback(None)
            seen.error.__context__ = seen.error.__cause__ = None
    if faults:
        raise faults[0]
    seen.calls, seen.nested = calls.counts, calls.nested
    return seen


def plainly(program: Runnable, device: str, kind: Kind = "checkpoint") -> Observation:
    """Run a program under plain, eagerly if it compiles. Raises ValueError if it notes a label twice: a note would be lost."""
    seen = execute(getattr(program, "eager", program), REFERENCES[kind], device, kind=kind)
    if seen.earlier:
        labels = ", ".join(repr(label) for label in dict.fromkeys(label for label, _ in seen.earlier))
        raise ValueError(f"the program notes {labels} more than once; give each note a label of its own:\n{program.source}")
    return seen


@dataclass
class Case:
    """One program under one implementation on one device."""

    program: Comparable
    implementation: Implementation
    device: str
    options: dict[str, Any] = field(default_factory=dict)
    reference: Callable[[Any, str, Kind], Observation] = plainly
    names: frozenset[str] = ALWAYS["checkpoint"]  # one of which a refusal must contain
    recomputed: bool = False
    begun: bool = False  # whether it reached the end of its forward
    refusal: str = ""  # the refusal of the call itself, before what the law is about
    failed: Observation | None = None  # the run that ended with an error of its own
    wrapped: bool = True  # whether meters are around the functions of regions

    @functools.cached_property
    def plain(self) -> Observation:
        """The oracle: the same program without checkpointing, hooks or offloading."""
        return self.reference(self.program, self.device, self.kind)

    @property
    def kind(self) -> Kind:
        return self.implementation.kind

    @property
    def terms(self) -> int:
        """How many terms sums have that may be taken in another order than plain's; 0 if values are compared bit for bit."""
        return terms_in_any_order(self.program, self.implementation, self.device)

    @functools.cached_property
    def scale(self) -> float:
        """The largest value that this program computes, of all that it notes under plain."""
        return largest([*self.plain.notes.values()])

    @property
    def units(self) -> float:
        """How far rounding may move a noted value, in units of its dtype's resolution; 0 if values are compared bit for bit."""
        dtypes = _floating([*self.plain.notes.values()])
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)
        return rounding(coarsest, self.terms) / torch.finfo(coarsest).eps * self.scale

    @property
    def blurred(self) -> bool:
        """Whether rounding alone may change every gradient by half, so that a comparison proves nothing."""
        dtypes = _floating(self.plain.gradients)
        return bool(self.terms and dtypes) and all(rounding(dtype, self.terms) > 0.5 for dtype in dtypes)

    def run(self, *meters: Meter) -> Observation:
        """Run under the implementation. An error that plain does not raise ends the case with its verdict."""
        subject = self.implementation.subject
        if self.kind == "checkpoint":
            subject = functools.partial(subject, **self.options)
        seen = execute(self.program, subject, self.device, meters, self.kind, self.implementation.share, wrapped=self.wrapped)
        self.recomputed |= self.kind == "checkpoint" and seen.calls.total() > self.plain.calls.total()
        self.begun |= WHOLE_FORWARD.label in seen.notes
        if seen.error is not None and self.plain.error is None:
            self.no_wrong_gradient(seen)
            self.failed = seen
            raise self.verdict(seen)
        return seen

    @functools.cached_property
    def seen(self) -> Observation:
        """What the implementation does, without meters."""
        return self.run()

    def verdict(self, seen: Observation) -> Judged:
        """The verdict for the error of a run."""
        assert seen.error is not None
        return from_error(seen.error, self.names, of_an_operator=seen.of_an_operator)

    def no_wrong_gradient(self, seen: Observation) -> None:
        """After an error, each leaf's gradient is the last one noted, or plain's after its next (even failed) backward."""
        assert seen.error is not None
        mine = [value for label, value in seen.notes.items() if read(label).role is Role.GRADIENTS]
        theirs = [value for label, value in self.plain.notes.items() if read(label).role is Role.GRADIENTS]
        require = [leaf for leaf in seen.leaves if leaf.requires_grad]
        if not require:
            return  # it failed before the program had any
        before = mine[-1][1] if mine else (None,) * len(require)
        if self.plain.error is not None:
            after = tuple(freeze(leaf.grad) for leaf in self.plain.leaves if leaf.requires_grad)
        else:
            after = theirs[len(mine)][1] if len(theirs) > len(mine) else before
        coming = (read(label).role for label in [*self.plain.notes][len(seen.notes) :])
        attempt = next((role for role in coming if role in (Role.GRADIENTS, Role.ATTEMPT)), None) is Role.ATTEMPT
        failed = self.plain.tried[len(seen.tried)] if attempt else after
        for leaf, old, new, partial in zip(require, before, after, failed, strict=True):
            now = freeze(leaf.grad)
            if all(difference(one, now, terms=self.terms, scale=self.scale) for one in (old, new, partial)):
                told = f"raised {type(seen.error).__name__}, but left a gradient that is wrong: {now}, plain {new}"
                raise Diverges(told, Measured("left"), left_behind(seen.error))

    def equals_plain(self) -> Observation:
        """Every note but those of costs equals plain's; if plain raises, so does the implementation, and not before.

        It raises plain's error, or another that names what it is about. Values that were noted before a refusal equal plain's,
        too, but need not require grad, as the refusal may be about that.
        """
        try:
            seen = self.seen
        except Refuses as refused:
            earlier = {} if self.failed is None else self.failed.notes
            for label, value in earlier.items():
                self._compare(label, value, as_constants, f", before it refused: {refused.detail}")
            raise
        if self.plain.error is not None:
            if seen.error is None:
                raise Diverges(f"plain raises {type(self.plain.error).__name__}, here a value comes back")
            self.no_wrong_gradient(seen)
            judged = self.verdict(seen)
            alike = type(seen.error) is type(self.plain.error)
            if judged.verdict is not Verdict.REFUSES and not (alike and str(seen.error) == str(self.plain.error)):
                judged.measured = None if alike or not isinstance(seen.error, Exception) else Measured("error")
                raise judged
        for label in self.plain.notes:
            if label in seen.notes:
                self._compare(label, seen.notes[label])
            elif read(label).role is not Role.COST:
                raise self.verdict(seen) if seen.error else Diverges(f"{label} is noted under plain, not here")
        for label, value in seen.earlier:  # noted by a function that ran again
            self._compare(label, value, when=", before it was noted again")
        return seen

    def equals_plain_unwrapped(self) -> Observation:
        """As ``equals_plain``, with the functions of regions themselves, without meters around them.

        The program counts their calls itself, if it can, in the note ``CALLS``.
        """
        self.wrapped = False
        seen = self.equals_plain()
        now, before = (one.notes.get(CALLS.label, 0) for one in (seen, self.plain))
        self.recomputed |= now > before
        return seen

    def _compare(self, label: str, value: Any, view: Callable[[Any], Any] = lambda value: value, when: str = "") -> None:
        """Raise Diverges if a note differs from plain's. Costs may differ; labels that plain lacks are not compared."""
        if label in self.plain.notes and read(label).role is not Role.COST:
            expected = view(self.plain.notes[label])
            if found := difference(expected, view(value), label, terms=self.terms, scale=self.scale):
                raise Diverges(f"{found.told()}{when}", cause=noted(read(label), found))

    def equals_plain_or_refuses(self, *, in_forward: bool = False) -> bool:
        """True if the run equals plain's, False if it is refused. A refusal in forward is proof only with ``in_forward``."""
        try:
            self.equals_plain()
        except Refuses as refused:
            self.refusal = "" if in_forward or self.begun or WHOLE_FORWARD.label not in self.plain.notes else refused.detail
            return False
        return True

    def as_expected(self) -> Observation:
        """In a run without an error, each note "seen X" equals the note "expected X"; there is at least one.

        Plain's own run is no reference here: if it is PyTorch's, it may fail in the same way.
        """
        try:
            seen = self.seen
            if seen.error is not None:
                raise self.verdict(seen)
        except Judged as judged:
            if judged.measured == VALUES:
                judged.measured = Measured("fails")  # plain may fail in the same way
            raise
        expects = [note for note in map(read, seen.notes) if note.role is Role.EXPECTED]
        if not expects:
            raise ValueError(f"the program notes nothing that it expects: {list(seen.notes)}")
        for note in expects:
            expected, came = seen.notes[note.label], seen.notes.get(Note(Role.SEEN, note.words).label)
            if found := difference(expected, came, note.about, terms=self.terms, scale=self.scale):
                exact = not any(map(torch.is_tensor, tree_leaves([expected, came])))
                raise Diverges(found.told("expected"), Measured("expected", exact=exact), unexpected(note))
        return seen


@dataclass(frozen=True)
class Outcome:
    """The verdict on one case, and its ``cause``. ``vacuous`` says why it proves nothing, if so; ``units`` are the case's.

    ``beyond`` says how a divergence differs from the declared effect, if it does.
    """

    program: Comparable
    verdict: Verdict
    detail: str = ""
    vacuous: str = ""
    measured: Measured | None = VALUES
    units: float = field(default=0, compare=False)
    cause: Cause = field(default=NONE, compare=False)
    beyond: str = ""


def judge(
    check: Callable[[Case], None],
    case: Case,
    *,
    recomputes: bool,
    gradients: bool,
    effect: Callable[[Case], None] | None = None,
) -> Outcome:
    """Judge one case by one law and, if it diverges, by the declared ``effect``, too."""
    try:
        check(case)
    except Judged as judged:
        beyond = _beyond(effect, case) if effect and judged.verdict is Verdict.DIVERGES else ""
        detail, measured, cause = judged.detail, judged.measured, judged.cause
        return Outcome(case.program, judged.verdict, detail, "", measured, case.units, cause, beyond)
    vacuous = CALL_REFUSED if case.refusal else ""
    if gradients and case.plain.error is not None:
        vacuous = f"plain raises {type(case.plain.error).__name__}"
    elif gradients and case.plain.vacuous:
        vacuous = "all gradients are zero"
    elif recomputes and not case.recomputed:
        vacuous = vacuous or NOTHING_RECOMPUTED
    elif gradients and case.blurred:
        vacuous = vacuous or f"rounding alone may change half of a gradient, of {case.terms} terms"
    return Outcome(case.program, Verdict.AGREES, case.refusal, vacuous)


def _beyond(effect: Callable[[Case], None], case: Case) -> str:
    """How a case differs from the declared effect; "" if it does not."""
    try:
        effect(case)
    except Judged as judged:
        return judged.detail
    return ""
