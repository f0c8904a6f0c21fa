"""What is compared: implementations of checkpointing, plans, saving on the host, the compiler with a memory budget."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._functorch import config

import impls
from benches.workloads import FAKE, Workload
from impls import schedules
from impls.schedules import Keep, Plan, Region, kept

Function = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor], Tensor]
FAMILIES = "plain", "ours", "torch", "peer", "host", "compiler", "plan", "yours"
FRACTIONS = 0.0, 0.25, 0.5, 0.75, 1.0  # of what plain saves
NOT_COMPILED = "nothing is compiled for fake tensors"
COMPILED_HERE = frozenset({"torch-compile"})  # peers whose place compiled_regions takes


@dataclass(frozen=True)
class Contender:
    """One way to run a chain of functions forward.

    ``plan`` says which blocks of a workload run again, ``prepare`` makes of functions, a plan and an example of the input
    what runs them. ``compiled`` is for what calls the functions while it compiles, and not afterwards: their calls mean
    nothing, and its gradients may be rounded in another way.
    """

    name: str
    family: str
    prepare: Callable[[Sequence[Function], Plan, Tensor], Forward]
    plan: Callable[[Workload], Plan]
    compiled: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A contender that cannot be had here, and why."""

    name: str
    reason: str


def each_block(workload: Workload) -> Plan:
    """Every block is a region."""
    return tuple(Region((Keep(index),)) for index in range(len(workload.blocks)))


def no_region(workload: Workload) -> Plan:
    """Nothing runs again."""
    return kept(0, len(workload.blocks))


def checkpointing(name: str, family: str, checkpoint: Callable[..., Any]) -> Contender:
    """Each block is checkpointed by ``checkpoint(function, value)``."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        def forward(value: Tensor) -> Tensor:
            for function in functions:
                value = checkpoint(function, value)
            return value

        return forward

    return Contender(name, family, prepare, each_block)


def _run(functions: Sequence[Function]) -> Forward:
    def forward(value: Tensor) -> Tensor:
        for function in functions:
            value = function(value)
        return value

    return forward


PLAIN = Contender("plain", "plain", lambda functions, plan, example: _run(functions), no_region)


def on_host(name: str, namespace: Any) -> Contender:
    """What is saved lives in memory of the host, by ``save_on_cpu`` of a namespace like ``torch.autograd.graph``."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        inside = _run(functions)

        def forward(value: Tensor) -> Tensor:
            with namespace.save_on_cpu():
                return inside(value)

        return forward

    return Contender(name, "host", prepare, no_region)


def compiled(budget: float, backend: str) -> Contender:
    """The chain as ``torch.compile`` runs it within an activation memory budget, a fraction of what plain saves."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        torch.compiler.reset()
        forward = torch.compile(_run(functions), backend=backend, dynamic=False)
        with config.patch(activation_memory_budget=budget):
            forward(example)  # compiles; the budget has no part in what follows
        return forward

    return Contender(f"compile-{budget:g}", "compiler", prepare, no_region, compiled=True)


def compiled_regions(backend: str | Callable[..., Any]) -> Contender:
    """Each block in PyTorch's checkpoint, compiled once. The adapter of that name, made for laws, compiles at every call."""

    def region(function: Function, value: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(function, value, use_reentrant=False)

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        torch.compiler.reset()
        # What is compiled is counted by code object, and beyond a limit nothing is: so each block has one of its own.
        own = (FunctionType(region.__code__.replace(), region.__globals__) for _ in functions)
        regions = [torch.compile(one, backend=backend, dynamic=False) for one in own]
        return _run([functools.partial(one, function) for one, function in zip(regions, functions, strict=True)])

    return Contender("torch-compile", "compiler", prepare, each_block, compiled=True)


def planned(name: str, plan: Callable[[Workload], Plan]) -> Contender:
    """The regions of a plan, checkpointed by ours."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        return functools.partial(schedules.checkpoint_sequential, tuple(functions), plan)

    return Contender(name, "plan", prepare, plan)


def within(budget: str) -> Contender:
    """The fastest plan within a budget: bytes, or with a point in it a fraction of what plain takes at its peak.

    Raises ValueError for a budget that is neither.
    """
    try:
        amount = float(budget) if "." in budget else int(budget)
    except ValueError:
        amount = 0
    if amount <= 0:
        raise ValueError(f"budget is {budget!r}; it must be a number of bytes, or a fraction of plain's peak such as 0.5")

    def plan(workload: Workload) -> Plan:
        size = int(amount)
        if isinstance(amount, float):
            chain = schedules.measure(workload.blocks, workload.input)
            size = int(amount * schedules.interpret(no_region(workload), chain).peak)
        return schedules.plan_for(workload.blocks, workload.input, size, repeats=3)

    return planned(f"planned-{budget}", plan)


def contenders(
    device: str, backend: str, budgets: Sequence[str] = (), names: Collection[str] = ()
) -> tuple[list[Contender], list[LeftOut]]:
    """All that can be had on this machine for a device, plain first, and what cannot.

    Whether anything compiles is tried out, unless there are ``names`` and none of them is of the compiler.
    """
    found, missing = [PLAIN], list[LeftOut]()
    for name in impls.names("checkpoint"):
        family = "torch" if name.startswith("torch-") else "ours"
        if name != "plain":
            found.append(checkpointing(name, family, impls.get(name).checkpoint))
        if name == "nested":
            whole = functools.partial(impls.get(name).checkpoint, early_stop=False)
            found.append(checkpointing("nested-full", family, whole))
    for name, peer in impls.PEERS.items():
        if peer.kind == "checkpoint" and name not in COMPILED_HERE:
            reason = "" if peer.runs_on("cpu" if device == FAKE else device) else f"it computes on {peer.device} alone"
            try:
                found += [checkpointing(name, "peer", peer.load().checkpoint)] if not reason else []
            except ValueError as error:
                reason = str(error)
            missing += [LeftOut(name, reason)] if reason else []
    for name in ("graph", "torch-graph"):
        found.append(on_host(f"{name}-save_on_cpu", impls.get(name).provides))
    ways = [compiled_regions(backend), *(compiled(fraction, backend) for fraction in FRACTIONS)]
    if not names or any(way.name in names for way in ways):
        reason = uncompilable(device, backend)
        missing += [LeftOut(way.name, reason) for way in ways if reason]
        found += [] if reason else ways
    found.append(planned("chen-sqrt", lambda workload: schedules.sqrt_segments(len(workload.blocks))))
    return found + [within(budget) for budget in budgets], missing


def uncompilable(device: str, backend: str) -> str:
    """Why nothing can be compiled here; "" if it can."""
    if device == FAKE:
        return NOT_COMPILED
    try:
        torch.compile(torch.sin, backend=backend)(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    except Exception as error:  # noqa: BLE001 - whatever the compiler misses on this machine
        return f"torch.compile fails with backend {backend}: {type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        torch.compiler.reset()
    return ""


def loaded(reference: str) -> Contender:
    """The contender of a user: a checkpoint at ``pkg.mod:attr``. Raises ValueError as ``impls.load`` does."""
    return checkpointing(reference, "yours", impls.load(reference).checkpoint)
