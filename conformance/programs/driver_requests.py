"""What a program's driver asks of autograd, read from its lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.programs.program import Program


@dataclass(frozen=True)
class Request:
    """One backward: of which outputs, into which inputs (None: all leaves), and whether the graph is retained."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] | None
    retain: bool


def requests(program: Program) -> Iterator[Request]:
    """The requests of the driver, in their order. Raises ValueError for one with create_graph."""
    for line in program.driver:
        for node in ast.walk(ast.parse(line)):
            match node:
                case ast.Call(func=ast.Attribute(attr="backward" | "grad") as function):
                    yield _request(node, function)


def _request(call: ast.Call, function: ast.Attribute) -> Request:
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if "create_graph" in options:
        raise ValueError(f"{ast.unparse(call)}: requests with create_graph have no predicted costs")
    owner = ast.unparse(function.value)
    outputs = _names(call.args[0]) if owner == "torch.autograd" else (owner,)
    inputs = call.args[1] if function.attr == "grad" else options.get("inputs")
    retain = "retain_graph" in options and bool(ast.literal_eval(options["retain_graph"]))
    return Request(outputs, None if inputs is None else _names(inputs), retain)


def _names(value: ast.expr) -> tuple[str, ...]:
    items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return tuple(ast.unparse(item) for item in items)
