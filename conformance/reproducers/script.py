"""What shows a verdict as a script of its own: torch and the implementation alone, status 1 while the fault is there.

A script runs the program under plain and under the implementation and prints where they differ. Where a law measures
more than a program notes, the script has a small meter of its own, and what is due stands in it as a number. Any error
that the script does not expect, an import that fails among them, ends it with status 2.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap

from conformance.judging.verdicts import Measured
from conformance.reproducers import script_parts as parts
from conformance.reproducers.script_parts import WIDTH
from conformance.reproducers.script_syntax import (
    dotted_names,
    first_modules,
    identifiers,
    notes_costs,
    with_modules,
    without,
)
from impls import Implementation, Kind

UNMEASURED = "# The law measures more than this script does, which only prints what the program notes. What was found:\n"


def binding(implementation: Implementation, options: str = "") -> str:
    """Python source that binds what a script judges; ``options`` are arguments for checkpoint, as text."""
    text = re.sub(r"\n+", "\n", implementation.importing(parts.SUBJECTS[implementation.kind]))
    return f"{text.rstrip()}\ncheckpoint = functools.partial(checkpoint, {options})" if options else text


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
    """A program as a script. ``law`` is said at its head; ``options`` are arguments for checkpoint, as text.

    Values are compared as :func:`~conformance.judging.verdicts.difference` does where rounding may change them by so many
    ``units`` of their dtype's resolution, 0 for bit for bit.

    Where ``measured`` is None it has no status that says something, tells so and what was found, the ``detail``, and prints
    what the program notes.
    """
    tail = _tail(measured or Measured(), source, implementation, device, units)
    if measured is None:
        tail = tail.replace("sys.exit(len(wrong) > 0)\n", "")
    alone = _imported_alone(source)
    imported = {name for name in alone.values() if name.partition(".")[0] in sys.stdlib_module_names}
    left = {number: name for number, name in alone.items() if name not in ("torch", *imported)}
    kept = (line for number, line in enumerate(source.splitlines(), 1) if number not in alone or number in left)
    program = "\n".join(kept).strip("\n")
    program = re.sub(r"\n{3,}", "\n\n", re.sub(r"\n{2,}(?= )", "\n", f"\n{program}\n\n"))
    bound = _needed(binding(implementation, options), program, parts.SUBJECTS[implementation.kind])
    used = dotted_names(f"{bound}\n{program}{tail}")
    modules, ours = ([name for name in names if name in used] for names in (parts.MODULES, parts.OURS))
    imports = [f"import {', '.join(sorted({*modules, *imported, 'os', 'sys'}))}", parts.HOOK]
    imports += [*(f"import {name}" for name in ours if name not in left.values()), "import torch"]
    head = '"""' + "\n".join(textwrap.wrap(f"{implementation.name}, {law}", WIDTH - 6)) + '"""'
    told = [] if measured is not None else [UNMEASURED + textwrap.indent(detail or "nothing", "# ")]
    return "\n".join([head, *told, *imports, bound]) + "\n" + program + tail


def hanging(script: str, implementation: Implementation, device: str) -> str:
    """The script of a program that hangs, from the one that was written for the end of its process."""
    ends, hangs = (_tail(Measured(what), "", implementation, device) for what in ("ends", "hangs"))
    return with_modules(script, {*first_modules(script), "faulthandler"}).replace(ends, hangs)


def _imported_alone(source: str) -> dict[int, str]:
    """The modules that a program imports outside of ``run``, one by a line, by the number of that."""
    found: dict[int, str] = {}
    for one in ast.parse(source).body:
        match one:
            case ast.Import([ast.alias(name, None)]):
                found[one.lineno] = name
    return found


def _needed(bound: str, program: str, subject: str) -> str:
    """The lines of a binding, without attributes that the program has no use for, and imports that nothing has a use for."""
    used = identifiers(program)
    bound = without(bound, [one for one in ast.parse(bound).body if (name := _attribute(one)) and name not in used])
    loaded = {subject, *identifiers("\n".join(ast.unparse(one) for one in ast.parse(bound).body if not _imports_one(one)))}
    unused = [one for one in ast.parse(bound).body if (name := _imports_one(one)) and name not in loaded]
    return without(bound, unused).rstrip()


def _attribute(statement: ast.stmt) -> str:
    """The name of the attribute that a statement binds, "" if it binds none."""
    match statement:
        case ast.Assign([ast.Attribute(ast.Name(), name)]):
            return name
    return ""


def _imports_one(statement: ast.stmt) -> str:
    """The name that a statement binds to the one thing that it imports from a module, "" if it does not."""
    match statement:
        case ast.ImportFrom(_, [ast.alias(name, other)]):
            return other or name
    return ""


def _tail(measured: Measured, source: str, implementation: Implementation, device: str, units: float = 0) -> str:
    """What runs the program, compares, and ends with the status."""
    values = {
        "PLAIN": _plain(source, implementation.kind),
        "SHOW": parts.SHOW_NEAR % (units, units) if units else parts.SHOW,
        "NOTE": (parts.NOTE_ASIDE if "Moves" in identifiers(source) else parts.NOTE)
        % (parts.SHOWN_NEAR if units else parts.SHOWN),
        "COSTS": ' and not label.startswith("cost")' if notes_costs(source) else "",
        "SUBJECT": parts.SUBJECTS[implementation.kind],
        "NAME": implementation.name,
        "DEVICE": f'"{device}"',
        "DUE": repr(dict(measured.due)),
        "BOUND": "at most " if measured.at_most else "",
        "SIGN": ">" if measured.at_most else "!=",
        "SURPLUS": "packed - due" if measured.at_most else "packed.keys() - due.keys()",
        "REGION": f"== {measured.region!r}" if measured.region else '!= "run"',
        "FORGET": parts.FORGET,
        "CALLER": parts.CALLER,
        "SECONDS": str(parts.HANG_SECONDS),
    }
    text = parts.TAILS[measured.what]
    if measured.what == "inside":
        text = text.replace("    FORGET\n", "")
    if len(measured.due) == 1:
        text = text.replace(parts.COUNTED, parts.COUNTED_ONCE)
        values |= {"LABEL": measured.due[0][0], "NUMBER": repr(measured.due[0][1])}
    return re.sub("|".join(values), lambda name: values[name[0]], text)


def _plain(source: str, kind: Kind) -> str:
    if kind != "graph":
        return parts.CALL if kind == "checkpoint" else parts.MODEL
    named = identifiers(source)
    used = [f'"{name}": {value}' for name, value in parts.UNHOOKED.items() if name in named]
    if not used:
        return "plain = torch.autograd.graph"
    begin = "plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {"
    one_line = begin + ", ".join(used) + "})"
    return one_line if len(one_line) <= WIDTH and "\n" not in one_line else begin + "\n    " + ",\n    ".join(used) + "})"
