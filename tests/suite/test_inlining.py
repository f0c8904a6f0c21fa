"""What is used once is put where it is used, and what is used twice, or does not fit, is left."""

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
        ("x = a()\nuse(x, x)", []),
        ("x = a()\nx = x.b()", []),
        ("x = a\nuse(x, x + y)", ["use(a, a + y)"]),
        ("p = make(requires_grad=True)\nuse(p)", []),  # a leaf reads best on a line of its own
        ("x = 'a' * 3\nuse('" + "b" * 118 + "', x)", []),  # the line would be too long
        ("use(x)\nx = a()", []),
        ("def f(h):\n    return h + 1\nuse(f)", ["f = lambda h: h + 1\nuse(f)"]),
        ("def f(h, k):\n    return g(h, k)\nuse(f)", ["f = g\nuse(f)"]),
        ("def f():\n    y = a()\n    return y\nx = f()", ["y = a()\nx = y", "def f():\n    return a()\nx = f()"]),
        ("def f():\n    y = a()\n    return y\nx = f() + f()", ["def f():\n    return a()\nx = f() + f()"]),
        (
            "def f(name, call):\n    seen[name] = 1\n    call()\nf('a', lambda: g(2))",
            ["seen['a'] = 1\ng(2)"],
        ),
        ("def f(name):\n    seen[name] = 1\nf('a')\nf('b')", []),
        ("def f(name):\n    seen[name] = 1\nuse(f('a'))", []),
    ],
)
def test_one_thing_is_put_elsewhere(text: str, made: list[str]) -> None:
    assert put(text) == made


def test_what_is_put_is_indented_as_where_it_goes() -> None:
    text = """
        def f(call):
            with quiet():
                call()
        if ready:
            f(lambda: use(1))
    """
    assert "if ready:\n    with quiet():\n        use(1)" in put(text)
