"""Renders a verdict as a script for ``torchrun --nproc-per-node N`` that needs only torch and the implementation."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from conformance.distributed import script_endings
from conformance.distributed.answer import BACKENDS
from conformance.distributed.programs import policies
from conformance.judging.judge import Outcome
from conformance.judging.references import REFERENCES
from conformance.judging.result import Result
from conformance.judging.verdicts import Measured
from conformance.programs.program import WIDTH
from conformance.programs.syntax import identifiers
from conformance.reproducers.embedding import Embedding
from conformance.reproducers.reduction_steps import MOST, laid_out, smaller_ones
from conformance.reproducers.script import HOOK, binding
from conformance.reproducers.script_syntax import dotted_names, parts
from impls import Implementation

Lines = frozenset[tuple[str, int]]  # how many of each
Step = tuple[Lines, Lines]
HEAD = ("import torch", "import torch.distributed as dist")
EVALUATIONS = 60  # smaller programs that are tried at most
HANG_SECONDS = 30
UNMEASURED = "# The law measures more than this script does, which compares what the program notes. What was found:\n"
ENDINGS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "kernels": script_endings.counts,
        "recomputed": script_endings.recomputed,
        "calls": script_endings.calls,
        "raises": script_endings.raises,
        "hangs": script_endings.hangs,
        "same": script_endings.same,
        "expected": script_endings.expected,
    }
)


@dataclass(frozen=True)
class Smaller:
    """A smaller program: its text, with the sums and arguments of the whole one; None if these are not known.

    It is ``least`` if each step that would make it smaller was tried, for some implementation, and lost the fault.
    """

    source: str
    sums: Any
    arguments: tuple[tuple[str, Any], ...] | None = None
    least: bool = field(default=False, compare=False)


def script(result: Result, ranks: int, options: str = "") -> str:
    """The program of a result as a script, "" if it has none. If it cannot measure what the law does, its head says so."""
    if result.program is None:
        return ""
    about = f"{result.implementation.name}, law {result.law.name}. {result.law.statement}"
    head = '"""' + "\n".join(textwrap.wrap(f"{about} torchrun --nproc-per-node {ranks} shows it.", WIDTH - 6)) + '"""'
    told = [] if result.measured else [UNMEASURED + textwrap.indent(result.detail, "# ")]
    bound = _binding(result.implementation, options)
    text = "\n".join(line for line in result.program.source.splitlines() if line not in HEAD).strip("\n")
    tail = _tail(result.measured or Measured(), result)
    used = dotted_names(f"{bound}\n{text}\n{tail}")
    modules = sorted(
        {"os", "sys", *(name for name in ("collections", "contextlib", "faulthandler", "functools") if name in used)}
    )
    begin = [head, *told, f"import {', '.join(modules)}", HOOK, *HEAD, bound]
    return laid_out("\n".join(begin) + f"\n\n{text}\n\n{tail}")


def _binding(implementation: Implementation, options: str) -> str:
    """Python source that binds what a script judges, after the definitions of the policies that the options name."""
    embedding = Embedding()
    for name in sorted(identifiers(f"dict({options})") & vars(policies).keys()):
        embedding.add(vars(policies)[name])
    if not embedding.texts:
        return binding(implementation, options)
    subject, _, call = binding(implementation, options.replace(f"{policies.__name__}.", "")).rpartition("\n")
    return "\n".join([subject, *embedding.texts.values(), call])


def _tail(measured: Measured, result: Result) -> str:
    """The code that starts the process group, runs the program, and ends with the status."""
    due = {str(label): number for label, number in measured.due}
    arguments: dict[str, Any] = {
        "judged": ast.Name("checkpoint", ast.Load()),
        "name": result.implementation.name,
        "tolerance": float(f"{result.units:.4g}") * 2**-23,
        "due": due.get("calls", 0) if measured.what == "calls" else due,
        "rank": due.get("rank", 0),
        "label": next(iter(due), ""),
        "seconds": HANG_SECONDS,
    }
    embedding = Embedding()
    what = "same" if measured.what == "expected" and due else measured.what
    body = embedding.body(ENDINGS.get(what, script_endings.values), arguments)
    if "plain" in identifiers(body):
        embedding.add(REFERENCES["checkpoint"], "plain")
    if result.device != "cpu":
        body = body.replace('"cpu"', f'"{result.device}"')
    return "\n".join([*embedding.texts.values(), *_start(result.device), body]) + "\n"


def _start(device: str) -> list[str]:
    """The lines by which a rank takes its device, and starts the group."""
    placed = ['torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', f'torch.set_default_device("{device}")']
    return [*(placed if device != "cpu" else []), f'dist.init_process_group("{BACKENDS[device]}")']


def program_in(script: str, result: Result, options: str = "") -> Smaller | None:
    """The program of a script that an earlier run made of such a result; None if the script has none.

    Its arguments are not known, for a script does not say them, and those of the result may be others.
    """
    found = _smaller(script, _binding(result.implementation, options), result)
    return None if found is None else replace(found, arguments=None)


def reduced(
    result: Result, options: str, shows: Callable[[Smaller], Outcome | None], earlier: Iterable[Smaller] = ()
) -> Result:
    """The result with the smallest program that still ``shows`` the fault, of those that leaving something out gives.

    What ``shows`` gives says what is due of the smaller program, None that it has not the fault. If one does that was found
    ``earlier``, for another implementation or in another run, that is taken; if its script is too long, it is made smaller.
    A step that has lost the fault is not tried again once others were made, unless the script is too long without.
    """
    bound, best, tried = _binding(result.implementation, options), result, 0
    for program in earlier:
        if (found := shows(program)) is not None:
            best = _of(result, program, found)
            if program.least:
                return best
            break

    def is_long() -> bool:
        return len(script(best, 2, options).splitlines()) > MOST

    lost, again = set[Step](), False  # steps that lost the fault, and whether one of them was left out since a step was made
    improved = best is result or is_long()
    while improved and tried < EVALUATIONS:
        improved = False
        before = _one_a_line(best, bound)
        for text in smaller_ones(before, bound):
            if (step := _step(before, text)) in lost:
                again = True
                continue
            if (tried := tried + 1) > EVALUATIONS:
                break
            smaller = _smaller(text, bound, result)
            if smaller is not None and (found := shows(smaller)) is not None:
                best = _of(best, smaller, found)
                improved = True
                break
            lost.add(step)
        if not improved and again and tried < EVALUATIONS and is_long():
            lost.clear()
            improved, again = True, False
    if isinstance(best.program, Smaller) and 0 < tried < EVALUATIONS:  # with none tried, an earlier one was taken as it is
        best = replace(best, program=replace(best.program, least=True))
    return best


def _step(before: str, after: str) -> Step:
    """The lines that a step takes away, and those that it adds."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return frozenset((old - new).items()), frozenset((new - old).items())


def _of(result: Result, program: Smaller, found: Outcome) -> Result:
    """The result with a smaller program, and what was found of that."""
    return replace(result, program=program, measured=found.measured, detail=found.detail, units=found.units)


def _one_a_line(result: Result, bound: str) -> str:
    """A script whose program has a statement a line, which is what is made smaller."""
    assert result.program is not None
    text = "\n".join(line for line in result.program.source.splitlines() if line not in HEAD).strip("\n")
    return f'"""A program."""\n{bound}\n\n{text}\n\nrun(checkpoint, print, "cpu")\n'


def _smaller(text: str, bound: str, whole: Result) -> Smaller | None:
    """The program of a smaller script; None if that is no Python, or has no program."""
    assert whole.program is not None
    try:
        source = "\n".join([*HEAD, "", parts(text, bound).program]) + "\n"
        compile(source, "<smaller>", "exec")
    except (SyntaxError, ValueError):
        return None
    return Smaller(source, whole.program.sums, getattr(whole.program, "arguments", None))
