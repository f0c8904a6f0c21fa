"""Programs about offloaded models: the models are drawn, and what is done with them is written by hand.

A drawn program defines ``build()``, which makes the model, and ``batch()``, which makes an input; the text of a written
function, the driver, follows. ``place`` is where the model computes: the device that is judged, or a second one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case, Observation
from conformance.programs.model_parts import HERE_ALONE, LAYERS, WIDTHS, Piece, linear
from conformance.programs.program import Named
from conformance.programs.scenarios.offload import building_blocks as offload_modules
from conformance.programs.sums import KnownSums, Order, Sums, known_sums
from conformance.programs.syntax import definitions_for

# Definitions that a program needs, by the name in its text that asks for them.
DEFINITIONS = {
    "second": "from conformance.simulated_device.device import second",
    "OrderedDict": "from collections import OrderedDict",
    "time": "import time",
} | {
    name: inspect.getsource(value).rstrip()
    for name, value in vars(offload_modules).items()
    if getattr(value, "__module__", "") == offload_modules.__name__
}


@dataclass(frozen=True)
class Written:
    """A program written by hand as a function ``run(OffloadModel, note, device, place, **arguments)``."""

    program: Named
    away: bool

    @functools.cached_property
    def sums(self) -> Sums:
        """Where rows are split, kernels are those for fewer rows."""
        return _sums(self.program, self.away, split=dict(self.program.arguments).get("microbatches", 1) > 1)

    @functools.cached_property
    def source(self) -> str:
        place = f"    place = {'second(device)' if self.away else 'device'}"
        head = [*self.program.imports, "", "def run(OffloadModel, note, device):", "    torch.manual_seed(0)", place]
        return defined("\n".join([*head, *self.program.body]) + "\n")


@dataclass(frozen=True)
class Drawn:
    """A drawn model, how it is built, its input, and the driver that follows."""

    modules: tuple[str, ...]
    container: str
    options: tuple[tuple[str, Any], ...]
    away: bool
    inputs: str
    driver: Named
    dtype: str
    seed: int
    home: str

    @functools.cached_property
    def sums(self) -> Sums:
        """Where rows are split, kernels are those for fewer rows."""
        return _sums(self.driver, self.away, split=dict(self.options).get("num_microbatches", 1) > 1)

    @functools.cached_property
    def source(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        options += f", offload_device={self.home}" if self.home else ""
        inside = [
            f"    torch.manual_seed({self.seed})",
            f"    torch.set_default_dtype({self.dtype})",
            f"    place = {'second(device)' if self.away else 'device'}",
            "    layers = []",
            "    def build():",
            "        layers[:] = [",
            *(f"            {module}," for module in self.modules),
            "        ]",
            f"        return OffloadModel({self.container}, place{options})",
            "    def batch():",
            f"        return {self.inputs}",
            "    model, x = build(), batch()",
            "    note('leaves', tuple(model.parameters()))",
        ]
        head = [*self.driver.imports, "", "def run(OffloadModel, note, device):"]
        return defined("\n".join([*head, *inside, *self.driver.body]) + "\n")


def _sums(program: Named, away: bool, *, split: bool) -> Sums:
    order = program.sums.order.away if away else program.sums.order
    return replace(program.sums, order=Order.ANY if split else order)


def defined(text: str) -> str:
    """The text of a program, after the definitions that it needs, directly or through others."""
    lines = [line for definition in definitions_for(text, DEFINITIONS) for line in (definition, "")]
    return "\n".join(["import torch", "", *lines, text])


SUMS = Sums(terms=512)  # some steps of training go a long way
DIFFERENTIATED = replace(SUMS, order=Order.SAME_ON_CPU)  # where gradients are differentiated
SPLIT = replace(SUMS, order=Order.ANY)  # where rows are split, or a part of them is at another address than in plain

CONTAINERS = (
    "torch.nn.Sequential(*layers)",
    "list(layers)",
    "torch.nn.Sequential(OrderedDict((f'layer {index}', layer) for index, layer in enumerate(layers)))",
)


@st.composite
def offloaded(
    draw: Any,
    /,
    driver: Callable[..., None],
    pieces: Sequence[Piece] = LAYERS,
    *,
    always: Iterable[Piece] = (),
    checkpoint: st.SearchStrategy[bool] = st.booleans(),  # noqa: B008 - a strategy has no state
    microbatches: st.SearchStrategy[int] = st.just(1),  # noqa: B008
    away: st.SearchStrategy[bool] = st.booleans(),  # noqa: B008
    integers: bool = False,
    home: st.SearchStrategy[str] = st.just(""),  # noqa: B008
    dtypes: Sequence[str] = ("torch.float32", "torch.float64"),
    rows: st.SearchStrategy[int] = st.integers(2, 5),  # noqa: B008
    sums: Sums = SUMS,
    **arguments: st.SearchStrategy[Any],
) -> Drawn:
    """Programs in which ``driver`` uses a drawn model.

    Args:
        pieces: what the model is made of; one of them at least has parameters.
        always: pieces that occur.
        checkpoint: whether activations are checkpointed.
        microbatches: into how many parts the rows go; more than one asks for checkpointing.
        away: whether the model computes on a second device, and not where its parameters are.
        home: the text of the offload device; "" is the default, the CPU.
        integers: whether the input may be integers, for an embedding.
        dtypes: default dtypes to draw from.
        rows: how many rows an input has.
        sums: what is known of the sums where rows are not split.
        arguments: the driver's own.
    """
    elsewhere = draw(away)
    first = draw(WIDTHS)
    modules: list[str] = []
    count = draw(rows)
    inputs = f"torch.randn({count}, {first}, device=place)"
    if integers and draw(st.booleans()):
        modules.append(f"torch.nn.Embedding(3, {first})")
        inputs = f"torch.randint(3, ({count},), device=place)"
    possible = tuple(piece for piece in pieces if not (elsewhere and piece in HERE_ALONE))
    chosen: list[Piece] = [linear, *always, *draw(st.lists(st.sampled_from(possible), max_size=4))]
    width = first
    for piece in draw(st.permutations(chosen)):
        made, width = piece(draw, width)
        modules += made
    parts = min(draw(microbatches), count)
    options: dict[str, Any] = {"num_slices": draw(st.integers(1, len(modules)))}
    if parts > 1 or draw(checkpoint):
        options["checkpoint_activation"] = True
    if parts > 1:
        options["num_microbatches"] = parts
    dtype = draw(st.sampled_from(tuple(dtypes)))
    bound = Named(driver, tuple((name, draw(strategy)) for name, strategy in arguments.items()), sums)
    container = draw(st.sampled_from(CONTAINERS))
    return Drawn(
        tuple(modules), container, tuple(options.items()), elsewhere, inputs, bound, dtype, draw(st.integers(0, 3)), draw(home)
    )


@st.composite
def written(
    draw: Any,
    program: Callable[..., None],
    sums: KnownSums = SUMS,
    /,
    *,
    away: st.SearchStrategy[bool] = st.booleans(),  # noqa: B008 - a strategy has no state
    **arguments: st.SearchStrategy[Any],
) -> Written:
    """Programs written by hand with arguments that are drawn; ``place`` is this or a second device.

    ``sums`` is what is known of their sums where rows are not split, or tells it from the arguments that are drawn.
    """
    drawn = tuple((name, draw(strategy)) for name, strategy in arguments.items())
    return Written(Named(program, drawn, known_sums(sums, drawn)), draw(away))


def greedy(counts: Sequence[int], slices: int) -> list[list[int]]:
    """Indices of the modules in each slice, by the rule of FairScale 0.4.13: a slice ends before it exceeds its share.

    A slice that ends has parameters, and another slice follows it; the last slices may be empty.
    """
    share = sum(counts) // slices
    made: list[list[int]] = [[]]
    held = 0
    for index, count in enumerate(counts):
        if held and held + count > share and len(made) < slices:
            made.append([])
            held = 0
        made[-1].append(index)
        held += count
    return made + [[] for _ in range(slices - len(made))]


def plain_runs(case: Case) -> None:
    """Raise RuntimeError, which is no verdict, unless plain runs the program to its end."""
    if case.plain.error is not None:
        raise RuntimeError(f"plain does not run this program:\n{case.program.source}") from case.plain.error


def equals_plain(case: Case) -> Observation:
    """The run equals plain's, which has no error."""
    plain_runs(case)
    return case.equals_plain()


def as_expected(case: Case) -> None:
    """What the program saw is what it expected."""
    case.as_expected()
