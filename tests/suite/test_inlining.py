"""What is used once is put where it is used, and what is used twice, or does not fit, is left."""

from __future__ import annotations

import ast
import textwrap

import pytest

from conformance.reproducers.inlining import put_where_used, without_calls


def put(text: str) -> list[str]:
    program = textwrap.dedent(text).strip("\n") + "\n"
    return [one.rstrip() for one in put_where_used(ast.parse(program).body, program.splitlines(keepends=True))]


def test_a_call_gives_way_to_its_first_argument() -> None:
    text = "x = f(g(y, 1), 2)\nuse(1)\n"
    assert list(without_calls(ast.parse(text).body, text.splitlines(keepends=True))) == [
        "x = g(y, 1)\nuse(1)\n",
        "x = f(y, 2)\nuse(1)\n",
    ]


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
        ("def f():\n    a()\n    return b\nx, y = f()", ["a()\nx, y = b"]),
        ("def f(x, call):\n    with x:\n        call()\nif a:\n    f(b, lambda: c(1))", ["if a:\n    with b:\n        c(1)"]),
        ("def f(x):\n    return x\nf(f(1))", []),
        ("def f(x):\n    a()\n    return x\ndef g():\n    return f(b)", ["def g():\n    a()\n    return b"]),
        ("def f(x):\n    return x\nuse(f)", []),
        ("def f(x, y=1):\n    use(x, y)\nf(1)", []),
    ],
)
def test_one_thing_is_put_elsewhere(text: str, made: list[str]) -> None:
    assert put(text) == made
