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
from conformance.reproducers.reduction_steps import MOST, denser_ones, laid_out, smaller_ones
from conformance.reproducers.script import HOOK, UNMEASURED, binding, binding_in
from conformance.reproducers.script_syntax import dotted_names, parts, unparse
from impls import Implementation

Lines = frozenset[tuple[str, int]]  # how many of each
Step = tuple[Lines, Lines]
Shows = Callable[["Smaller"], Outcome | None]  # what a program shows of the fault
HEAD = ("import torch", "import torch.distributed as dist")
EVALUATIONS = 60  # smaller programs that are tried at most
HANG_SECONDS = 30
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
    told = [] if result.measured is not None else [UNMEASURED + textwrap.indent(result.detail, "# ")]
    bound = _binding(result.implementation, options)
    text = "\n".join(line for line in result.program.source.splitlines() if line not in HEAD).strip("\n")
    tail = _tail(result)
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


def _tail(result: Result) -> str:
    """The code that starts the process group, runs the program, and ends with the status if it can measure what was found."""
    measured = result.measured or Measured()
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
    ending = script_endings.notes if result.measured is None else ENDINGS.get(what, script_endings.values)
    body = embedding.body(ending, arguments)
    if "plain" in identifiers(body):
        embedding.add(REFERENCES["checkpoint"], "plain")
    if result.device != "cpu":
        body = body.replace('"cpu"', f'"{result.device}"')
    return "\n".join([*embedding.texts.values(), *_start(result.device), body]) + "\n"


def _start(device: str) -> list[str]:
    """The lines by which a rank takes its device, and starts the group."""
    placed = ['torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', f'torch.set_default_device("{device}")']
    return [*(placed if device != "cpu" else []), f'dist.init_process_group("{BACKENDS[device]}")']


def program_in(script: str, result: Result) -> Smaller | None:
    """The program of a script that an earlier run made of such a result, a statement a line; None if the script has none.

    Its arguments are not known, for a script does not say them, and those of the result may be others.
    """
    found = _smaller(script, binding_in(script), result)
    return None if found is None else replace(found, source=f"{unparse(ast.parse(found.source))}\n", arguments=None)


def reduced(result: Result, options: str, shows: Shows, earlier: Iterable[Smaller] = ()) -> Result:
    """The result with the smallest program that still ``shows`` the fault, of those that leaving something out gives.

    What ``shows`` gives says what is due of the smaller program, None that it has not the fault. If one does that was found
    ``earlier``, for another implementation or in another run, that is taken; if its script is too long, it is made smaller.
    If a script stays too long, what its program uses once is put where it is used.
    """
    bound, best = _binding(result.implementation, options), result
    for program in earlier:
        if (found := shows(program)) is not None:
            best = _of(result, program, found)
            break

    def is_long(one: Result) -> bool:
        return len(script(one, 2, options).splitlines()) > MOST

    if best is result or (is_long(best) and not (isinstance(best.program, Smaller) and best.program.least)):
        best = _least(best, bound, shows, is_long)
    return _denser(best, bound, shows, is_long)


def _least(result: Result, bound: str, shows: Shows, is_long: Callable[[Result], bool]) -> Result:
    """The result with all left out of its program that its fault does not need.

    A step that has lost the fault is not tried again once others were made, unless the script is too long without.
    """
    best, tried, improved = result, 0, True
    lost, again = set[Step](), False  # steps that lost the fault, and whether one of them was left out since a step was made
    while improved and tried < EVALUATIONS:
        improved = False
        before = _one_a_line(best, bound)
        for text in smaller_ones(before, bound):
            if (step := _step(before, text)) in lost:
                again = True
                continue
            if (tried := tried + 1) > EVALUATIONS:
                break
            if (found := _shown(text, bound, best, shows)) is not None:
                best, improved = found, True
                break
            lost.add(step)
        if not improved and again and tried < EVALUATIONS and is_long(best):
            lost.clear()
            improved, again = True, False
    if isinstance(best.program, Smaller) and 0 < tried < EVALUATIONS:
        best = replace(best, program=replace(best.program, least=True))
    return best


def _denser(result: Result, bound: str, shows: Shows, is_long: Callable[[Result], bool]) -> Result:
    """The result with what its program uses once where it is used, as far as its script is too long without."""
    best, lost, improved = result, set[Step](), True
    while improved and is_long(best):
        improved = False
        before = _one_a_line(best, bound)
        for text in denser_ones(before, bound):
            if (step := _step(before, text)) in lost or len(lost) >= EVALUATIONS:
                continue
            if (found := _shown(text, bound, best, shows)) is not None:
                best, improved = found, True
                break
            lost.add(step)
    return best


def _shown(text: str, bound: str, before: Result, shows: Shows) -> Result | None:
    """The result with the program of a smaller script; None if that has not the fault, or is no program."""
    smaller = _smaller(text, bound, before)
    found = None if smaller is None else shows(smaller)
    return None if smaller is None or found is None else _of(before, smaller, found)


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
