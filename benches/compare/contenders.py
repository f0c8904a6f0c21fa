"""What is compared: implementations of checkpointing, plans, saving on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import impls
from benches.models.workloads import FAKE, Workload
from conformance.isolation.smoke_check import smoke
from impls import schedules
from impls.schedules import Keep, Plan, Region, kept

Function = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """One way to run a chain of functions forward.

    ``plan`` says which blocks of a workload run again. ``prepare`` takes functions, a plan and an example of the input, and
    returns what runs them. ``implementation`` is the name of the implementation that runs, if it is one of ours or a peer.
    """

    name: str
    family: str
    prepare: Callable[[Sequence[Function], Plan, Tensor], Forward]
    plan: Callable[[Workload], Plan]
    implementation: str = ""


Make = Callable[[], Contender]


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


def checkpointing(name: str, family: str, checkpoint: Callable[..., Any], implementation: str = "") -> Contender:
    """Each block is checkpointed by ``checkpoint(function, value)``, which may be that of a named implementation."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        def forward(value: Tensor) -> Tensor:
            for function in functions:
                value = checkpoint(function, value)
            return value

        return forward

    return Contender(name, family, prepare, each_block, implementation=implementation)


def _run(functions: Sequence[Function]) -> Forward:
    def forward(value: Tensor) -> Tensor:
        for function in functions:
            value = function(value)
        return value

    return forward


def _plainly(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
    return _run(functions)


PLAIN = Contender("plain", "plain", _plainly, no_region)


def on_host(name: str, namespace: Any, implementation: str = "") -> Contender:
    """What is saved lives in memory of the host, by ``save_on_cpu`` of a namespace like ``torch.autograd.graph``."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        inside = _run(functions)

        def forward(value: Tensor) -> Tensor:
            with namespace.save_on_cpu():
                return inside(value)

        return forward

    return Contender(name, "host", prepare, no_region, implementation=implementation)


def planned(name: str, plan: Callable[[Workload], Plan]) -> Contender:
    """The regions of a plan, checkpointed by ours."""

    def prepare(functions: Sequence[Function], plan: Plan, example: Tensor) -> Forward:
        return functools.partial(schedules.checkpoint_sequential, tuple(functions), plan)

    return Contender(name, "plan", prepare, plan)


def sqrt_segments(workload: Workload) -> Plan:
    """Segments as Chen et al. cut them."""
    return schedules.sqrt_segments(len(workload.blocks))


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


def offered(device: str) -> dict[str, Make]:
    """By name, plain first, what makes each contender. Calling it raises ValueError if the contender is not available."""
    made: dict[str, Make] = {"plain": lambda: PLAIN}
    for name in impls.names("checkpoint"):
        if name != "plain":
            made[name] = functools.partial(_built_in, name)
        if name == "nested":
            made["nested-full"] = functools.partial(_built_in, name, "nested-full", early_stop=False)
    for name, (kind, _) in impls.COMPILED.items():
        if kind == "checkpoint":
            made[name] = functools.partial(_compiled, name)
    for name, peer in impls.PEERS.items():
        if peer.kind == "checkpoint":
            made[name] = functools.partial(_peer, name, "cpu" if device == FAKE else device)
    for name in ("graph", "torch-graph"):
        made[f"{name}-save_on_cpu"] = functools.partial(on_host, f"{name}-save_on_cpu", impls.get(name).provides, name)
    made["chen-sqrt"] = lambda: planned("chen-sqrt", sqrt_segments)
    return made


def _built_in(name: str, called: str = "", **options: Any) -> Contender:
    family = "torch" if name.startswith("torch-") else "ours"
    return checkpointing(called or name, family, functools.partial(impls.get(name).checkpoint, **options), name)


def _compiled(name: str) -> Contender:
    return checkpointing(name, "ours", impls.find(name).checkpoint, name)


def _peer(name: str, device: str) -> Contender:
    peer = impls.PEERS[name]
    if not peer.runs_on(device):
        raise ValueError(f"it computes on {peer.device} alone")
    return checkpointing(name, "peer", peer.load().checkpoint, name)


def contenders(device: str, budgets: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[list[Contender], list[LeftOut]]:
    """Plain and the contenders of these names, or all that can be had on this machine for a device; and what cannot.

    Raises ValueError for a name that does not exist, and with the reason for one that cannot be had here.
    """
    there = offered(device)
    for name in names:
        if name not in there and ":" not in name and name not in impls.installed():
            accepted = ", ".join([*there, *impls.installed()])
            raise ValueError(f"impl is {name!r}; it must be one of {accepted}, or pkg.mod:attr of your own")
    found, missing = list[Contender](), list[LeftOut]()
    for name in dict.fromkeys(("plain", *names)) if names else there:
        if name not in there:
            found.append(loaded(name, device))
            continue
        try:
            found.append(there[name]())
        except ValueError as error:
            if names:
                raise ValueError(f"impl is {name!r}, which cannot be had here: {error}") from error
            missing.append(LeftOut(name, str(error)))
    return found + [within(budget) for budget in budgets], missing


def loaded(name: str, device: str) -> Contender:
    """The contender of a user: a checkpoint that a distribution brings, or one at ``pkg.mod:attr``.

    Raises ValueError as ``impls.find`` does, for what is of another kind, and for what declares nothing and fails the smoke
    check, with what is wrong and how to mend it.
    """
    implementation = impls.find(name)
    if implementation.kind != "checkpoint":
        raise ValueError(
            f"impl is {name!r}, which is of kind {implementation.kind!r}; what is compared is of kind 'checkpoint'"
        )
    if not implementation.declared:
        found = smoke(implementation, "cpu" if device == FAKE else device)
        if found.fault:
            raise ValueError(found.fault)
    return checkpointing(name, "yours", implementation.checkpoint)
