"""Running a schedule of a trace: checked step by step without tensors, and for real, with the recorded operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from benches.papers.meters.live import Live
from benches.papers.traces.trace import Event, Ref, Trace


class IllegalSchedule(ValueError):
    """A schedule that cannot be run; the message names the step."""


@dataclass(frozen=True)
class Checked:
    """The cost of a legal schedule and the most that it has in memory."""

    cost: int
    peak: int


def check(trace: Trace, events: Iterable[Event], budget: int) -> Checked:
    """Interpret a schedule, knowing nothing of how it was made.

    Raises IllegalSchedule when an operator reads a value that is not in memory, when memory is over ``budget`` after an
    operator, with all that it makes, when a value is dropped that is not there, when operators are run for the first time
    in another order than recorded, or when a result is missing at the end.
    """
    memory: set[int] = set()
    first = cost = peak = 0
    for step, (kind, index) in enumerate(events):
        if kind == "drop":
            if index not in memory:
                raise IllegalSchedule(f"step {step} drops value {index}, which is not in memory")
            memory.remove(index)
            continue
        op = trace.ops[index]
        if absent := set(op.reads) - memory:
            raise IllegalSchedule(f"step {step} runs operator {index} ({op.name}) without value {min(absent)}")
        if index > first:
            raise IllegalSchedule(f"step {step} runs operator {index} ({op.name}) before operator {first}")
        first = max(first, index + 1)
        used = sum(trace.sizes[value] for value in memory) + sum(trace.sizes[value] for value in op.makes)
        if used > budget:
            raise IllegalSchedule(f"step {step}, operator {index} ({op.name}), takes {used} of {budget}")
        memory.update(op.makes)
        cost, peak = cost + op.cost, max(peak, used)
    if first < len(trace.ops) or not trace.results <= memory:
        missing = sorted(trace.results - memory)
        raise IllegalSchedule(f"{first} of {len(trace.ops)} operators were run, results {missing} are missing")
    return Checked(cost, peak)


@dataclass(frozen=True)
class Executed:
    """What running a schedule brought: the recorded function's outputs, and what it took."""

    outputs: tuple[torch.Tensor, ...]
    live: Live


def execute(trace: Trace, events: Iterable[Event]) -> Executed:
    """Run a schedule of a recorded trace with real tensors. Raises ValueError for a trace that was not recorded."""
    memory: dict[int, torch.Tensor] = {}
    with Live() as live, torch.no_grad():
        for kind, index in events:
            if kind == "drop":
                del memory[index]
            else:
                _run(trace, index, memory)
        outputs = tuple(_tensor(ref, memory) for ref in trace.outputs)
    return Executed(outputs, live)


def _run(trace: Trace, index: int, memory: dict[int, torch.Tensor]) -> None:
    call = trace.ops[index].call
    if call is None:
        raise ValueError(f"operator {index} ({trace.ops[index].name}) was not recorded, so it cannot be run")
    given, made = dict(memory), {}
    for old, new in call.written:  # the old value may be read again, so the operator writes to a copy
        given[old] = made[new] = _copy(memory[old])
    leaves = [_tensor(leaf, given) if isinstance(leaf, Ref) else leaf for leaf in call.leaves]
    args, kwargs = tree_unflatten(leaves, call.spec)
    result = call.function(*args, **kwargs)
    for ref, leaf in zip(call.results, tree_leaves(result), strict=True):
        if ref is not None and ref.value in trace.ops[index].makes:
            made.setdefault(ref.value, leaf)
    for value, tensor in made.items():
        memory.setdefault(value, tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with a storage of its own, a copy of the other's, byte for byte."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    return whole.clone()


def _tensor(ref: Ref, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    storage = memory[ref.value].untyped_storage()
    return torch.empty(0, dtype=ref.dtype).set_(storage, ref.offset, ref.size, ref.stride)
