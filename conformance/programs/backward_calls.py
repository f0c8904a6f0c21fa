"""A backward in a program: one call of ``backward``, ``torch.autograd.backward`` or ``torch.autograd.grad``, as code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One backward: of which outputs, into which inputs (None: all leaves), and whether the graph is retained.

    With ``gives`` it is a call of ``torch.autograd.grad``, which gives gradients, None for inputs that are not reached.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] | None = None
    retain: bool = False
    create_graph: bool = False
    gives: bool = False

    @property
    def call(self) -> str:
        """The call of a function of torch.autograd, with a gradient of ones for each output."""
        given = listed(self.outputs), *([listed(self.inputs or ())] if self.gives else []), listed(map(_ones, self.outputs))
        return f"torch.autograd.{'grad' if self.gives else 'backward'}({', '.join(given)}{self._options})"

    @property
    def code(self) -> str:
        """The statement: a method's call for one output, which is how it is mostly written."""
        if self.gives:
            return f"gradients = {self.call}"
        return f"{self.outputs[0]}.backward({_ones(self.outputs[0])}{self._options})" if len(self.outputs) == 1 else self.call

    @property
    def _options(self) -> str:
        unused, into = ", allow_unused=True" * self.gives, "" if self.inputs is None else f", inputs={listed(self.inputs)}"
        kept = ", retain_graph=True" * self.retain + ", create_graph=True" * self.create_graph
        return unused + kept + ("" if self.gives else into)


def listed(texts: Iterable[str]) -> str:
    """The text of a list of these."""
    return f"[{', '.join(texts)}]"


def _ones(name: str) -> str:
    return f"torch.ones_like({name})"
