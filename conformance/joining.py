"""A script in fewer lines that do the same: blocks of one statement stand on the line of their head."""

from __future__ import annotations

import ast

from conformance.script_parts import WIDTH

HEADS = (ast.FunctionDef, ast.ClassDef, ast.For, ast.With, ast.If)
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Pass, ast.Assert)


def joined(script: str) -> str:
    """The script with each block of one simple statement behind its head, where both fit on a line. Comments stay."""
    lines = script.splitlines(keepends=True)
    for node in reversed([one for one in ast.walk(ast.parse(script)) if isinstance(one, HEADS)]):
        body, head = node.body[0], lines[node.lineno - 1].rstrip()
        alone = len(node.body) == 1 and isinstance(body, SIMPLE) and not getattr(node, "orelse", None)
        one_line = body.lineno == body.end_lineno == node.lineno + 1 and head.endswith(":") and "#" not in head
        text = f"{head} {lines[body.lineno - 1].lstrip()}"
        if alone and one_line and len(text.rstrip("\n")) <= WIDTH:
            lines[node.lineno - 1], lines[body.lineno - 1] = text, ""
    return "".join(lines)
