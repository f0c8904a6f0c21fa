"""Compiled steps measured beside the compiled plain one: compile time, step time and bytes, apart from eager contenders.

All contenders of a workload are compiled first, each whole and with empty caches; then steps are timed in the same rounds.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch._inductor.config  # of which torch imports nothing before it compiles
from torch._functorch import config as partitioner
from torch._inductor.utils import fresh_cache

import impls
from benches.compare import meters
from benches.compare.contenders import PLAIN, Contender, Forward, checkpointing
from benches.compare.measurement import (
    MEASURED,
    RAISES,
    ROUND,
    VOID,
    Quartiles,
    Subject,
    clock,
    nothing,
    quartiles,
    step_of,
)
from benches.compare.meters import Bytes, Step
from benches.rounds import interleaved

BUDGETS = 0.0, 0.5  # fractions of what the compiled plain step saves between forward and backward; 1 is that step itself
TORCHS = "torch-nonreentrant"
PEERS = "torch-selective", "torch-remat"  # that claim to compile, as others do not
CALLS = 3  # of plain's step, of which the fastest says how many make a round


@dataclass(frozen=True)
class Compiled:
    """A contender, compiled as one graph within a memory budget; ``eager`` is for one that stands beside them uncompiled."""

    name: str
    family: str
    contender: Contender
    budget: float = 1.0
    eager: bool = False


@dataclass(frozen=True)
class CompiledRow:
    """What a compiled contender costs on a workload.

    ``status`` is "measured", "void" when gradients are not those of the eager plain step, or "raises", also when it does not
    compile as one graph; ``detail`` says what. ``times`` are quartiles of a step's time as ratios to the compiled plain step's
    of the same round, ``allocated`` bytes kept after forward and at the peak by the allocator. ``compile_seconds`` are CPU
    seconds of the first step, in which both graphs are compiled, compilers that it starts included. None is what was not
    measured.
    """

    workload: str
    contender: str
    family: str
    status: str
    detail: str = ""
    gradients: str = ""
    times: Quartiles | None = None
    allocated: Bytes | None = None
    compile_seconds: float | None = None


class TooLongError(Exception):
    """To compile all contenders would take too long, as plain's step shows, which is the first."""

    def __init__(self, taken: float, left: float) -> None:
        rest = max(0.0, left)
        super().__init__(
            f"compiling the plain step alone takes {taken:.0f} s of CPU time, and {rest:.0f} s were left for all of them"
        )


def offered() -> dict[str, Callable[[], Compiled]]:
    """What makes each contender, by name, plain first: checkpoints that compile, ours and those of others, and memory budgets.

    Of PyTorch's own there is one, since the reentrant variant and the one without early stop would make the same graph.
    Calling what makes one raises ValueError if that is not available.
    """
    made: dict[str, Callable[[], Compiled]] = {PLAIN.name: lambda: Compiled(PLAIN.name, PLAIN.family, PLAIN)}
    made["plain-eager"] = lambda: Compiled("plain-eager", PLAIN.family, PLAIN, eager=True)
    claiming = [name for name in impls.names("checkpoint") if "compiled" in impls.get(name).capabilities and name != PLAIN.name]
    ours = [name for name in claiming if not name.startswith("torch-")]
    for name in dict.fromkeys((TORCHS, *PEERS, *ours, *impls.COMPILED)):
        made[name] = functools.partial(_checkpoint, name)
    for budget in BUDGETS:
        name = f"budget-{budget:g}"
        made[name] = functools.partial(Compiled, name, "compiler", PLAIN, budget)
    return made


def _checkpoint(name: str) -> Compiled:
    family = "torch" if name == TORCHS else "peer" if name in PEERS else "ours"
    return Compiled(name, family, checkpointing(name, family, impls.find(name).checkpoint, name))


@contextmanager
def _settings(budget: float) -> Iterator[None]:
    """Empty caches, one compiler process at a time, and eager mode's random numbers, so that gradients can be compared."""
    with ExitStack() as stack:
        # After an error it leaves its directory, so that must be in one that goes.
        stack.enter_context(fresh_cache(dir=os.environ["TORCHINDUCTOR_CACHE_DIR"]))
        stack.enter_context(torch._inductor.config.patch(compile_threads=1, fallback_random=True))
        stack.enter_context(partitioner.patch(activation_memory_budget=budget))
        yield


def _own(forward: Forward) -> Forward:
    """The function with a code object of its own: the compiler limits how often it compiles one."""
    assert isinstance(forward, FunctionType)
    code = forward.__code__.replace()
    return FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__)


def _processor_seconds() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def compiled_step(subject: Subject, one: Compiled, backend: str | Callable[..., Any]) -> tuple[Step, float | None]:
    """The contender's step, whose graphs are compiled, and the CPU seconds that its first call took; None for an eager one."""
    workload, contender = subject.workload, one.contender
    forward = contender.prepare(workload.blocks, contender.plan(workload), workload.input)
    if one.eager:
        return step_of(workload, forward), None
    with _settings(one.budget):
        step = step_of(workload, torch.compile(_own(forward), backend=backend, fullgraph=True, dynamic=False))
        started = _processor_seconds()
        step(nothing)
        return step, _processor_seconds() - started


def measured_rows(
    subject: Subject,
    contenders: Sequence[Compiled],
    backend: str | Callable[..., Any],
    rounds: int,
    seconds: float = math.inf,
) -> list[CompiledRow]:
    """A row for each contender on a workload; what one raises is in its row. With no rounds, nothing is timed.

    Raises TooLongError if the contenders take more than ``seconds`` to compile, each as much as plain, once that is compiled.
    Outside of ``own_compiler_cache`` nothing compiles, so that nothing is left among what the user has compiled.
    """
    torch.compiler.reset()
    made = dict[str, tuple[CompiledRow, Step | None]]()
    for one in contenders:
        made[one.name] = row, _ = _made(subject, one, backend)
        taken = row.compile_seconds or 0.0
        if one.name == PLAIN.name and taken * sum(not each.eager for each in contenders) > seconds:
            torch.compiler.reset()
            raise TooLongError(taken, seconds)
    steps = {name: step for name, (_, step) in made.items() if step is not None}
    times = _times(subject, steps, rounds) if rounds and PLAIN.name in steps else {}
    rows = [_with_bytes(subject, row, step, times.get(name)) for name, (row, step) in made.items()]
    torch.compiler.reset()
    return rows


def _made(subject: Subject, one: Compiled, backend: str | Callable[..., Any]) -> tuple[CompiledRow, Step | None]:
    """The row so far, and the step if that is right."""
    told = subject.workload.name, one.name, one.family
    try:
        step, seconds = compiled_step(subject, one, backend)
        agreed = subject.agreement(step, rounded=not one.eager)
    except Exception as error:  # noqa: BLE001 - a compiler may raise anything, and the others are still compared
        return CompiledRow(*told, RAISES, _reason(error)), None
    if agreed == "differ":
        return CompiledRow(*told, VOID, "gradients are not those of plain", agreed, compile_seconds=seconds), None
    return CompiledRow(*told, MEASURED, gradients=agreed, compile_seconds=seconds), step


def _reason(error: Exception) -> str:
    """The kind of error and its first two lines: in the first one the compiler says whose error it is, in the second what."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a message"]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"


def _times(subject: Subject, steps: Mapping[str, Step], rounds: int) -> dict[str, Quartiles]:
    tell = clock(subject.device)

    def seconds() -> float:
        started = tell()
        steps[PLAIN.name](nothing)
        return tell() - started

    calls = max(1, round(ROUND / max(1e-6, min(seconds() for _ in range(CALLS)))))
    run = {name: functools.partial(step, nothing) for name, step in steps.items()}
    found = interleaved(run, rounds=rounds, calls=calls, clock=tell).seconds
    base = found[PLAIN.name]
    return {name: quartiles([own / its for own, its in zip(those, base, strict=True)]) for name, those in found.items()}


def _with_bytes(subject: Subject, row: CompiledRow, step: Step | None, times: Quartiles | None) -> CompiledRow:
    """The row with times and bytes, if gradients are still plain's once the step was timed."""
    if step is None:
        return row
    told = row.workload, row.contender, row.family
    eager = row.compile_seconds is None
    if (agreed := subject.agreement(step, rounded=not eager)) == "differ":
        return CompiledRow(*told, VOID, "gradients are not those of plain any more once it was timed", agreed)
    bytes_ = meters.allocated(step, subject.device)
    return CompiledRow(*told, MEASURED, "", row.gradients, times, bytes_, row.compile_seconds)
