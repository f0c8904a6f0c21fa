"""Reduces a script: removes whatever its fault does not need, so that what is left can be read.

A smaller script is accepted on two conditions. Under the implementation, it still ends with status 1, prints only words that
the whole script prints (numbers aside), and prints the same error if there was one. Under the control, an implementation
that keeps the law, it shows what the whole script shows there, or nothing (status 0, no output) unless that was an error; it
never shows what it shows under the implementation. So a line without which the program itself would be wrong stays.

Each smaller script runs in a process of its own, so no step depends on what an earlier one left behind. shrinkray 26.9.13 was
tried on seven of the longest scripts, 56 to 65 lines: after 25 s each it had them at 44 to 56 lines, these steps at 36 to 45.

The suite runs this module itself, as ``python -m conformance.reproducers.reduction``, with tasks and scripts as JSON.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from conformance.reproducers import script_process
from conformance.reproducers.reduction_steps import MOST, join_lines, laid_out, smaller_ones
from conformance.reproducers.script_syntax import (
    OURS,
    first_modules,
    has_threads,
    imports,
    is_bound,
    parts,
    subject,
    used_modules,
    waits,
    with_modules,
)
from conformance.reproducers.stand_ins import without_fakes

ENDED = 128 + signal.SIGTERM  # the status of a process that was asked to end
EVALUATIONS = 500
SECONDS_PER_RUN = 20.0
SECONDS_PER_SCRIPT = 300.0  # for steps that hang; otherwise EVALUATIONS end a reduction, even on a busy machine
SECONDS_WITHOUT_WAITS = 300.0  # for the last steps of a script with threads, if it is still too long
REPEATED = 5  # how often a smaller script that races must show the fault, so that steps do not make it rarer
MISSING = 20  # runs, in at least one of which threads do not meet, if that happens at all
MEETINGS = 4  # runs, in at least one of which threads meet
AGAIN = "  # threads do not always meet: where it shows nothing, run it again"
NUMBER = re.compile(r"\b(0x[0-9a-f]+|\d[\d.]*(e[+-]?\d+)?|nan|inf|True|False)\b")
WORD = re.compile(r"[^\W\d][\w.]*")


@dataclass(frozen=True)
class Task:
    """A script, the lines that bind its implementation, those that bind the control instead, and an earlier reduction of it.

    The control may be missing. A script without a binding is only run, and stays as it is.
    """

    script: str
    binding: str = ""
    control: str = ""
    earlier: str = ""


@dataclass(frozen=True)
class Shown:
    """What running a script gave: its status, and the words of the lines that it printed, by the beginning of the line.

    A line about a note or a count begins with its name. Numbers and truth values do not count as words.
    """

    status: int
    words: Mapping[str, frozenset[str]]

    def is_like(self, whole: Shown) -> bool:
        """Whether this is the same, or a part of it. Errors must be the same, as an error may be the fault."""
        if self.status != whole.status or bool(self.words) is not bool(whole.words):
            return False
        if self.words.get("error") != whole.words.get("error"):
            return False
        return all(name in whole.words and words <= whole.words[name] for name, words in self.words.items())


NOTHING = Shown(0, {})
Evaluate = Callable[[str, float], Shown]  # runs a script for so many seconds at most


def words(text: str) -> dict[str, frozenset[str]]:
    """The words of what was printed, as ``Shown`` has them."""
    found: dict[str, frozenset[str]] = {}
    for line in filter(str.strip, text.splitlines()):
        name = line.partition(":")[0]
        found[name] = found.get(name, frozenset()) | frozenset(WORD.findall(NUMBER.sub("", line)))
    return found


def show(directory: Path, script: str, seconds: float = SECONDS_PER_RUN) -> Shown:
    """What a script shows when it runs in a process of its own."""
    ended = script_process.run(script, directory, seconds)
    return Shown(ended.status, words(ended.output))


@dataclass(frozen=True)
class Comparison:
    """What the whole script shows under the implementation and under the control; compares smaller ones with that."""

    task: Task
    evaluate: Evaluate
    seconds: float
    whole: Shown
    right: Shown

    def controlled(self, script: str) -> Shown:
        """What a script shows under the control."""
        control = self.task.control
        return self.evaluate(script.replace(self.task.binding, control, 1), self.seconds) if control else NOTHING

    def is_kept(self, smaller: str) -> bool:
        """Whether a smaller script shows the fault, and the control does not."""
        shown = self.evaluate(smaller, self.seconds)
        return shown.is_like(self.whole) and self.is_right(smaller, shown)

    def is_right(self, smaller: str, shown: Shown) -> bool:
        """Whether the control shows with a smaller script what it showed with the whole one, or nothing.

        It must not show what the implementation has ``shown``. An error that is right must stay: without it, the script would
        show another fault.
        """
        controlled = self.controlled(smaller)
        nothing = controlled == NOTHING and "error" not in self.right.words
        return (controlled.is_like(self.right) or nothing) and controlled != shown


def compare(task: Task, evaluate: Evaluate) -> Comparison | None:
    """What a script shows; None if it shows no fault, or if the control fails or shows the same."""
    started = time.monotonic()
    whole = meet(evaluate, task.script)
    seconds = 5 + 5 * (time.monotonic() - started)  # a busy machine may be slower later
    found = Comparison(task, evaluate, seconds, whole, NOTHING)
    right = found.controlled(task.script)
    return replace(found, right=right) if whole.status == 1 and right.status in (0, 1) and right != whole else None


def meet(evaluate: Evaluate, script: str) -> Shown:
    """What a script shows. It is run again if it shows no fault, as threads may not have met."""
    return next((shown for _ in range(MEETINGS) if (shown := evaluate(script, SECONDS_PER_RUN)).status), NOTHING)


def reduced(
    script: str, comparison: Comparison, times: int = 1, *, keep_waits: bool = True, seconds: float = SECONDS_PER_SCRIPT
) -> Iterator[str]:
    """Ever smaller scripts with the same fault, which each must show so many ``times``, as threads may not meet.

    With ``keep_waits``, threads must still wait for all that they waited for. No script is tried after ``seconds`` times
    ``times``.
    """
    binding, until = comparison.task.binding, time.monotonic() + seconds * times
    best = before = script
    tried, waited = {best}, waits(best)
    candidates, position = list(smaller_ones(best, binding)), 0
    while len(tried) < EVALUATIONS and time.monotonic() < until:
        if position >= len(candidates):
            if best == before:
                return
            before, position = best, 0  # again, as what was needed before may not be needed now
            continue
        candidate = candidates[position]
        position += 1
        if candidate in tried or not is_bound(candidate) or (keep_waits and waits(candidate) != waited):
            continue
        tried.add(candidate)
        if all(comparison.is_kept(candidate) for _ in range(times)):
            best = candidate
            candidates, position = list(smaller_ones(best, binding)), position - 1
            yield best


def smallest(task: Task) -> str:
    """The script of a task, made as small as possible, or its earlier reduction, if that still shows the same fault.

    The latter is made smaller only if it has more than ``MOST`` lines.
    """
    with TemporaryDirectory() as directory:
        evaluate = partial(show, Path(directory))
        if not task.binding:
            return task.script
        if (comparison := compare(task, evaluate)) is None:
            return laid_out(task.script)
        races = _races(task.script, evaluate)
        best, earlier = task.script, _laid_out(task)
        if earlier and _is_shown(earlier, comparison) and (races or not _races(earlier, evaluate)):
            best = earlier
        if best == task.script or _lines(best) > MOST or imports(parts(best, task.binding).program, OURS):
            found = [best, *reduced(best, comparison, REPEATED if races else 1)][-1]
            if not races and _races(found, evaluate):  # a step was taken since threads met by chance
                found = [best, *reduced(best, comparison, REPEATED, seconds=SECONDS_PER_SCRIPT / REPEATED)][-1]
            best = found if _is_shown(found, comparison) else best
        best = with_modules(_with_fewer_waits(best, comparison), used_modules(best))
        if races or _races(best, evaluate):
            best = with_modules(best, first_modules(best), AGAIN)
        return laid_out(best)


def _with_fewer_waits(script: str, comparison: Comparison) -> str:
    """A script with threads that is too long, without waits that its fault does not need; any other script unchanged.

    Each smaller script must show the fault REPEATED times in a row, and the last one as often again.
    """
    if not has_threads(script) or _lines(script) <= MOST:
        return script
    steps = reduced(script, comparison, REPEATED, keep_waits=False, seconds=SECONDS_WITHOUT_WAITS / REPEATED)
    last = script
    for last in steps:
        if _lines(last) <= MOST:
            break
    return last if all(comparison.is_kept(last) for _ in range(REPEATED)) else script


def _lines(script: str) -> int:
    """How many lines a script has as it is published."""
    return len(laid_out(with_modules(script, used_modules(script))).splitlines())


def _laid_out(task: Task) -> str:
    """The earlier reduction of a script, in this layout; "" if it measures in another way than the script."""
    earlier = task.earlier.replace(AGAIN, "", 1).replace(join_lines(task.binding), task.binding, 1)
    same = task.binding in earlier and _kept(earlier, task.binding) == _kept(task.script, task.binding)
    return earlier if same else ""


def _kept(script: str, binding: str) -> list[str]:
    """The statements of a script that no reduction changes, however laid out: what it is about, and how it measures."""
    its = parts(join_lines(without_fakes(script)), join_lines(binding))
    statements = [*ast.parse(its.head).body, *ast.parse(its.tail).body]
    return [ast.unparse(one) for one in statements if not isinstance(one, ast.Import)]


def _is_shown(script: str, comparison: Comparison) -> bool:
    """Whether a script shows the fault twice, and the control never does in as many runs as threads need to meet."""
    shown = [meet(comparison.evaluate, script) for _ in range(2)]
    is_fault = all(one.is_like(comparison.whole) for one in shown)
    return is_fault and all(comparison.is_right(script, shown[0]) for _ in range(MEETINGS))


def _races(script: str, evaluate: Evaluate) -> bool:
    """Whether there are runs in which a script shows nothing, because its threads do not meet."""
    return has_threads(script) and any(evaluate(script, SECONDS_PER_RUN).status != 1 for _ in range(MISSING))


def complaint(script: str, most: int = MOST) -> str:
    """A line about a script that does not show its fault when it is run alone, or has more than ``most`` lines; else ""."""
    with TemporaryDirectory() as directory:
        shown = meet(partial(show, Path(directory)), script)
    its = subject(script)
    about = f"{its.implementation}, law {its.law}" if its else "a script"
    if shown.status == 1:
        lines = len(script.splitlines())
        return f"{about}: its script has {lines} lines, more than {most}\n" if lines > most else ""
    how = f"ends by another error, or not within {SECONDS_PER_RUN:.0f} s" if shown.status else "shows nothing"
    return f"{about}: the verdict stands, but its script {how}, so it is no proof of it\n"


def _end(*_: object) -> NoReturn:
    """End at once and silently, together with the running script: the run that started this was interrupted."""
    script_process.end_all()
    os._exit(ENDED)


def main() -> int:
    """Tasks from standard input, scripts to standard output; to standard error which of them do not show their fault."""
    signal.signal(signal.SIGTERM, _end)
    tasks = [Task(**one) for one in json.load(sys.stdin)]
    scripts = [smallest(one) for one in tasks]
    for script, task in zip(scripts, tasks, strict=True):
        sys.stderr.write(complaint(script, MOST if task.binding else sys.maxsize))
    sys.stdout.write(json.dumps(scripts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
