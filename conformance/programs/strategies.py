"""Strategies that draw programs. A feature is a switch; programs are valid by construction.

``programs(always=..., sometimes=...)``: features in ``always`` occur in every region or driver, or once in the program if that
is enough; features in ``sometimes`` are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from conformance.programs.generator import driver
from conformance.programs.generator.builder import Author, Scope
from conformance.programs.generator.containers import DEFINITIONS
from conformance.programs.generator.features import known
from conformance.programs.generator.layers import Layer
from conformance.programs.generator.leaves import UNLIKE, made
from conformance.programs.generator.operators import BINARY, DTYPES, UNARY, Operator
from conformance.programs.nesting_switch import allows_nesting, if_nesting
from conformance.programs.program import Named, Program, mentioned, render
from conformance.programs.sums import DEFAULT, KnownSums, Order, known_sums
from conformance.programs.syntax import definitions_for

CORE = frozenset({"nesting"})
SECOND_ORDER = 3  # forward and back, and back through both


@st.composite
def programs(
    draw: Any,
    always: Iterable[str] = (),
    sometimes: Iterable[str] = CORE,
    operators: tuple[Operator, ...] = (*UNARY, *BINARY),
    depth: int = 2,
    layer: Operator | Layer | None = None,
) -> Program:
    """Programs with the given features; ``depth`` bounds how deep regions nest, ``layer`` is the one layer that is drawn.

    Raises ValueError for an unknown feature, and if regions must always nest but ``depth`` is 1.
    """
    author = Author(draw, known("always", set(always)), known("sometimes", set(sometimes)), operators, depth, layer)
    if depth < 2 and "nesting" in author.always:
        raise ValueError(f"depth is {depth}; it must be 2 at least where 'nesting' is in always")
    dtype = DTYPES.get(author.one_of(DTYPES) or "", "torch.float64")
    layout = ".t()" if author.draw_feature("non-contiguous") else ""
    author.rows = draw(st.sampled_from((2, 3) if layer is None else (3, 2)))  # more shows of a layer that has more entries
    leaves = made(author, author.rows, dtype, layout)
    unlike = next((leaf.name for leaf in leaves if leaf.name == UNLIKE), "")
    alike = [leaf for leaf in leaves if leaf.name not in (*author.modules, *author.layers, unlike)]
    scope = Scope([leaf.name for leaf in alike], {leaf.name for leaf in alike if leaf.grad}, unlike=unlike)
    author.region(scope, depth if depth > 1 and allows_nesting() and author.draw_feature("nesting") else 1, first=True)
    if draw(st.booleans()):
        author.op(scope, author.pick(operators))
    if draw(st.booleans()):
        author.region(scope, 1)
    for _ in range(draw(st.integers(0, 2)) if author.modules else 0):
        author.module(scope, f"checkpoint({author.pick(author.modules)}, {{0}})")
    for name in [name for name, layer in author.layers.items() if layer.in_region and draw(st.booleans())]:
        author.layer(scope, name, f"checkpoint({name}, ")
    outputs = [scope.current]
    partial = author.draw_feature("partial")
    if partial and not author.computed(scope)[:-1]:
        outputs.append(author.op(scope, author.pick(operators)))
    elif (others := author.computed(scope)[:-1]) and (partial or draw(st.booleans())):
        outputs.append(author.pick(others))
    steps = driver.steps(author, tuple(outputs), tuple(leaf for leaf in leaves if leaf.grad))
    steps = (*author.changes(scope), *steps)
    text = "\n".join([*(leaf.code for leaf in leaves), *render((*scope.statements, *steps))])
    there = mentioned((*scope.statements, *steps))
    leaves = [leaf for leaf in leaves if leaf.grad or leaf.name in there]
    preamble = tuple(line for code in definitions_for(text, DEFINITIONS) for line in (*code.splitlines(), ""))
    seed, used = draw(st.integers(0, 3)), frozenset(author.used)
    times, order = (SECOND_ORDER, Order.SAME_ON_CPU) if "create-graph" in used else (1, author.order)
    return Program(tuple(leaves), tuple(scope.statements), tuple(outputs), steps, seed, preamble, used, order, times)


def named(
    function: Callable[..., None], sums: KnownSums = DEFAULT, /, **arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[Named]:
    """Programs written by hand, with arguments that are drawn; ``nested`` is False where programs may not nest.

    ``sums`` is what is known of the program's sums, or tells it from the arguments that are drawn.
    """
    if "nested" in arguments:
        arguments["nested"] = if_nesting(arguments["nested"], False)
    pairs = [st.tuples(st.just(name), strategy) for name, strategy in arguments.items()]
    return st.tuples(*pairs).map(lambda drawn: Named(function, drawn, known_sums(sums, drawn)))
