"""The command ``reprise check``; it needs torch and numpy alone."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from reprise.model_check.report import Report

NEEDED = "torch", "numpy"
IN_OUTPUT = Path("-")  # as --json: the report is printed
INVALID = 2
FAILED = 3
INTERRUPTED = 130  # what a shell reports of a command that an interrupt ended


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(INVALID, f"reprise check: {message}; see reprise check --help\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="reprise check",
        description="Compare steps of your model with checkpointing to plain ones: gradients, buffers, memory, time.",
        epilog="Example: reprise check mypkg.train:build --impl nested",
        allow_abbrev=False,
    )
    parser.add_argument("build", help="pkg.mod:function, which returns (model, loss) or (model, example_inputs)")
    parser.add_argument("--impl", nargs="+", action="extend", metavar="NAME", help="default: torch-nonreentrant nested")
    parser.add_argument("--regions", nargs="+", action="extend", metavar="GLOB", help="modules to checkpoint: 'layers.*'")
    parser.add_argument("--device", metavar="D", help="where build and the steps run: cpu, cuda, ...")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="steps of SGD that are compared (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found; - is standard output")
    parser.add_argument("--explain", action="store_true", help="find the first operator whose value differs")
    parser.add_argument(
        "--budget", metavar="BYTES", help="choose regions so that a step's peak fits; also 1.5GiB, or 60%% of plain's"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Check a model. The status is 1 if one diverges, refuses or crashes, 2 for bad input, 3 for an error of this package.

    Bad input is a budget that is not kept, too, after a report. The status is 130 after an interrupt.
    """
    try:
        return _status(arguments)
    except KeyboardInterrupt:
        print("reprise check: interrupted; nothing is written", file=sys.stderr)
        return INTERRUPTED


def _status(arguments: Sequence[str]) -> int:
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    if options.json and (told := _unwritable(options.json)):
        return _invalid(told)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")  # so that modules in the user's directory can be imported
    if told := _hidden():
        return _invalid(told)
    report = _report_or_status(options)
    return report if isinstance(report, int) else _written(report, options.json)


def _hidden() -> str:
    """What hides this project's implementations, as a module of that name in the user's directory does; "" if nothing does."""
    spec = importlib.util.find_spec("impls")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or origin.parent == Path(__file__).resolve().parents[2] / "impls":
        return ""
    return f"{origin} hides the package impls of reprise; rename it, or run from another folder"


def _unwritable(path: Path) -> str:
    """Why no report can be written to this file; "" if nothing is known against it."""
    if not path.absolute().parent.is_dir():
        return f"--json is {path}; its folder must exist"
    return f"--json is {path}, which is a folder; it must be a file" if path.is_dir() else ""


def _report_or_status(options: argparse.Namespace) -> Report | int:
    """The report, or the status if there is none, which is told. Raises KeyboardInterrupt after an interrupt."""
    try:
        with _interrupts() as interrupts:
            return _report(options, interrupts)
    except _BadInput as error:
        return _invalid(str(error))
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            return _failed()
        told = f"it needs the package {error.name}, which this Python lacks: {sys.executable} -m pip install {error.name}"
        return _invalid(told)
    except SystemExit as end:
        return _invalid(f"a module ended the process as it was imported, with status {end.code}; nothing was checked")
    except Exception:  # noqa: BLE001 - Python's own status for it, 1, would say that an implementation diverges
        return _failed()


class _BadInput(Exception):
    """What the user gave is not accepted, in one line."""


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list that gets an element by each interrupt inside; if it has any at the end, KeyboardInterrupt is raised.

    Code that runs inside may catch the first: torch, as it is imported, goes on with half of numpy. What becomes of the
    check then, an error or a report, is no result.
    """
    interrupts: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _raise_if(interrupts)


def _raise_if(interrupts: list[int]) -> None:
    if interrupts:
        raise KeyboardInterrupt from None


def _report(options: argparse.Namespace, interrupts: list[int]) -> Report:
    """The report. Raises _BadInput, and KeyboardInterrupt soon after an interrupt that torch or numpy caught."""
    from reprise.model_check.builder import load_build
    from reprise.model_check.checking import DEFAULT, check
    from reprise.model_check.errors import BAD_INPUT

    def tell(told: str) -> None:
        _raise_if(interrupts)
        print(f"... {told}", file=sys.stderr, flush=True)

    _raise_if(interrupts)
    try:
        with redirect_stdout(sys.stderr) if options.json == IN_OUTPUT else nullcontext():  # what a model prints is no JSON
            return check(
                load_build(options.build),
                impl=options.impl or DEFAULT,
                regions=options.regions or (),
                device=options.device,
                steps=options.steps,
                explain=options.explain,
                budget=options.budget,
                progress=tell,
            )
    except BAD_INPUT as error:
        raise _BadInput(" ".join(line for part in str(error).splitlines() if (line := part.strip()))) from error


def _written(report: Report, path: Path | None) -> int:
    """Print the report, and write it to a file, if one is given. Returns the status."""
    in_output = path == IN_OUTPUT
    print(report.as_json() if in_output else report)
    if path and not in_output:
        try:
            path.write_text(report.as_json() + "\n", encoding="utf-8")
        except OSError as error:
            return _invalid(f"--json cannot be written: {error}")
    return 0 if report.passes else 1 if report.fails else INVALID


def _invalid(told: str) -> int:
    print(f"reprise check: {told}", file=sys.stderr)
    return INVALID


def _failed() -> int:
    """Tell the error that is handled, which is one of this package."""
    traceback.print_exc()
    print("reprise check: this is an error of reprise itself, and says nothing about your model", file=sys.stderr)
    return FAILED
