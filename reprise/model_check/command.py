"""The command ``reprise check``; it needs torch and numpy alone."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

NEEDED = "torch", "numpy"
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

    Bad input is a budget that is not kept, too, after a report.
    """
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    if options.json and not options.json.absolute().parent.is_dir():
        print(f"reprise check: --json is {options.json}; its folder must exist", file=sys.stderr)
        return INVALID
    if options.json and options.json.is_dir():
        print(f"reprise check: --json is {options.json}, which is a folder; it must be a file", file=sys.stderr)
        return INVALID
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")  # so that modules in the user's directory can be imported
    bad_input: tuple[type[Exception], ...] = ()
    try:
        from reprise.model_check.builder import load_build  # here, since an interrupt may come while torch is imported
        from reprise.model_check.checking import DEFAULT, check
        from reprise.model_check.errors import BAD_INPUT

        bad_input = BAD_INPUT
        report = check(
            load_build(options.build),
            impl=options.impl or DEFAULT,
            regions=options.regions or (),
            device=options.device,
            steps=options.steps,
            explain=options.explain,
            budget=options.budget,
            progress=lambda told: print(f"... {told}", file=sys.stderr, flush=True),
        )
    except bad_input as error:
        print(f"reprise check: {error}", file=sys.stderr)
        return INVALID
    except SystemExit as end:
        print(
            f"reprise check: a module ended the process as it was imported, with status {end.code}; nothing was checked",
            file=sys.stderr,
        )
        return INVALID
    except KeyboardInterrupt:
        print("reprise check: interrupted; nothing is written", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - Python's own status for it, 1, would say that an implementation diverges
        if isinstance(error, ModuleNotFoundError) and error.name in NEEDED:
            told = f"reprise check needs the package {error.name}, which this Python lacks: {sys.executable}"
            print(f"{told} -m pip install {error.name}", file=sys.stderr)
            return INVALID
        traceback.print_exc()
        print("reprise check: this is an error of reprise itself, and says nothing about your model", file=sys.stderr)
        return FAILED
    in_output = options.json == Path("-")
    print(report.as_json() if in_output else report)
    if options.json and not in_output:
        try:
            options.json.write_text(report.as_json() + "\n", encoding="utf-8")
        except OSError as error:
            print(f"reprise check: --json cannot be written: {error}", file=sys.stderr)
            return INVALID
    return 0 if report.passes else 1 if report.fails else INVALID
