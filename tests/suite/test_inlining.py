"""A variable that is used once is put where it is used, and what is used twice, or does not fit, is left."""

from __future__ import annotations

import ast
import textwrap

import pytest

from conformance.reproducers.inlining import put_where_used


def put(text: str) -> list[str]:
    program = textwrap.dedent(text).strip("\n") + "\n"
    return [one.rstrip() for one in put_where_used(ast.parse(program).body, program.splitlines(keepends=True))]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = a + b\nuse(x * 2)", ["use((a + b) * 2)"]),
        ("x = a\nuse(x)", ["use(a)"]),
        ("x = a()\nuse(x, x)", []),
        ("x = a()\nx = x.b()", []),
        ("p = make(requires_grad=True)\nuse(p)", []),  # a leaf reads best on a line of its own
        ("p = make().requires_grad_()\nuse(p)", []),
        ("x = 'a' * 3\nuse('" + "b" * 118 + "', x)", []),  # the line would be too long
        ("use(x)\nx = a()", []),
        ("def f():\n    y = a()\n    return y\nx = f() + f()", ["def f():\n    return a()\nx = f() + f()"]),
    ],
)
def test_one_thing_is_put_elsewhere(text: str, made: list[str]) -> None:
    assert put(text) == made
