"""Reduces a script: removes whatever its fault does not need, so that what is left can be read.

A smaller script is accepted on two conditions. Under the implementation, it still ends with status 1, prints only words that
the whole script prints (numbers aside), and prints the same error if there was one. Under the control, an implementation
that keeps the law, it still shows what the whole script shows there, or nothing (status 0, no output) unless that was an
error, and never what it shows under the implementation. So a line without which the program itself would be wrong stays.

It forks for each try, so that nothing is imported again: a script takes some seconds. shrinkray 26.9.13 was tried on seven of
the longest published scripts, 56 to 65 lines, with a test that forks as this does, and without its grammar of Python, which it
has to download: after 25 s each it had them at 44 to 56 lines. The steps here take 0.4 to 1.8 s and leave 36 to 45. Steps by
libcst would be these steps: what costs is to know them, and not to parse.

Run as ``python -m conformance.reproducers.reduction``: scripts come in as JSON, each with the lines that bind the
implementation, those of its control, and what an earlier reduction left; scripts go out.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.reproducers.line_joining import joined
from conformance.reproducers.reduction_steps import MOST, SCREEN, is_bound, is_long, joins, smaller_ones, with_needed_modules
from conformance.reproducers.script_syntax import first_modules, has_threads, subject, with_modules
from conformance.reproducers.stand_ins import measuring, takes_ours

EVALUATIONS = 150
SECONDS_PER_RUN = 20.0
SECONDS_PER_SCRIPT = 60.0  # for steps that hang: else the number of evaluations ends a reduction, on a busy machine too
MORE = 5  # times as much, for what is then still too long or needs this project, and for races: no step may make them rarer
MISSING = 20  # runs in which threads do not meet at least once, where that happens
MEETINGS = 4  # runs in which threads meet at least once
AGAIN = "  # threads do not always meet: where it shows nothing, run it again"
NUMBER = re.compile(r"\b(0x[0-9a-f]+|\d[\d.]*(e[+-]?\d+)?|nan|inf|True|False)\b")
WORD = re.compile(r"[^\W\d][\w.]*")


@dataclass(frozen=True)
class Shown:
    """What running a script gave: its status, and of each line that it printed the words, by the word that it begins with.

    What is printed for a note or a count begins with its name. Numbers and truth values are no words.
    """

    status: int
    words: Mapping[str, frozenset[str]]

    def is_like(self, whole: Shown) -> bool:
        """Whether this is the same, or a part of it. An error is never left out, nor another one: it may be the fault."""
        if self.status != whole.status or bool(self.words) is not bool(whole.words):
            return False
        if self.words.get("error") != whole.words.get("error"):
            return False
        return all(name in whole.words and words <= whole.words[name] for name, words in self.words.items())


def words(text: str) -> dict[str, frozenset[str]]:
    """The words of what was printed, as ``Shown`` has them."""
    lines = [
        (line.partition(":")[0], frozenset(WORD.findall(NUMBER.sub("", line)))) for line in text.splitlines() if line.strip()
    ]
    return {name: frozenset[str]().union(*(words for other, words in lines if other == name)) for name, _ in lines}


class _Slow(BaseException):
    """Raised into a script that takes too long."""


def _expire(*_: object) -> None:
    raise _Slow


def show(script: str, seconds: float = SECONDS_PER_RUN) -> Shown:
    """Run a script in this process, which it may leave in any state. Status 2 is an error, or that it takes too long."""
    printed = io.StringIO()
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            exec(compile(script, "<script>", "exec", dont_inherit=True), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (Exception, _Slow):  # noqa: BLE001 - whatever a script raises is told by its status
        status = 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.excepthook = sys.__excepthook__
        gc.unfreeze()
        gc.enable()
    return Shown(status, words(printed.getvalue()))


def reduced(
    script: str,
    binding: str,
    control: str,
    evaluate: Callable[[str, float], Shown] = show,
    times: int = 1,
    *,
    keep_waits: bool = True,
) -> Iterator[str]:
    """Ever smaller scripts with the same fault; none where there is no fault, or where the control shows it too.

    ``binding`` are the lines of the script that bind the implementation, ``control`` those that bind the control in their
    place; where they are empty, nothing is asked of a control. With ``keep_waits`` its threads wait for each other as they do.
    With ``times`` as many evaluations are made, and each smaller script has to show the fault so often, and the control none:
    threads may not meet.
    """

    def controlled(smaller: str) -> Shown:
        return evaluate(smaller.replace(binding, control, 1), seconds) if control else Shown(0, {})

    def again(smaller: str, shown: Shown) -> bool:
        return all(
            evaluate(smaller, seconds).is_like(whole) and _is_right(controlled(smaller), right, shown) for _ in range(times - 1)
        )

    seconds, started = SECONDS_PER_RUN, time.monotonic()
    whole = _met(evaluate, script)
    seconds = 1 + 2 * (time.monotonic() - started)
    right = controlled(script)
    if whole.status != 1 or right.status == 2 or right == whole:
        return
    tried, waits = {script}, joins(script)
    best = before = script
    candidates, position = list(smaller_ones(best, binding)), 0
    while len(tried) < EVALUATIONS * times:
        if position >= len(candidates):
            if best == before:
                return
            before, position = best, 0  # once more: what was needed may not be any longer
            continue
        candidate = candidates[position]
        position += 1
        if candidate in tried or not is_bound(candidate) or (keep_waits and joins(candidate) != waits):
            continue
        tried.add(candidate)
        shown = evaluate(candidate, seconds)
        if shown.is_like(whole) and _is_right(controlled(candidate), right, shown) and again(candidate, shown):
            best = candidate
            candidates, position = list(smaller_ones(best, binding)), position - 1
            yield best


def _met(evaluate: Callable[[str, float], Shown], script: str) -> Shown:
    """What a script shows, which is run again where it shows no fault: threads may not have met."""
    return next((shown for _ in range(MEETINGS) if (shown := evaluate(script, SECONDS_PER_RUN)).status), Shown(0, {}))


def smallest(script: str, binding: str, control: str, earlier: str = "") -> str:
    """The script, reduced in a process of its own, which may end in any way. Forks, as ``conformance.reproducers.replay`` does.

    What an ``earlier`` reduction left is taken, if it still shows the same fault. Where what one step leaves behind
    decides on the next ones, each is tried in a process of its own, which takes longer. What threads wait for goes only from
    a script that is too long otherwise, and if it shows its fault each time without.
    """
    about, best = _frame(script, binding), script
    earlier = earlier.replace(AGAIN, "", 1).replace(joined(binding), binding, 1)
    if binding in earlier and _frame(earlier, binding) == about and _agrees(script, earlier, binding, control):
        best = earlier
    races = _races(script)
    for times in (MORE, MORE) if races else (1, MORE):
        if best == script or is_long(best) or takes_ours(best):
            best = _smaller(best, binding, control, times)
    if races and len(joined(best).splitlines()) > MOST:
        best = _smaller(best, binding, control, MORE, keep_waits=False)
    best = with_needed_modules(best)
    if has_threads(best) and (races or _races(best)):
        best = with_modules(best, first_modules(best), AGAIN)
    best = joined(best) if len(best.splitlines()) > SCREEN else best
    return best if len(best.splitlines()) <= MOST else "\n".join(filter(None, best.splitlines())) + "\n"


def complaint(script: str, most: int = MOST) -> str:
    """A line where a script does not show its fault when it is run alone, or has more than ``most`` lines; else nothing."""
    statuses: list[int] = []
    while 1 not in statuses and len(statuses) < MEETINGS:
        statuses.append(_shown(script).status)
    its = subject(script)
    about = f"{its.implementation}, law {its.law}" if its else "a script"
    if 1 in statuses:
        lines = len(script.splitlines())
        return f"{about}: its script has {lines} lines, and at most {most} are due\n" if lines > most else ""
    how = f"ends by another error, or not within {SECONDS_PER_RUN:.0f} s" if any(statuses) else "shows nothing"
    return f"{about}: the verdict stands, but its script {how}, so it is no proof of it\n"


def _races(script: str) -> bool:
    """Whether there are runs in which it shows nothing, for its threads do not meet."""
    return has_threads(script) and any(_shown(script).status != 1 for _ in range(MISSING))


def _smaller(script: str, binding: str, control: str, times: int, *, keep_waits: bool = True) -> str:
    for evaluate in (show, _shown):
        reduce = functools.partial(reduced, script, binding, control, evaluate, times, keep_waits=keep_waits)
        write = functools.partial(_write_smaller, reduce)
        found = _in_child(write, SECONDS_PER_SCRIPT * times)
        if found and _agrees(script, found, binding, control):
            return found
    return script


def _frame(script: str, binding: str) -> list[str]:
    """The lines of a script that no reduction changes: what it is about, and how it measures."""
    head, _, rest = joined(measuring(script)).partition(joined(binding))
    end = next(one.end_lineno for one in ast.parse(rest).body if isinstance(one, ast.FunctionDef) and one.name == "run")
    return [line for line in [*head.splitlines(), *rest.splitlines()[end:]] if line and not line.startswith("import ")]


def _write_smaller(reduce: Callable[[], Iterator[str]], path: Path) -> None:
    for number, smaller in enumerate(reduce()):
        made = path.with_suffix(f".{number}")
        made.write_text(smaller, encoding="utf-8")
        made.replace(path)


def _agrees(script: str, found: str, binding: str, control: str) -> bool:
    """Whether in new processes too the smaller one shows what the whole one shows, twice, and the control never does.

    The control gets as many runs as the implementation has for its threads to meet in.
    """
    whole, *runs = (_met(_shown, one) for one in (script, found, found))
    if not all(one.is_like(whole) for one in runs):
        return False
    if not control:
        return True
    right = _shown(script.replace(binding, control, 1))
    return all(_is_right(_shown(found.replace(binding, control, 1)), right, runs[0]) for _ in range(MEETINGS))


def _is_right(controlled: Shown, right: Shown, shown: Shown) -> bool:
    """Whether a control gives on a smaller script what it gave on the whole one, or shows nothing, which is more than right.

    What the implementation gives it never gives. An error that is right is never left out: without it, it is another fault.
    """
    nothing = controlled == Shown(0, {}) and "error" not in right.words
    return (controlled.is_like(right) or nothing) and controlled != shown


def _shown(script: str, seconds: float = SECONDS_PER_RUN) -> Shown:
    """What ``show`` says in a process of its own."""

    def write(path: Path) -> None:
        shown = show(script, seconds)
        told = {name: sorted(found) for name, found in shown.words.items()}
        path.write_text(json.dumps([shown.status, told]), encoding="utf-8")

    status, told = json.loads(_in_child(write) or "[2, {}]")
    return Shown(status, {name: frozenset(found) for name, found in told.items()})


def _in_child(write: Callable[[Path], None], seconds: float = SECONDS_PER_SCRIPT) -> str:
    """What a new process has written, as far as it came. Whatever it leaves running is ended with it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "written"
        alone = os.getpgrp() != os.getpid()  # a child's own children are of its group
        child = os.fork()
        if child == 0:
            errors = os.dup(2)
            try:
                if alone:
                    os.setpgid(0, 0)
                with Path(os.devnull).open("w") as nowhere:
                    for number in (1, 2):  # who reads what this process writes does not wait for what is left running
                        os.dup2(nowhere.fileno(), number)
                    write(path)
            except BaseException:  # noqa: BLE001 - what a program raised at its end must not go on here
                os.write(errors, traceback.format_exc().encode())
            finally:
                os._exit(0)
        _await(child, seconds)
        if alone:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        return path.read_text(encoding="utf-8") if path.exists() else ""


def _await(child: int, seconds: float) -> None:
    """Wait until a process has ended, which it does after so many seconds at the latest."""
    until = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def main() -> int:
    """Scripts from standard input to standard output; to standard error which of them do not show their fault alone.

    Those of which the binding is empty stay as they are, however long.
    """
    import torch._dynamo  # noqa: F401  # once, for all processes; torch's checkpoint imports it at its first call

    tasks = json.load(sys.stdin)
    found = [smallest(script, binding, *others) if binding else script for script, binding, *others in tasks]
    sys.stderr.writelines(
        complaint(script, MOST if binding else sys.maxsize) for script, (_, binding, *_) in zip(found, tasks, strict=True)
    )
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
