"""Drawn programs whose body ``torch.compile`` compiles: what they are, how they print, and the strategy that draws them.

Plain runs the drawn program eagerly, so that a faulty compiler cannot make the oracle wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conformance.programs.notes import WHOLE_FORWARD, Note, Role
from conformance.programs.program import Block, Named, Noted, Program, Region, Statement, render, tuple_of
from conformance.programs.strategies import named
from conformance.programs.sums import DEFAULT, KnownSums, Order, Sums

EXACT = "eager", "aot_eager"  # backends that run plain's kernels on plain's shapes


def sums_of(backend: str, terms: int = 64) -> Sums:
    """What is known of the sums that a backend takes: backends not in ``EXACT`` fuse operators, and sum in another order."""
    return Sums(terms, Order.SAME if backend in EXACT else Order.ANY)


@dataclass(frozen=True)
class Compiled:
    """A drawn program, ``eager``, whose body a backend compiles into one graph."""

    eager: Program
    backend: str
    compiles: bool = True  # so that no meter is put around functions: a compiler would have to trace it

    @property
    def sums(self) -> Sums:
        """The drawn program's, if the backend keeps their order."""
        drawn = self.eager.sums
        return drawn if self.backend in EXACT else replace(drawn, order=Order.ANY)

    @functools.cached_property
    def source(self) -> str:
        one = self.eager
        passed = ", ".join(leaf.name for leaf in one.leaves)
        noted = [statement for statement in one.body if isinstance(statement, Noted)]  # after the call: a note is no operator
        body = tuple(statement for statement in one.body if not isinstance(statement, Noted))
        later = tuple(replace(statement, value=f"noted[{number}]") for number, statement in enumerate(noted))
        outputs = tuple_of(one.outputs)
        lines = ["import torch", "", *one.preamble, "def run(checkpoint, note, device):"]
        inside = [f"torch.manual_seed({one.seed})", *(f"{leaf.name} = {leaf.code}" for leaf in one.leaves)]
        inside += render((Noted(Note(Role.LEAVES), tuple_of(leaf.tensors for leaf in one.leaves)),))
        inside += [f"def step({passed}):", *(f"    {line}" for line in render(body))]
        inside += [f"    return {outputs}, {tuple_of(statement.value for statement in noted)}"]
        inside += [f"{outputs}, noted = torch.compile(step, backend={self.backend!r}, fullgraph=True)({passed})"]
        inside += render((*later, Noted(WHOLE_FORWARD, outputs), *one.driver))
        return "\n".join([*lines, *(f"    {line}" for line in inside)]) + "\n"


def compiled(programs: st.SearchStrategy[Program], backends: st.SearchStrategy[str]) -> st.SearchStrategy[Compiled]:
    """Drawn programs, each compiled by a backend that is drawn, without what regions inside of regions note."""
    return st.builds(Compiled, programs.map(lambda one: replace(one, body=_without_inner_notes(one.body))), backends)


def _without_inner_notes(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """A body whose regions note nothing, since a compiler would have to trace it."""
    return tuple(replace(one, body=_without_notes(one.body)) if isinstance(one, Region | Block) else one for one in body)


def _without_notes(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(one for one in _without_inner_notes(body) if not isinstance(one, Noted))


def compiling(
    function: Callable[..., None], sums: KnownSums = DEFAULT, /, **arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[Named]:
    """Programs written by hand that compile what calls the checkpoint; see ``strategies.named``."""
    return named(function, sums, **arguments).map(lambda program: replace(program, compiles=True))
