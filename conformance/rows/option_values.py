"""Reads values of command-line options, and writes commands of this project as one types them.

Each reader takes the text of one value, or raises ValueError with what was given and what is accepted. The caller puts the
name of the option in front of the message, and ends with status 2.
"""

from __future__ import annotations

import difflib
import math
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from conformance.rows.results_file import ROOT


class InvalidOption(ValueError):
    """A value of an option, or several options together, that are not accepted: the command ends with status 2."""


def did_you_mean(given: str, there: Iterable[str]) -> str:
    """What to add to a message about an unknown name: the nearest one; "" if none is near."""
    nearest = difflib.get_close_matches(given, list(there), 1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def implementation_hint(name: str) -> str:
    """What to add to a message about an implementation that is not found: the nearest name, or what to write for a path."""
    import impls  # which imports torch, and no reader of an option needs it

    path, colon, attribute = name.partition(":")
    if path.endswith(".py") or "/" in path:
        directory, module = os.path.split(path.removesuffix(".py"))
        start = f"PYTHONPATH={directory} " if directory else ""
        return f". It is a path; accepted is a module: {start}--impl {module}:{attribute or 'checkpoint'}"
    there = [*impls.names(), *impls.COMPILED, *impls.PEERS, *impls.installed()]
    return "" if colon or name in there else did_you_mean(name, there)


def command(*arguments: object) -> str:
    """A command of this project, to be typed in the current directory: Python finds its modules only from the clone's root."""
    words = [str(one.resolve()) if isinstance(one, Path) else str(one) for one in arguments]
    line = shlex.join([sys.executable, "-m", "reprise", *words])
    return line if Path.cwd() == ROOT else f"cd {shlex.quote(str(ROOT))} && {line}"


def readable(text: str) -> Path:
    """The path of an existing file."""
    path = Path(text)
    if not path.is_file():
        there = "is no file" if path.exists() else "does not exist"
        raise ValueError(f"{text} {there}; accepted is a file that a run wrote, such as results/runs/NAME.jsonl")
    return path


def writable(text: str) -> str:
    """The path of a file to be written, in an existing directory; or ``-``."""
    path = Path(text)
    if text != "-" and not path.parent.is_dir():
        raise ValueError(f"{text} cannot be written: {path.parent} is not a directory; make it first")
    if path.is_dir():
        raise ValueError(f"{text} is a directory; accepted is the path of a file")
    return text


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ValueError(f"it is {text}; accepted is a whole number, 0 or more")
    return value


def positive(text: str, what: str = "a number") -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"it is {text}; accepted is {what} above 0")
    return value


def gibibytes(text: str) -> float:
    """A number of GiB, above 0."""
    return positive(text, "a number of GiB")
