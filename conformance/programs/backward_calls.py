"""A backward in a program: one call of ``backward``, ``torch.autograd.backward`` or ``torch.autograd.grad``, as code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Seed:
    """An incoming gradient, and the tensor it is for, as texts about an output ``{0}``; for a scalar it may be "None"."""

    gradient: str = "torch.ones_like({0})"
    of: str = "{0}"


ONES = Seed()
_UNEVEN = "torch.linspace(-1, 2, {0}.numel(), dtype={0}.dtype, device=device)"
SEEDS = (  # of an output of any shape
    ONES,
    Seed(f"{_UNEVEN}.view({{0}}.shape)"),
    Seed(f"{_UNEVEN}.view({{0}}.shape[::-1]).permute(*range({{0}}.ndim)[::-1])"),
    Seed("torch.full((), 2, dtype={0}.dtype, device=device).expand({0}.shape)"),  # its strides are 0
    Seed(f"{_UNEVEN}[:{{0}}.shape[-1]].expand({{0}}.shape)"),
    Seed("torch.zeros_like({0})"),
)
SCALAR_SEEDS = (  # of an output of real numbers
    Seed("None", "{0}.sum()"),
    Seed("None", "({0}.sum() / 4)"),
    Seed("torch.tensor(1024, dtype={0}.dtype, device=device)", "{0}.mean()"),
)


@dataclass(frozen=True)
class Request:
    """One backward: of which outputs, into which inputs (None: all leaves), and whether the graph is retained.

    With ``gives`` it is a call of ``torch.autograd.grad``, which returns gradients, None for inputs that are not reached. If it
    is ``batched``, two gradients for each output come in at once. ``seeds`` are the incoming gradients, one for each output;
    without any, they are ones.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] | None = None
    retain: bool = False
    create_graph: bool = False
    gives: bool = False
    batched: bool = False
    seeds: tuple[Seed, ...] = ()

    @property
    def call(self) -> str:
        """The call of a function of torch.autograd, with a gradient for each output."""
        of, incoming = zip(*self._given, strict=True)
        if self.batched:
            incoming = tuple(f"torch.stack([torch.zeros_like({one}), {one}])" for one in incoming)
        given = listed(of), *([listed(self.inputs or ())] if self.gives else []), listed(incoming)
        return f"torch.autograd.{'grad' if self.gives else 'backward'}({', '.join(given)}{self._options})"

    @property
    def code(self) -> str:
        """The statement: for one output a method call, which is the usual way to write it."""
        if self.gives:
            return f"gradients = {self.call}"
        if len(self.outputs) > 1:
            return self.call
        of, incoming = self._given[0]
        options = f"{'' if incoming == 'None' else incoming}{self._options}".removeprefix(", ")
        return f"{of}.backward({options})"

    @property
    def _given(self) -> tuple[tuple[str, str], ...]:
        """Of what gradients are asked, with the text of the gradient that comes in."""
        pairs = zip(self.outputs, self.seeds or (ONES,) * len(self.outputs), strict=True)
        return tuple((seed.of.format(name), seed.gradient.format(name)) for name, seed in pairs)

    @property
    def _options(self) -> str:
        unused, into = ", allow_unused=True" * self.gives, "" if self.inputs is None else f", inputs={listed(self.inputs)}"
        kept = ", retain_graph=True" * self.retain + ", create_graph=True" * self.create_graph
        return unused + kept + ", is_grads_batched=True" * self.batched + ("" if self.gives else into)


def listed(texts: Iterable[str]) -> str:
    """The text of a list of these."""
    return f"[{', '.join(texts)}]"
