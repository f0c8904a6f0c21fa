"""Renders a verdict as a script that needs only torch and the implementation, and ends with status 1 while the fault is there.

A script runs the program under plain and under the implementation and prints where they differ. If a law measures more than a
program notes, the script has the source of the suite's own meter, and the expected numbers. Any error that it does not expect,
such as an import that fails, ends it with status 2.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from conformance.judging import references
from conformance.judging.verdicts import Measured
from conformance.programs.program import WIDTH
from conformance.programs.scenarios import contexts
from conformance.programs.syntax import identifiers
from conformance.reproducers.embedding import Embedding
from conformance.reproducers.script_endings import COUNTS, ENDS, report
from conformance.reproducers.script_syntax import (
    dotted_names,
    first_modules,
    notes_costs,
    with_modules,
    without,
)
from impls import Implementation, Kind

MODULES = ("collections", "contextlib", "faulthandler", "functools", "gc", "inspect", "itertools", "traceback", "types")
OURS = (contexts.__name__,)
HOOK = "sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone"
SUBJECTS: Mapping[Kind, str] = MappingProxyType({"checkpoint": "checkpoint", "graph": "graph", "offload": "OffloadModel"})
HANG_SECONDS = 30  # more than a case may take when it is judged
UNMEASURED = "# The law measures more than this script does, which only prints what the program notes. What was found:\n"


@contextmanager
def room_to_recurse() -> Iterator[None]:
    """Allow Python's usual depth of recursion, which what was judged may have lowered."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 1000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def binding(implementation: Implementation, options: str = "") -> str:
    """Python source that binds what a script judges; ``options`` are arguments for checkpoint, as text."""
    text = re.sub(r"\n+", "\n", implementation.importing(SUBJECTS[implementation.kind]))
    return f"{text.rstrip()}\ncheckpoint = functools.partial(checkpoint, {options})" if options else text


def self_contained(options: str, program: str) -> str:
    """Options as text. This project's contexts are named as in the script: defined there, or in the module that it imports."""
    return options if contexts.__name__ in program else options.replace(f"{contexts.__name__}.", "")


def _contexts(options: str) -> list[str]:
    """The definitions of this project's contexts that options name, for a script that does not import them."""
    embedding = Embedding()
    for name in sorted(identifiers(f"dict({options})") & vars(contexts).keys()):
        embedding.add(vars(contexts)[name])
    return list(embedding.texts.values())


def binding_in(script: str) -> str:
    """The lines of a script that bind what it judges."""
    return script.partition("\nimport torch\n")[2].partition("\n\n")[0]


def script(
    source: str,
    implementation: Implementation,
    law: str,
    measured: Measured | None,
    options: str = "",
    device: str = "cpu",
    detail: str = "",
    units: float = 0,
) -> str:
    """A program as a script. Its docstring names the ``law``; ``options`` are arguments for checkpoint, as text.

    Values are compared as by :func:`~conformance.judging.verdicts.difference`: rounding may change them by so many ``units`` of
    their dtype's resolution; with 0 they are compared bit for bit.

    If ``measured`` is None, the script only prints what the program notes, and its status means nothing. A comment says so,
    with the ``detail`` of what was found.
    """
    with room_to_recurse():
        tail = _tail(measured, source, implementation, device, units)
    alone = _imported_alone(source)
    imported = {name for name in alone.values() if name.partition(".")[0] in sys.stdlib_module_names}
    left = {number: name for number, name in alone.items() if name not in ("torch", *imported)}
    kept = (line for number, line in enumerate(source.splitlines(), 1) if number not in alone or number in left)
    program = "\n".join(kept).strip("\n")
    program = re.sub(r"\n{3,}", "\n\n", re.sub(r"\n{2,}(?= )", "\n", f"\n{program}\n\n"))
    options = self_contained(options, source)
    bound = _without_unused(binding(implementation, options), program, SUBJECTS[implementation.kind])
    own = [] if contexts.__name__ in source else _contexts(options)
    used = dotted_names("\n".join([*own, bound, program]) + tail)
    modules, ours = ([name for name in names if name in used] for names in (MODULES, OURS))
    imports = [f"import {', '.join(sorted({*modules, *imported, 'os', 'sys'}))}", HOOK]
    imports += [f"import {name}" for name in ours if name not in left.values()]
    imports += [*own, "import torch"]
    head = '"""' + "\n".join(textwrap.wrap(f"{implementation.name}, {law}", WIDTH - 6)) + '"""'
    told = [] if measured is not None else [UNMEASURED + textwrap.indent(detail or "nothing", "# ")]
    return "\n".join([head, *told, *imports, bound]) + "\n" + program + tail


def hanging(script: str, implementation: Implementation, device: str) -> str:
    """The script of a program that hangs, made from the script that was prepared in case its process ends.

    Raises ValueError for any other script.
    """
    ends, hangs = (_tail(Measured(what), "", implementation, device) for what in ("ends", "hangs"))
    if ends not in script:
        raise ValueError(f"script is not one of a process that ends: {script!r}")
    return with_modules(script, {*first_modules(script), "faulthandler"}).replace(ends, hangs)


def _imported_alone(source: str) -> dict[int, str]:
    """The modules that a program imports outside of ``run``, by the number of the line that imports it alone."""
    found: dict[int, str] = {}
    for one in ast.parse(source).body:
        match one:
            case ast.Import([ast.alias(name, None)]):
                found[one.lineno] = name
    return found


def _without_unused(bound: str, program: str, subject: str) -> str:
    """The lines of a binding, without attributes and imports that nothing uses."""
    used = identifiers(program)
    bound = without(bound, [one for one in ast.parse(bound).body if (name := _bound_attribute(one)) and name not in used])
    loaded = {subject, *identifiers("\n".join(ast.unparse(one) for one in ast.parse(bound).body if not _imported_name(one)))}
    unused = [one for one in ast.parse(bound).body if (name := _imported_name(one)) and name not in loaded]
    return without(bound, unused).rstrip()


def _bound_attribute(statement: ast.stmt) -> str:
    """The name of the attribute that a statement binds, "" if it binds none."""
    match statement:
        case ast.Assign([ast.Attribute(ast.Name(), name)]):
            return name
    return ""


def _imported_name(statement: ast.stmt) -> str:
    """The name that a statement binds to the one thing that it imports from a module, "" if it does not."""
    match statement:
        case ast.ImportFrom(_, [ast.alias(name, other)]):
            return other or name
    return ""


def _tail(found: Measured | None, source: str, implementation: Implementation, device: str, units: float = 0) -> str:
    """The code that runs the program and compares; it ends with the status if a script can measure what was found."""
    measured = found or Measured()
    arguments: dict[str, Any] = {
        "judged": ast.Name(SUBJECTS[implementation.kind], ast.Load()),
        "name": implementation.name,
        "device": device,
        "units": 0 if measured.exact else float(f"{units:.4g}"),
        "aside": "Moves" in identifiers(source),
        "costs": notes_costs(source),
        "typed": measured.what == "error",
        "status": found is not None,
        "seconds": HANG_SECONDS,
        "due": {str(label): number for label, number in measured.due},
        "at_most": measured.at_most,
        "region": measured.region,
        "recomputed": measured.what == "recomputed",
    }
    embedding = Embedding()
    functions = [ENDS[measured.what]] if measured.what in ENDS else [COUNTS[measured.what], report]
    bodies = [embedding.body(function, arguments) for function in functions]
    plain = _plain(source, implementation.kind, embedding) if "plain" in identifiers("\n".join(bodies)) else []
    return "\n".join([*embedding.texts.values(), *plain, *bodies]) + "\n"


def _plain(source: str, kind: Kind, embedding: Embedding) -> list[str]:
    """The lines that define plain; definitions that they refer to are embedded."""
    if kind != "graph":
        embedding.add(references.REFERENCES[kind], "plain")
        return []
    named = identifiers(source)
    used = {
        name: value
        for name, value in vars(references.GRAPH).items()
        if name in named and value.__module__ == references.__name__
    }
    for value in used.values():
        embedding.add(value)
    others = "".join(f", '{name}': {value.__name__}" for name, value in used.items())
    return [f"plain = types.SimpleNamespace(**{{**vars(torch.autograd.graph){others}}})"]
