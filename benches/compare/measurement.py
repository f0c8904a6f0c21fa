"""One contender on one workload, measured beside plain: gradients, bytes, work, calls, and times round by round."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benches.compare import meters
from benches.compare.contenders import PLAIN, Contender, Forward, Function
from benches.compare.meters import Bytes, Step, Work
from benches.models.workloads import FAKE, Workload, device_type
from impls.schedules import Keep, Plan, Region, stages, text

MEASURED, VOID, RAISES = "measured", "void", "raises"
ROUND = 0.004  # seconds that plain is to take in a round, at least
ROUNDING = 128  # units in the last place of a gradient's largest entry; plain itself is 17 from double precision on resnet
MOST = 1 / 8  # of that entry, at most: 128 units of bfloat16 are all of it, and zeros would be close to anything
Quartiles = tuple[float, float, float]
Clock = Callable[[], float]
Timing = Callable[[Callable[[], None], Callable[[], None]], Sequence[float]]


@dataclass(frozen=True)
class Row:
    """What a contender costs on a workload.

    ``status`` is "measured", "void" when gradients are not plain's, or "raises"; ``detail`` says what. ``times`` are
    quartiles of a step's time as ratios to plain's of the same round, ``ideal_times`` to that of plain and the forward
    work that the plan repeats. ``allocated`` and ``ledger`` are bytes kept after forward and at the peak, by the allocator
    and by the storages of operators. ``repeated`` are FLOPs and operators beyond plain's, ``ideal`` those that the plan
    must repeat. ``calls`` are of blocks, ``python_bytes`` for each tensor that plain saves. None is what was not measured.
    """

    workload: str
    contender: str
    family: str
    status: str
    detail: str = ""
    plan: str = ""
    gradients: str = ""
    times: Quartiles | None = None
    ideal_times: Quartiles | None = None
    allocated: Bytes | None = None
    ledger: Bytes | None = None
    repeated: Work | None = None
    ideal: Work | None = None
    calls: int | None = None
    python_bytes: float | None = None


def processor_seconds() -> float:
    """The process's time on CPUs, which leaves out what other processes take."""
    return time.process_time()


def device_seconds() -> float:
    """The time at which CUDA has done all that it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def repetitions(plan: Plan) -> Iterator[tuple[int, bool]]:
    """The stages that a plan must run again, each with whether all of it runs or only what is needed.

    A region runs again once in a backward, up to what its last part saves: of a stage the last tensor that autograd saves,
    of a region inside it the input.
    """
    for part in plan:
        if isinstance(part, Region):
            *before, last = part.parts
            yield from ((stage, True) for stage in stages(tuple(before)))
            if isinstance(last, Keep):
                yield last.stage, False
            yield from repetitions(part.parts)


def ideal(workload: Workload, plan: Plan) -> Forward:
    """Plain forward, and beside it exactly the forward work that the plan must repeat."""
    again: list[list[Function]] = [[] for _ in workload.blocks]
    for stage, whole in repetitions(plan):
        block = workload.blocks[stage]
        again[stage].append(block if whole else block.needed)  # type: ignore[arg-type]

    def forward(value: Tensor) -> Tensor:
        for block, extra in zip(workload.blocks, again, strict=True):
            for function in extra:
                function(value)
            value = block(value)
        return value

    return forward


def step_of(workload: Workload, forward: Forward) -> Step:
    """Forward and backward; gradients are added to those that are there."""

    def step(over: Callable[[], object]) -> None:
        output = forward(workload.input)
        over()
        output.backward(workload.cotangent)

    return step


def nothing() -> None:
    """What a step calls once forward is over, if nothing is to be done then."""


def gradients(workload: Workload, step: Step) -> list[Tensor]:
    """What a step gives each leaf, drawing the same random numbers each time."""
    for leaf in workload.leaves:
        assert leaf.grad is not None
        leaf.grad.zero_()
    torch.manual_seed(2)
    step(nothing)
    return [leaf.grad.clone() for leaf in workload.leaves if leaf.grad is not None]


class Subject:
    """A workload with what plain makes of it: what every contender on it is compared with.

    Raises RuntimeError when plain leaves a leaf without a gradient, which would prove nothing.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self.workload, self.device, self.real = workload, device, device != FAKE
        with workload.mode:
            self._measure_plain()

    def _measure_plain(self) -> None:
        workload = self.workload
        self.plain = self.bind(PLAIN, PLAIN.plan(workload))
        self.expected = gradients(workload, self.plain)
        again = gradients(workload, self.plain)
        self.repeats = self.real and all(map(torch.equal, self.expected, again))
        if self.real and not all(gradient.any() for gradient in self.expected):
            raise RuntimeError(f"{workload.name}: a gradient of plain is nothing but zeros")
        self.saved = meters.saved_tensors(self.plain)
        work = meters.work(self.plain)
        if work is None:
            raise RuntimeError(f"{workload.name}: operators of plain are hidden in others, so nothing can be compared")
        self.work = work

    def bind(self, contender: Contender, plan: Plan, functions: Sequence[Function] | None = None) -> Step:
        """A step of a contender, with these functions in place of the workload's blocks."""
        workload = self.workload
        return step_of(workload, contender.prepare(functions or workload.blocks, plan, workload.input))

    def agreement(self, step: Step, rounded: bool = False) -> str:
        """How the gradients of a step are like plain's: "equal" to the last bit, "close" to within rounding, or "differ".

        Close is enough for what may be rounded in another way, and where plain's own gradients differ from step to step.
        """
        found = gradients(self.workload, step)
        if not self.real:
            return "no values"
        return agreement(found, self.expected, self.repeats and not rounded)


def close(one: Tensor, other: Tensor) -> bool:
    """Whether sums in another order explain all differences, by a bound relative to the largest entry, as terms may cancel."""
    share = min(MOST, ROUNDING * torch.finfo(other.dtype).eps)
    return bool((one - other).abs().max() <= share * other.abs().max())


def agreement(found: Sequence[Tensor], expected: Sequence[Tensor], repeats: bool) -> str:
    """How gradients are like the expected ones: "equal", "close", which is enough if those do not repeat, or "differ"."""
    if all(map(torch.equal, found, expected)):
        return "equal"
    return "close" if not repeats and all(map(close, found, expected)) else "differ"


def measure(subject: Subject, contender: Contender, timing: Timing | None) -> Row:
    """Measure a contender; what it raises is in the row. Without ``timing``, or of fake tensors, it is not timed."""
    told = subject.workload.name, contender.name, contender.family
    try:
        with subject.workload.mode:
            return _measured(subject, contender, timing)
    except Exception as error:  # noqa: BLE001 - a contender may raise anything, and the others are still compared
        first = (str(error).strip() or "without a message").splitlines()[0]
        return Row(*told, RAISES, f"{type(error).__name__}: {first[:300]}")


def _measured(subject: Subject, contender: Contender, timing: Timing | None) -> Row:
    workload, plan = subject.workload, contender.plan(subject.workload)
    told = workload.name, contender.name, contender.family
    step = subject.bind(contender, plan)
    agreed = subject.agreement(step)
    if agreed == "differ":
        return Row(*told, VOID, "gradients are not those of plain", gradients=agreed)
    repeats = any(isinstance(part, Region) for part in plan)
    ideal_step = step_of(workload, ideal(workload, plan))
    times: tuple[Quartiles | None, Quartiles | None] = None, None
    if timing and workload.timed and subject.real:
        times = _times([subject.plain, *([ideal_step] if repeats else [])], step, timing, clock(subject.device))
        if (afterwards := subject.agreement(step)) == "differ":
            return Row(*told, VOID, "gradients are not those of plain any more once it was timed", gradients=afterwards)
    repeated = meters.work(step)
    ideal_work = meters.work(ideal_step) if repeats else None
    return Row(
        *told,
        MEASURED,
        plan=text(plan) if contender.family == "plan" else "",
        gradients=agreed,
        times=times[0],
        ideal_times=times[1],
        allocated=meters.allocated(step, subject.device) if subject.real else None,
        ledger=meters.ledger(step),
        repeated=repeated and repeated.beyond(subject.work),
        ideal=ideal_work and ideal_work.beyond(subject.work),
        calls=_calls(subject, contender, plan),
        python_bytes=meters.python_bytes(step) / subject.saved if subject.real else None,
    )


def _calls(subject: Subject, contender: Contender, plan: Plan) -> int:
    counted = meters.Calls()
    subject.bind(contender, plan, [counted.around(block) for block in subject.workload.blocks])(nothing)
    return counted.count


def _times(references: Sequence[Step], step: Step, timing: Timing, tell: Clock) -> tuple[Quartiles, Quartiles | None]:
    """Quartiles of the ratio to each of the references, plain and maybe the ideal, taken round by round."""
    calls = max(1, round(ROUND / max(1e-6, min(_seconds(references[0], 1, tell) for _ in range(3)))))
    found: list[list[float]] = [[] for _ in references]
    order, shuffle = list(range(len(references))), random.Random(0).shuffle

    def before() -> None:
        shuffle(order)
        for place in order:
            found[place].append(_seconds(references[place], calls, tell))

    def target() -> None:
        for _ in range(calls):
            step(nothing)

    seconds = timing(before, target)
    rounds = [one[-len(seconds) :] for one in found]  # what came before was to warm up
    ratios = [[own / its for own, its in zip(seconds, one, strict=True)] for one in rounds]
    return quartiles(ratios[0]), quartiles(ratios[1]) if ratios[1:] else None


def quartiles(values: Sequence[float]) -> Quartiles:
    """The three quartiles of at least two values."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, middle, third


def clock(device: str) -> Clock:
    """What tells the time of steps on a device."""
    return device_seconds if device_type(device) == "cuda" else processor_seconds


def _seconds(step: Step, calls: int, tell: Clock) -> float:
    started = tell()
    for _ in range(calls):
        step(nothing)
    return tell() - started
