"""What keeps a script from being one for a bug report."""

from __future__ import annotations

import ast
import sys

from conformance.reproducers.reduction_steps import MOST
from conformance.reproducers.script import binding_in


def imports(text: str) -> set[str]:
    """The modules, by the first part of their names, that a text imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def faults_of(text: str) -> list[str]:
    """What keeps a script from being one for a bug report: too many lines, or modules that are not the implementation's."""
    allowed = {"torch", *sys.stdlib_module_names}
    if "torch.testing._internal" in text:
        allowed.add("numpy")  # without which torch's database of operators cannot be imported
    bound = imports(binding_in(text))
    about_torch = text.startswith('"""torch-') and not text.startswith('"""torch-remat')
    foreign = (imports(text) | bound) - allowed if about_torch else imports(text) - allowed - bound
    lines = len(text.splitlines())
    return [*([f"{lines} lines"] if lines > MOST else []), *sorted(foreign | (imports(text) & {"conformance"}))]
