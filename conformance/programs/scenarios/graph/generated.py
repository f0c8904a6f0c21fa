"""Generated programs and schedules in a context of what is judged: around forward alone, or around backward too."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from conformance.programs.program import Program, render
from conformance.programs.schedules import Schedule
from conformance.programs.sums import Order, Sums

PLAIN = "checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)"
SECOND = "from conformance.simulated_device.device import second"
PLACES = {"cpu": "'cpu'", "second": "second(device)"}
SAVED = "graph.save_on_cpu()"
PINNED = "pinnable(device), graph.save_on_cpu(pin_memory=True, device_type=device)"
PINNABLE = "from conformance.programs.scenarios.graph.pinning import pinnable"


@dataclass(frozen=True)
class Around:
    """A program whose forward runs in ``context``, as text, and its driver too if ``backward``; in none if it is empty.

    ``checkpoint`` names the implementation by which its regions are called. ``place`` says where its tensors are: on the
    "cpu", on the "second" device, or, if it is empty, on the one that is given. ``due`` copies to the CPU are expected.
    """

    program: Program
    context: str
    backward: bool = False
    checkpoint: str = "plain"
    place: str = ""
    due: int = 0

    @functools.cached_property
    def sums(self) -> Sums:
        """What comes back from pinned memory may be laid out in another way, and then has other kernels."""
        order = Order.ANY if self.context == PINNED else _order(self.program.order, self.place)
        return replace(self.program.sums, order=order)

    @functools.cached_property
    def source(self) -> str:
        program = self.program
        inside = _prepared(self.checkpoint, self.place, program.seed)
        inside += [f"{leaf.name} = {leaf.code}" for leaf in program.leaves]
        inside.append(f"note('leaves', ({''.join(leaf.name + ', ' for leaf in program.leaves)}))")
        forward = [*render(program.body), f"note('forward', ({', '.join(program.outputs)},))"]
        covered = len(forward) + len(program.driver) if self.backward else len(forward)
        steps = [*forward, *program.driver]
        if self.context:
            steps = [f"with {self.context}:", *_indented(steps[:covered]), *steps[covered:]]
        inside += steps
        lines = ["import torch", *([] if self.checkpoint == "plain" else ["import impls"])]
        lines += [*_imports(self.context, self.place), "", *program.preamble, "def run(graph, note, device):"]
        return "\n".join([*lines, *_indented(inside)]) + "\n"


@dataclass(frozen=True)
class Steps:
    """A schedule whose forward runs in ``context``, each time anew; the steps run outside of it."""

    schedule: Schedule
    context: str
    place: str = ""

    @functools.cached_property
    def sums(self) -> Sums:
        """As those of a program in a context."""
        own = self.schedule.sums
        return replace(own, order=Order.ANY if self.context == PINNED else _order(own.order, self.place))

    @functools.cached_property
    def source(self) -> str:
        text = self.schedule.source.splitlines()
        start, end = (
            text.index("    def forward():"),
            next(n for n, line in enumerate(text) if line.startswith("        return ")),
        )
        head = text.index("def run(checkpoint, note, device):")
        forward = [f"        with {self.context}:", *_indented(text[start + 1 : end])]
        prepared = _indented(_prepared("plain", self.place, None))
        lines = [*text[:head], *_imports(self.context, self.place), "def run(graph, note, device):", *prepared]
        return "\n".join([*lines, *text[head + 1 : start + 1], *forward, *text[end:]]) + "\n"


def _order(order: Order, place: str) -> Order:
    return order.away if place == "second" else order


def _prepared(checkpoint: str, place: str, seed: int | None) -> list[str]:
    prepared = [PLAIN if checkpoint == "plain" else f"checkpoint = impls.get({checkpoint!r}).checkpoint"]
    prepared += [f"device = {PLACES[place]}"] if place else []
    return [*prepared, *([] if seed is None else [f"torch.manual_seed({seed})"])]


def _imports(context: str, place: str) -> list[str]:
    return [*([SECOND] if place == "second" else []), *([PINNABLE] if "pinnable" in context else [])]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
