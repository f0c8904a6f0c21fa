"""Values of command-line options: what is not accepted is refused with what was given and what is accepted.

Each is a type for argparse, which names the option in front of the message and ends with status 2. And commands of this
project, as one types them.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path

from conformance.rows.results_file import ROOT


def command(module: str, *arguments: object) -> str:
    """A command of this project as one types it where one is: Python finds its modules from the root of the clone alone."""
    words = [str(one.resolve()) if isinstance(one, Path) else str(one) for one in arguments]
    line = shlex.join([sys.executable, "-m", f"conformance.{module}", *words])
    return line if Path.cwd() == ROOT else f"cd {shlex.quote(str(ROOT))} && {line}"


def readable(text: str) -> Path:
    """The path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        there = "is no file" if path.exists() else "does not exist"
        raise argparse.ArgumentTypeError(
            f"{text} {there}; accepted is a file that a run wrote, such as results/runs/NAME.jsonl"
        )
    return path


def writable(text: str) -> str:
    """The path of a file to be written, in a directory that is there; or ``-``."""
    path = Path(text)
    if text != "-" and not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {path.parent} is not a directory; make it first")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory; accepted is the path of a file")
    return text


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"it is {text}; accepted is a whole number, 0 or more")
    return value


def positive(text: str, what: str = "a number") -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it is {text}; accepted is {what} above 0")
    return value


def gibibytes(text: str) -> float:
    """So many GiB."""
    return positive(text, "a number of GiB")
