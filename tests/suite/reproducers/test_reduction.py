"""A reduced script has the same fault, the control has none, and what the fault does not need is gone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from conformance.reproducers import reduction
from conformance.reproducers.reduction import Comparison, Evaluate, Shown, Task, compare, complaint, reduced, smallest
from conformance.reproducers.reduction_steps import SCREEN
from conformance.reproducers.script_syntax import used_modules, with_modules
from conformance.rows.results_file import ROOT

BROKEN, RIGHT = "double = lambda x: x + x + 1", "double = lambda x: x + x"
SCRIPT = """# one, law two.
import os, sys
{binding}

def run(note):
{body}

seen = {{}}
run(lambda label, value: seen.update({{label: value}}))
wrong = [label for label in seen if label.startswith("seen") and seen[label] != seen[label.replace("seen", "expected")]]
print(*(f"{{label}}: {{seen[label]}}" for label in wrong), sep="\\n")
sys.exit(len(wrong) > 0)
"""


def written(body: str) -> str:
    return SCRIPT.format(binding=BROKEN, body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


def body_of(script: str) -> str:
    return textwrap.dedent(script.partition("def run(note):\n")[2].partition("\nseen = ")[0]).rstrip()


def show(script: str, seconds: float = 20) -> Shown:
    with TemporaryDirectory() as directory:
        return reduction.show(Path(directory), script, seconds)


def compared(task: Task, evaluate: Evaluate = show) -> Comparison:
    found = compare(task, evaluate)
    assert found
    return found


def ever_smaller(task: Task, evaluate: Evaluate = show, times: int = 1) -> list[str]:
    found = compare(task, evaluate)
    return list(reduced(task.script, found, times)) if found else []


def reduced_body(body: str, control: str = RIGHT) -> str:
    *_, last = ["", *ever_smaller(Task(written(body), BROKEN, control))]
    return body_of(last)


def test_threads_are_waited_for() -> None:
    body = """
        import threading
        threads = [threading.Thread(target=lambda: note('seen', double(1))), threading.Thread(target=lambda: None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        note('expected', 2)
    """
    assert reduced_body(body).splitlines()[-3:] == ["for thread in threads:", "    thread.join()", "note('expected', 2)"]


def test_what_threads_wait_for_stays() -> None:
    body = """
        import threading
        begun = threading.Event()
        one = threading.Thread(target=lambda: begun.set())
        one.start()
        begun.wait(5)
        unused = 3
        one.join()
        note('seen', double(1))
        note('expected', 2)
    """
    assert reduced_body(body).splitlines() == textwrap.dedent(body).replace("unused = 3\n", "").strip().splitlines()


@pytest.mark.parametrize(("most", "misses", "goes"), [(45, 0, False), (23, 0, True), (23, 1, False)])
def test_waits_go_from_a_script_that_is_too_long_if_the_fault_shows_every_time(
    monkeypatch: pytest.MonkeyPatch, most: int, misses: int, goes: bool
) -> None:
    """With ``misses``, every fifth run without the waiting shows nothing."""
    body = """
        import threading
        begun = threading.Event()
        one = threading.Thread(target=lambda: begun.set())
        one.start()
        begun.wait(5)
        one.join()
        note('seen', double(1))
        note('expected', 2)
    """
    whole, runs = written(body), list[str]()

    def evaluate(script: str, _: float) -> Shown:
        runs.append(script)
        is_missed = "begun.wait(5)" not in script and runs.count(script) % reduction.REPEATED == 0 and misses
        return Shown(int(BROKEN in script and not is_missed), {})

    monkeypatch.setattr(reduction, "MOST", most)
    monkeypatch.setattr(reduction, "_lines", lambda script: 24 - ("begun.wait(5)" not in script))
    found = reduction._with_fewer_waits(whole, compared(Task(whole, BROKEN, RIGHT), evaluate))
    assert ("begun.wait(5)" not in found) is goes


def test_what_the_fault_does_not_need_goes() -> None:
    body = """
        import math, os
        manual_seed = 3
        unused = [math.pi]
        with open(os.devnull) as nothing:
            x = 2 if len('abc') == 3 else 7
        def f(y):
            z = y
            return double(y)
        note('seen', f(x))
        note('expected', 2 * x)
        note('other', (x, 1))
    """
    assert reduced_body(body).splitlines() == [
        "manual_seed = 3",  # what seeds stays
        "x = 2",
        "def f(y):",
        "    return double(y)",
        "note('seen', f(x))",
        "note('expected', 2 * x)",
    ]


def test_of_the_heads_of_blocks_goes_what_is_not_needed() -> None:
    body = """
        import os
        with open(os.devnull) as nothing, open(os.devnull):
            note('seen', double(len(nothing.read()) + 1))
        note('expected', 2)
    """
    assert reduced_body(body).splitlines()[:1] == ["with open(os.devnull) as nothing:"]


def test_a_line_without_which_the_program_is_wrong_stays() -> None:
    body = "x = 2\ntwice = 2\ntwice += x\nnote('seen', double(x))\nnote('expected', twice)"
    assert reduced_body(body, control="") != body, "nothing asks whether the program is right"
    assert reduced_body(body) == ""


def test_a_fault_that_does_not_always_show_is_looked_for_again() -> None:
    """The whole script is run until it shows the fault; of a step each run must show it, as many as are asked for."""
    whole, runs = written("x = 2\nnote('seen', double(x))\nnote('expected', 4)\ny = 3"), list[str]()

    def evaluate(script: str, _: float) -> Shown:
        if BROKEN in script:
            runs.append(script)
        missed = runs.count(script) in ((1, 2, 3) if script == whole else (2,) if "y = 3" in script else ())
        return Shown(0, {}) if missed else show(script)

    *_, last = ever_smaller(Task(whole, BROKEN, RIGHT), evaluate, times=2)
    assert runs[:4] == [whole] * 4
    assert body_of(last) == "x = 2\nnote('seen', double(x))\nnote('expected', 4)"
    assert ever_smaller(Task(whole, BROKEN, RIGHT), lambda script, seconds: Shown(0, {})) == []


def test_a_control_is_right_in_every_run() -> None:
    """A step after which the control shows the fault too, if not at once, is none: it is the program's own race."""
    whole, runs = written("x = 2\nnote('seen', double(x))\nnote('expected', 4)\ny = 3"), list[str]()

    def evaluate(script: str, _: float = 0) -> Shown:
        runs.append(script)
        races = RIGHT in script and BROKEN not in script and "y = 3" not in script and runs.count(script) % 2 == 0
        return show(script.replace(RIGHT, BROKEN) if races else script)

    task = Task(whole, BROKEN, RIGHT)
    assert body_of([whole, *ever_smaller(task, evaluate, times=2)][-1]).endswith("y = 3")
    runs.clear()
    assert not reduction._is_shown(whole.replace("y = 3", "pass"), compared(task, evaluate))
    assert reduction._is_shown(whole, compared(task, evaluate))


def test_another_failure_is_not_the_same_fault() -> None:
    body = "x = [2]\nx.append('a') or x.pop()\nnote('seen a', str(double(x[0])))\nnote('expected a', '4')\nnote('seen', 0)"
    body += "\nnote('expected', 0)"
    assert "seen a" in reduced_body(body)
    assert "'seen'" not in reduced_body(body)


def test_an_error_stays_the_error_that_it_was() -> None:
    """Of a program that ends in an error the rest of the notes is missing too, which is not what is to be shown."""
    body = "note('seen', double(1))\nnote('expected', 2)\nprint('error:', ['', 'IndexError(0)'][double(1) - 2])\nx = 2"
    left = reduced_body(body)
    assert "IndexError" in left
    assert "x = 2" not in left
    index, key, none = (show(f"import sys\nprint('a: plain')\n{told}\nsys.exit(1)") for told in (
        "print('error: IndexError plain KeyError')", "print('error: KeyError plain')", ""))  # fmt: skip
    assert index.is_like(index)
    assert not key.is_like(index)
    assert not none.is_like(index)


def test_what_the_control_shows_as_well_is_not_left() -> None:
    """Under the control too one of two notes is not what the program expects: it is the other one that is left alone."""
    fault, wrong = (
        f"note('seen {name}', {value})\nnote('expected {name}', 2)" for name, value in (("a", "double(1)"), ("b", 1))
    )
    assert reduced_body(f"{wrong}\n{fault}") == fault
    assert reduced_body(f"{fault}\n{wrong}") == fault


def test_what_the_control_refuses_stays() -> None:
    """An implementation that does not refuse a change and is wrong in any case as well is shown with the change."""
    broken, right = f"{BROKEN}; change = lambda: None", f"{RIGHT}; change = lambda: [][0]"
    whole = written("change()\nnote('seen', double(1))\nnote('expected', 2)\ny = 3").replace(BROKEN, broken)
    whole = re.sub(
        r"^(run\(.*)$", r"try: \1\nexcept IndexError as error: sys.exit(print(f'error: {error}') or 1)", whole, flags=re.M
    )
    *_, last = ever_smaller(Task(whole, broken, right))
    assert "    change()\n    note('seen', double(1))\n    note('expected', 2)\n\n" in last


@pytest.mark.parametrize("control", [BROKEN, "double = 0"])
def test_nothing_is_taken_away_where_the_control_fails(control: str) -> None:
    assert reduced_body("x = 2\ny = 3\nnote('seen', double(x))\nnote('expected', 4)", control) == ""


def test_nothing_is_taken_away_where_there_is_no_fault() -> None:
    assert not ever_smaller(Task(written("x = 2\nnote('expected', 4)"), BROKEN, RIGHT))


def test_what_is_used_once_moves_only_where_a_screen_is_not_enough() -> None:
    once = "x = 1\ndef once():\n    y = double(x)\n    return y\nz = once()\nnote('seen', z)\nnote('expected', 2 * x)"

    def smallest(lines: int) -> str:
        whole = written(once + "".join(f"\nnote('{number}', 0)" for number in range(lines)))

        def evaluate(script: str, _: float) -> Shown:
            return show(script) if script.count("note(") == whole.count("note(") else Shown(2, {})

        return body_of([whole, *ever_smaller(Task(whole, BROKEN, RIGHT), evaluate)][-1])

    assert smallest(2).startswith(once)
    short = "x = 1\ndef once():\n    return double(x)\nnote('seen', once())\n"
    assert smallest(SCREEN).startswith(short)


def test_numbers_are_not_compared_and_words_are() -> None:
    one, other = (show(f"print('gradient: plain', {text})") for text in ("[1.5, -2e-7, float('nan')]", "[[0.25], True]"))
    assert one == other
    assert not show("print('gradient: plain', None)").is_like(one)
    assert one.is_like(show("print('gradient: plain', None)"))
    assert not show("print('gradients: plain')").is_like(one)
    assert not show("").is_like(one)
    assert not show("print('gradient: plain'); import sys; sys.exit(1)").is_like(one)


@pytest.mark.parametrize(
    ("text", "status"), [("", 0), ("import sys; sys.exit(True)", 1), ("1 / 0", 2), ("import no_such_module", 2)]
)
def test_a_status_is_told(text: str, status: int) -> None:
    assert show(text).status == status


HANGING = "waiting = True\nwhile waiting:\n    waiting = False\n    note('seen', double(1))\n    continue\nnote('expected', 2)"
DYING = "if False:\n    os.abort()\nelse:\n    note('seen', double(1))\nnote('expected', 2)"
ENABLED = "import math\nmath.e = 0\nnote('seen', double(1) + math.e)\nnote('expected', 2)"
LEAVING = "import torch\nassert torch.get_num_threads() != 7\ntorch.set_num_threads(7)\nnote('seen', double(1))\n"
LEAVING += "torch.set_num_threads(2)\nnote('expected', 2)\nx = 2"
WHOLE = written("x = 2\nnote('seen', double(x))\nnote('expected', 4)\ny = 1")
EARLIER = WHOLE.replace("\n    y = 1", "\n    z = 1")
MENDED = WHOLE.replace("double(x)", "4")
ASKED = {
    "hanging": (written(f"{HANGING}\nx = 2"), ""),
    "dying": (written(f"{DYING}\nx = 2"), ""),
    "made possible": (written(f"{ENABLED}\nx = 2"), ""),
    "leaving": (written(LEAVING), ""),
    "earlier": (WHOLE, EARLIER),
    "earlier without the fault": (WHOLE, MENDED),
    "earlier with another meter": (WHOLE, EARLIER.replace("len(wrong) > 0", "len(wrong) > -1")),
    "no fault": (written("note('seen', 2)\nnote('expected', 2)"), ""),
}


@pytest.fixture(scope="module")
def command() -> tuple[dict[str, str], str]:
    """What the command makes of the scripts, and complains of."""
    asked = json.dumps([asdict(Task(whole, BROKEN, RIGHT, earlier)) for whole, earlier in ASKED.values()])
    line = [sys.executable, "-m", "conformance.reproducers.reduction"]
    run = subprocess.run(line, cwd=ROOT, input=asked, capture_output=True, text=True, check=True)
    return dict(zip(ASKED, json.loads(run.stdout), strict=True)), run.stderr


def test_a_step_that_hangs_or_ends_the_process_is_left_out(command: tuple[dict[str, str], str]) -> None:
    assert body_of(command[0]["hanging"]) == "note('seen', double(1))\nnote('expected', 2)"
    assert body_of(command[0]["dying"]) == "note('seen', double(1))\nnote('expected', 2)"


def test_a_step_that_an_earlier_one_alone_made_possible_is_not_taken(command: tuple[dict[str, str], str]) -> None:
    assert body_of(command[0]["made possible"]) == ENABLED


def test_what_a_step_leaves_behind_does_not_decide_on_the_next(command: tuple[dict[str, str], str]) -> None:
    assert body_of(command[0]["leaving"]) == "note('seen', double(1))\nnote('expected', 2)"


def test_an_earlier_reduction_is_taken_while_it_shows_the_fault(command: tuple[dict[str, str], str]) -> None:
    assert command[0]["earlier"] == with_modules(EARLIER, used_modules(EARLIER))
    others = command[0]["earlier without the fault"], command[0]["earlier with another meter"]
    assert {*map(body_of, others)} == {"x = 2\nnote('seen', double(x))\nnote('expected', 4)"}


def test_scripts_that_come_out_are_complained_of(command: tuple[dict[str, str], str]) -> None:
    assert command[1].count("the verdict stands") == 1


RACING = [("threading", 1, 1), ("concurrent.futures", 1, 1), ("threading", 0, 0), ("types", 1, 0)]


@pytest.mark.parametrize(("module", "misses", "told"), RACING)
def test_a_script_of_a_race_says_that_it_may_show_nothing(
    monkeypatch: pytest.MonkeyPatch, module: str, misses: int, told: int
) -> None:
    body = written(f"import {module}\nnote('seen', double(1))\nnote('expected', {module} and 2)").partition("\n")[2]
    script = f'"""one, law two."""\n{body}'
    script, runs = with_modules(script, used_modules(script)), []

    def shown(directory: Path, script: str, seconds: float) -> Shown:
        runs.append(script)
        return Shown(int(len(runs) % 5 >= misses), {})

    monkeypatch.setattr(reduction, "show", shown)
    monkeypatch.setattr(reduction, "reduced", lambda *_: iter(()))
    task = Task(script, BROKEN)
    found = smallest(task)
    assert found.count(reduction.AGAIN) == told
    assert found.replace(reduction.AGAIN, "") == script
    assert found.splitlines()[1].startswith("import ")
    assert found.splitlines()[1].endswith(reduction.AGAIN) == told
    assert smallest(replace(task, earlier=found)) == found


def test_a_script_that_always_shows_its_fault_does_so_when_it_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out since threads happened to meet without it, neither now nor in an earlier reduction."""
    body = "import threading\nlong = 3\nsteady = 1\nnote('seen', double(1))\nnote('expected', threading and 2)"
    script, runs = '"""one, law two."""\n' + written(body).partition("\n")[2], list[str]()
    script = with_modules(script, used_modules(script))

    def shown(directory: Path, script: str, seconds: float) -> Shown:
        runs.append(script)
        return Shown(int("steady" in script or runs.count(script) % 2), {})

    monkeypatch.setattr(reduction, "show", shown)
    earlier = script.replace("    long = 3\n", "").replace("    steady = 1\n", "")
    for task in (Task(script, BROKEN), Task(script, BROKEN, earlier=earlier)):
        runs.clear()
        found = smallest(task)
        assert ("steady" in found, "long" in found, reduction.AGAIN in found) == (True, False, False)


def test_modules_that_nothing_has_a_use_for_are_not_imported() -> None:
    text = '"""one, law two."""\nimport os, sys, threading\nimport torch\nimport types\n\nos.times(), sys.exit(types)\n'
    assert with_modules(text, used_modules(text)) == text.replace(", threading", "")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("sys.exit(1)", ""),
        ("sys.exit('a word')", ""),
        ("sys.exit(0)", "one, law two: the verdict stands, but its script shows nothing, so it is no proof of it\n"),
        (
            "1 / 0",
            "one, law two: the verdict stands, but its script ends by another error, or not within 20 s, so it is no",
        ),
    ],
)
def test_a_script_that_shows_no_fault_is_complained_of(end: str, said: str) -> None:
    found = complaint(f'"""one, law two. Two is two."""\nimport sys\n{end}\n')
    assert found == "" if not said else found.startswith(said)
    assert found.count("\n") == bool(said)


def test_a_script_that_is_long_is_complained_of() -> None:
    script = '"""one, law two. Two is two."""\nimport sys\nsys.exit(1)\n'
    assert complaint(script, most=3) == ""
    assert complaint(script, most=2) == "one, law two: its script has 3 lines, more than 2\n"
