"""What a program costs, predicted from the rules of nesting alone, without running anything.

:func:`costs` replays the driver's requests on a program's trace: what is recomputed, how far, and what is alive when a node
runs. It assumes that autograd runs the nodes that a request needs in reverse order of their creation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.costs.forward_trace import Frame, Slot, Trace, Value, trace
from conformance.programs.backward_calls import Request
from conformance.programs.program import Program


@dataclass(frozen=True)
class Costs:
    """Counts over forward and all requests.

    ``calls``: of each region's function. ``begun`` and ``kernels``: operators that were called, and those of them that ran to
    their end. ``saved``: by region, the names of what forward saved there. ``alive``: for each node, in the order of execution,
    how many tensors made inside regions exist when it runs, before it unpacks its own.
    """

    calls: Counter[str]
    begun: Counter[str]
    kernels: Counter[str]
    saved: dict[str, tuple[str, ...]]
    alive: tuple[tuple[str, int], ...]


def costs(program: Program, early_stop: bool = True) -> Costs:
    """What the program costs: its forward and all requests of its driver.

    Raises ValueError as :func:`conformance.costs.forward_trace.trace` does, and for a request with create_graph.
    """
    made = trace(program)
    replay = _Replay(made, early_stop)
    for request in program.requests:
        if request.create_graph:
            raise ValueError(f"{request.code}: requests with create_graph have no predicted costs")
        replay.backward(request)
    saved = {frame.name: tuple(slot.name for slot in frame.slots) for frame in made.frames}
    return Costs(replay.calls, replay.begun + replay.kernels, replay.kernels, saved, tuple(replay.alive))


def _reached(values: Iterable[Value]) -> set[Value]:
    found: set[Value] = set()
    queue = [value for value in values if value.grad]
    while queue:
        value = queue.pop()
        if value not in found:
            found.add(value)
            queue += [source for source in value.sources if source.grad]
    return found


Unit = tuple[Value, int]  # a tensor: the value that it is a copy of, and the run that made it, 0 for forward


class _Replay:
    """Counts while it replays requests one after the other."""

    def __init__(self, made: Trace, early_stop: bool) -> None:
        self.made, self.early_stop = made, early_stop
        self.calls: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.kept: dict[Frame, dict[Slot, Unit]] = {}
        self.alive: list[tuple[str, int]] = []
        self.runs = 0
        self.root = made.frames[0]
        outside = self.root.visible
        self.held = {(value, 0) for value in outside if value.frame is not self.root}
        self.released = set(made.values) - _reached(outside)
        self.whole(self.root)

    def whole(self, frame: Frame) -> None:
        """The function of a frame runs to its end, outside backward or inside a recomputation of its parent."""
        if frame.parent is not None:
            self.calls[frame.name] += 1
        for step in frame.steps:
            if isinstance(step, Value):
                self.kernels[step.kernel] += 1
            elif isinstance(step, Frame):
                self.whole(step)

    def living(self, slot: Slot) -> bool:
        if isinstance(slot.owner, Value):
            return slot.owner not in self.released
        return any(self.living(inner) for inner in slot.owner.slots)

    def recompute(self, frame: Frame) -> None:
        given = {slot.value: self.unpack(slot) for slot in frame.inputs}  # rule 2: recomputes the parent first
        wanted = [slot for slot in frame.slots if self.living(slot)]
        kept = self.kept[frame] = {}
        self.runs += 1
        self.calls[frame.name] += 1
        for step in frame.steps:
            if isinstance(step, Value):
                self.kernels[step.kernel] += 1
            elif isinstance(step, Frame):
                self.whole(step)  # rule 3: a region met on the way saves for itself, and nobody asks it for that
            elif self.living(step):
                kept[step] = given.get(step.value, (step.value, self.runs if step.value.frame else 0))
                if self.early_stop and step is wanted[-1]:  # rule 5
                    if isinstance(step.owner, Value) and not step.late:
                        self.begun[step.owner.kernel] += 1
                    return

    def unpack(self, slot: Slot) -> Unit:
        if slot.frame.parent is None:
            return slot.value, 0
        if slot.frame not in self.kept:
            self.recompute(slot.frame)
        return self.kept[slot.frame].pop(slot)  # rule 4: it dies as it is unpacked

    def existing(self) -> int:
        kept = {unit for slots in self.kept.values() for unit in slots.values()}
        return len(self.held | {unit for unit in kept if unit[0].frame not in (None, self.root)})

    def backward(self, request: Request) -> None:
        due = _reached(self.made.named[name] for name in request.outputs)
        if request.inputs is not None:
            wanted = {self.made.named[name] for name in request.inputs}
            due = {value for value in due if _reached([value]) & wanted}
        for value in reversed(self.made.values):
            if value in due and value.sources:
                self.alive.append((value.name, self.existing()))
                for slot in value.slots:
                    self.unpack(slot)
                if not request.retain:
                    self.released.add(value)
        self.kept.clear()  # rule 4: what was not unpacked dies with its backward
