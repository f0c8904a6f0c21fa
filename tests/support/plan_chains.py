"""Chains for the tests of plans: layers whose memory is exactly what a Stage says, drawn plans, and a run that is metered."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import softplus

from conformance.meters.meter import Made, Storages
from impls.schedules import Keep, Plan, Region, Stage, stages

UNIT_BYTES = 1024
Layer = Callable[[torch.Tensor], torch.Tensor]
Execute = Callable[[list[Layer], torch.Tensor], torch.Tensor]


def blank(units: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(units * UNIT_BYTES // dtype.itemsize, dtype=dtype)


class _Exact(torch.autograd.Function):
    """Makes and saves as many units as its stage says; values depend on all that was saved, so that a wrong one shows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: Stage, ran: list[Stage]) -> torch.Tensor:
        ran.append(stage)
        output = blank(stage.output)
        kept = blank(stage.saved - stage.output, torch.float64)  # of float32 it might look like the noise of a rrelu_with_noise
        blank(stage.keeping_extra)  # a temporary
        output += x.sum().item() * 0.01 + 0.25
        kept += output.sum().item()
        ctx.stage, ctx.shape = stage, x.shape
        ctx.save_for_backward(kept, *([x] if stage.needs_input else []), *([output] if stage.needs_output else []))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        gradient = torch.zeros(ctx.shape)
        blank(ctx.stage.backward_extra - gradient.nbytes // UNIT_BYTES)
        gradient += gradients[0].sum().item() * 0.5 + sum(tensor.sum().item() for tensor in saved) * 0.01
        return gradient, None, None


class Seed(torch.autograd.Function):
    """Ends a chain without holding its output; the gradient is made when backward starts."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.dtype = output.shape, output.dtype
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> torch.Tensor:
        return torch.full(ctx.shape, 0.5, dtype=ctx.dtype)


class Peak(Storages):
    """The most units that were alive after any operator, of storages of a unit or more; ``given`` do not count."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.peak = 0
        self.softplus = 0
        for tensor in given:
            weak = StorageWeakRef(tensor.untyped_storage())
            self.known[weak.cdata] = weak, Made(0, 0, "")

    def see(self, func: Any, result: Any) -> None:
        super().see(func, result)
        self.softplus += func is torch.ops.aten.softplus.default
        self.peak = max(self.peak, self.units())

    def units(self) -> int:
        return sum(made.bytes // UNIT_BYTES for made in self.living())


@dataclass(frozen=True)
class Run:
    """What an execution came to, in the terms of an Account, and the gradient of its input."""

    time: float
    peak: int
    alive: int
    calls: int
    kernels: int
    gradient: torch.Tensor


def unit_of(units: int) -> Stage:
    """What a softplus costs: it saves its input, and both directions are one kernel; UNIT for one unit."""
    return Stage(output=units, saved=units, gradient=units, needs_output=False, stops_early=True, backward_extra=units)


@contextmanager
def no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(chain: tuple[Stage, ...], execute: Execute, *, held: bool = False) -> Run:
    """Execute a chain of layers made from its stages on an input of one unit.

    With ``held``, the caller holds the output and its gradient to the end.
    """
    ran: list[Stage] = []
    called: list[Stage] = []

    def layer(stage: Stage) -> Layer:
        def call(x: torch.Tensor) -> torch.Tensor:
            called.append(stage)
            return softplus(x) if stage.stops_early else _Exact.apply(x, stage, ran)

        return call

    x = torch.linspace(0.1, 1, UNIT_BYTES // 4).requires_grad_()
    with no_collector(), Peak(x) as meter:
        assert isinstance(meter, Peak)
        output = execute([layer(stage) for stage in chain], x)
        alive = meter.units()
        if held:
            seed = torch.full_like(output, 0.5)
            output.backward(seed)
        else:
            loss = Seed.apply(output)
            del output
            loss.backward()
    assert x.grad is not None
    time = sum(stage.forward for stage in ran) + meter.softplus + sum(stage.backward for stage in chain)
    return Run(time, meter.peak, alive, len(called), len(ran) + meter.softplus, x.grad)


@st.composite
def chains(draw: Any, most: int = 5, exact: bool = True) -> tuple[Stage, ...]:
    """Chains of small integers. With ``exact``, of stages that ``run`` can execute on an input of one unit."""
    stages: list[Stage] = []
    small, wide = st.integers(0, 3), st.integers(0, 9)
    for _ in range(draw(st.integers(1, most))):
        before = stages[-1].output if stages else 1
        if draw(st.booleans()):
            stages.append(unit_of(before))
            continue
        output, more, temporary = draw(st.integers(1, 3)), draw(small), draw(small if exact else wide)
        backward = before + draw(small) if exact else draw(small)
        passing = more + temporary if exact else draw(wide)
        stages.append(
            Stage(forward=draw(st.integers(0, 4)), backward=draw(small), output=output, saved=output + more,
                  gradient=output if exact else draw(small), keeping_extra=temporary, passing_extra=passing,
                  backward_extra=backward, needs_output=draw(st.booleans()), needs_input=draw(st.booleans()))
        )  # fmt: skip
    return tuple(stages)


@st.composite
def plans(draw: Any, stop: int, start: int = 0, depth: int = 3) -> Plan:
    """Plans for the stages from ``start`` up to ``stop``, regions around everything and around single regions included."""
    parts: list[Keep | Region] = []
    while start < stop:
        if depth == 0 or draw(st.booleans()):
            parts.append(Keep(start))
            start += 1
        else:
            end = draw(st.integers(start + 1, stop))
            parts.append(Region(draw(plans(end, start, depth - 1))))
            start = end
    return tuple(parts)


def sharp(plan: Plan, chain: tuple[Stage, ...], *, inside: bool = False) -> bool:
    """Whether the peak that is foreseen is the real one and no bound: see ``interpret``."""
    for part in plan:
        if isinstance(part, Region):
            if inside and not chain[next(stages(part.parts))].needs_input:
                return False
            if not sharp(part.parts, chain, inside=True):
                return False
    return True


def every_plan(start: int, stop: int, whole: bool = True) -> Iterator[Plan]:
    """Every plan for these stages but those with a region that is all of another region."""
    if start == stop:
        yield ()
        return
    yield from ((Keep(start), *rest) for rest in every_plan(start + 1, stop))
    for end in range(start + 1, stop + whole):
        for body in every_plan(start, end, whole=False):
            yield from ((Region(body), *rest) for rest in every_plan(end, stop))
