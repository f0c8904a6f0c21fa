"""Generated programs and schedules in a context of what is judged: around forward alone, or around backward too."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from conformance.programs import Program, render
from conformance.schedules import Schedule

PLAIN = "checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)"
SECOND = "import conformance.second_device"
COUNTING = ("with conformance.second_device.Moves() as moves:",)
SAVED = "graph.save_on_cpu()"
PINNED = "pinnable(device), graph.save_on_cpu(pin_memory=True, device_type=device)"
PINNABLE = "from conformance.written.graph_pinning import pinnable"


@dataclass(frozen=True)
class Around:
    """A program whose forward runs in ``context``, as text, and its driver too if ``backward``.

    ``checkpoint`` names the implementation by which its regions are called; ``second`` puts its tensors on the device
    that is not the CPU; ``lines`` come first. With ``due`` it notes how many copies to the CPU are expected and seen.
    """

    program: Program
    context: str
    backward: bool = False
    checkpoint: str = "plain"
    second: bool = False
    lines: tuple[str, ...] = ()
    due: int | None = None

    @functools.cached_property
    def source(self) -> str:
        program = self.program
        inside = _prepared(self.checkpoint, self.second, self.lines, program.seed)
        inside += [f"{leaf.name} = {leaf.code}" for leaf in program.leaves]
        inside.append(f"note('leaves', ({''.join(leaf.name + ', ' for leaf in program.leaves)}))")
        forward = [*render(program.body), f"note('forward', ({', '.join(program.outputs)},))"]
        driver = list(program.driver)
        rest = [f"with {self.context}:", *_indented(forward + driver if self.backward else forward)]
        rest += [] if self.backward else driver
        inside += rest if self.due is None else [*COUNTING, *_indented(rest), *_counted(self.due)]
        lines = ["import torch", *([] if self.checkpoint == "plain" else ["import impls"])]
        lines += [*_imports(self.context, self.second), "", *program.preamble, "def run(graph, note, device):"]
        return "\n".join([*lines, *_indented(inside)]) + "\n"


@dataclass(frozen=True)
class Steps:
    """A schedule whose forward runs in ``context``, each time anew; the steps run outside of it."""

    schedule: Schedule
    context: str
    second: bool = False

    @functools.cached_property
    def source(self) -> str:
        text = self.schedule.source.splitlines()
        start, end = (
            text.index("    def forward():"),
            next(n for n, line in enumerate(text) if line.startswith("        return ")),
        )
        head = text.index("def run(checkpoint, note, device):")
        forward = [f"        with {self.context}:", *_indented(text[start + 1 : end])]
        prepared = _indented(_prepared("plain", self.second, (), None))
        lines = [*text[:head], *_imports(self.context, self.second), "def run(graph, note, device):", *prepared]
        return "\n".join([*lines, *text[head + 1 : start + 1], *forward, *text[end:]]) + "\n"


def _prepared(checkpoint: str, second: bool, lines: tuple[str, ...], seed: int | None) -> list[str]:
    prepared = [PLAIN if checkpoint == "plain" else f"checkpoint = impls.get({checkpoint!r}).checkpoint"]
    prepared += ["device = conformance.second_device.second(device)"] if second else []
    return [*prepared, *lines, *([] if seed is None else [f"torch.manual_seed({seed})"])]


def _counted(due: int) -> list[str]:
    out = "sum(move.bytes > 0 and move.kind.endswith('cpu') for move in moves.seen)"
    return [f"note('expected copies to the CPU', {due})", f"note('seen copies to the CPU', {out})"]


def _imports(context: str, second: bool) -> list[str]:
    return [*([SECOND] if second else []), *([PINNABLE] if "pinnable" in context else [])]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
