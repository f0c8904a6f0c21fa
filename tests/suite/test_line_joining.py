"""Blocks of one statement stand behind their heads where they fit, and whatever else is in a script stays."""

from __future__ import annotations

import ast

import pytest

from conformance.reproducers.line_joining import joined
from conformance.reproducers.script_syntax import WIDTH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(h):\n    return h\n", "def f(h): return h\n"),
        ("for x in y:\n    for z in x:\n        use(z)\n", "for x in y:\n    for z in x: use(z)\n"),
        ("if x:\n    use(x)  # a word\nuse(y)\n", "if x: use(x)  # a word\nuse(y)\n"),
        (
            "try:\n    use(x)\nexcept A as b:\n    use(b)\nexcept B:\n    c()\n    d()\n",
            "try: use(x)\nexcept A as b: use(b)\nexcept B:\n    c()\n    d()\n",
        ),
        ("import a\n\nuse(a)\n\n\nuse(b)\n", "import a\n\nuse(a)\nuse(b)\n"),
        ('import a\n\nuse("""\n\n""")\n', 'import a\n\nuse("""\n\n""")\n'),
    ],
)
def test_a_block_of_one_statement_stands_behind_its_head(text: str, expected: str) -> None:
    assert joined(text) == expected
    assert ast.dump(ast.parse(joined(text))) == ast.dump(ast.parse(text))
    assert joined(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "def f(h):\n    use(h)\n    return h\n",
        "if x:  # a word:\n    use(x)\n",
        "if x:\n    use(x)\nelse:\n    use(y)\n",
        "if x:\n    # a word\n    use(x)\n",
        "def f(h,\n      k):\n    return h\n",
        "def f(h):\n    return [\n        h]\n",
        "try:\n    use(x)\nfinally:\n    use(y)\n",
        f"if x:\n    {'a' * (WIDTH - 5)}\n",
        "with a:\n    with b:\n        use(x)\n        use(y)\n",
    ],
)
def test_other_blocks_stay(text: str) -> None:
    assert joined(text) == text
