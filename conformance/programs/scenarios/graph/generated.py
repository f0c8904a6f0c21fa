"""Generated programs and schedules in a context of what is judged: around forward alone, or around backward too."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from conformance.programs.notes import WHOLE_FORWARD, Note, Role
from conformance.programs.program import Block, Noted, Program, render
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
        """What comes back from pinned memory may be laid out in another way, and then other kernels read it."""
        order = Order.ANY if self.context == PINNED else _order(self.program.order, self.place)
        return replace(self.program.sums, order=order)

    @functools.cached_property
    def source(self) -> str:
        program = self.program
        inside = _prepared(self.checkpoint, self.place, program.seed)
        inside += [f"{leaf.name} = {leaf.code}" for leaf in program.leaves]
        inside.append(Noted(Note(Role.LEAVES), f"({''.join(leaf.name + ', ' for leaf in program.leaves)})").code)
        forward = (*program.body, Noted(WHOLE_FORWARD, f"({', '.join(program.outputs)},)"))
        covered, after = ((*forward, *program.driver), ()) if self.backward else (forward, program.driver)
        inside += render((*((Block(f"with {self.context}:", covered),) if self.context else covered), *after))
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
        prepared, imports = _prepared("plain", self.place, None), _imports(self.context, self.place)
        return self.schedule.text("graph", imports=imports, prepared=prepared, context=self.context)


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
