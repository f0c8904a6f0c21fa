"""Scripts that show a fault end with status 1 while it is there, and with 0 once it is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from conformance.judging.judge import Case, judge
from conformance.judging.verdicts import Measured
from conformance.programs.program import WIDTH, Named
from conformance.reproducers import replay
from conformance.reproducers import script as scripts
from conformance.reproducers.script import binding, binding_in, script
from conformance.rows.results_file import ROOT, write
from impls import Implementation, get
from tests.support.script_runner import replayed
from tests.support.synthetic_results import HEADER, row


def _twice(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821 - the printed program imports torch
    note("leaves", (x,))

    def f(h):  # type: ignore[no-untyped-def]
        k = h.sin()
        if k.requires_grad:
            k.register_hook(lambda grad: note("due k"))
        return k.cos()

    y = checkpoint(f, x)
    note("saved", [x])
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [x.grad])
    note("held 1", [x, y])
    note("expected gradient", x.grad * 1)
    note("seen gradient", x.grad)
    note("step")


def _raising(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    note("leaves", (x,))
    checkpoint(lambda h: h.sin(), x).sum().backward()
    raise ValueError("the program's own")


def _moving(graph: Any, note: Any, device: str) -> None:
    from conformance.simulated_device.device import second

    device = second(device)
    x = torch.ones(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    with graph.save_on_cpu():
        y = x.sin()
    y.sum().backward()


def _compressed(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.eye(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    note("leaves", (x,))
    note("forward", checkpoint(lambda h: h.sin(), x).to_sparse_csr())
    raise ValueError("the program's own")


def _otherwise(checkpoint: Any, note: Any, device: str, *, made: str) -> None:
    x = torch.eye(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    calls: list[None] = []

    def f(h: Any) -> Any:
        calls.append(None)
        return h.sin()

    checkpoint(f, x).sum().backward()
    y = x.detach()
    note("made", getattr(y, made)() if calls[1:] else y)  # of the same entries


def _exiting(checkpoint: Any, note: Any, device: str) -> None:
    checkpoint(lambda: exit(0))


def _dying(checkpoint: Any, note: Any, device: str) -> None:
    import os

    checkpoint(lambda: os._exit(0))


def _counting(graph: Any, note: Any, device: str) -> None:
    from conformance.simulated_device.device import Moves, second

    device = second(device)
    with Moves() as moves:
        note("forward", torch.ones(2, device=device))  # type: ignore[name-defined]  # noqa: F821
    note("expected copies", 0)
    note("seen copies", len(moves.seen))


def _multiplying(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, 2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    y = checkpoint(lambda h: (h @ h).sin().sin(), x)
    y.sum().backward()


def _cyclic(checkpoint: Any, note: Any, device: str) -> None:
    cycle = [torch.ones(2, device=device).sin()]  # type: ignore[name-defined]  # noqa: F821
    cycle.append(cycle)
    del cycle
    note("made", [[] for _ in range(10**5)])  # so many that the collector runs, if it may


NESTED, GRAPH = get("nested"), get("graph")
PROGRAM = Named(_twice)
GROWING = Named(_twice).source + "\ndef once(checkpoint, note, device, run=run, kept=[]):\n    for _ in range(6):\n"
GROWING += "        run(checkpoint, note, device)\n        kept.append([])\nrun = once\n"
ONCE = Named(_twice).source + "\ndef once(checkpoint, note, device, run=run, kept=[]):\n    for step in range(6):\n"
ONCE += "        run(checkpoint, note, device)\n        kept += [[]] * (step == 3)\nrun = once\n"
COMPILING = """\
def checkpoint(function, *args):
    return torch.compile(torch.utils.checkpoint.checkpoint, backend="aot_eager")(function, *args, use_reentrant=False)
"""
OTHER_ERROR = "def checkpoint(function, *args, **kwargs):\n    raise TypeError('another')"
CASES: list[tuple[str, Implementation, Measured, int]] = [
    (PROGRAM.source, NESTED, Measured("values"), 0),
    (Named(_raising).source, NESTED, Measured("error"), 0),
    (Named(_raising).source, replace(NESTED, binding=OTHER_ERROR), Measured("values"), 0),
    (Named(_raising).source, replace(NESTED, binding=OTHER_ERROR), Measured("error"), 1),
    (PROGRAM.source, get("legacy"), Measured("left"), 0),
    (Named(_raising).source, NESTED, Measured("left"), 0),
    (Named(_compressed).source, replace(NESTED, binding=OTHER_ERROR), Measured("values"), 1),
    (Named(_otherwise, (("made", "to_sparse"),)).source, NESTED, Measured("values"), 1),
    (Named(_otherwise, (("made", "double"),)).source, NESTED, Measured("values"), 1),
    (PROGRAM.source, NESTED, Measured("expected"), 0),
    (PROGRAM.source, NESTED, Measured("noted", (("seen gradient", "no"),)), 1),
    (PROGRAM.source, NESTED, Measured("noted", (("step", "None"),)), 0),
    (PROGRAM.source, NESTED, Measured("raises"), 1),
    (Named(_raising).source, NESTED, Measured("raises"), 0),
    (PROGRAM.source, NESTED, Measured("fails"), 0),
    (Named(_raising).source, NESTED, Measured("fails"), 1),
    (Named(_exiting).source, NESTED, Measured("fails"), 1),
    (PROGRAM.source, NESTED, Measured("ends"), 0),
    (Named(_raising).source, NESTED, Measured("ends"), 0),
    (Named(_dying).source, NESTED, Measured("ends"), 1),
    (PROGRAM.source, NESTED, Measured("hangs"), 0),
    (Named(_raising).source, NESTED, Measured("hangs"), 0),
    (PROGRAM.source, NESTED, Measured("calls", (("f", 2),)), 0),
    (PROGRAM.source, NESTED, Measured("calls", (("f", 1),)), 1),
    (PROGRAM.source, NESTED, Measured("calls", (("f", 3),), at_most=True), 0),
    (PROGRAM.source, NESTED, Measured("kernels", (("sin", 2), ("cos", 1))), 0),  # backward's own are none
    (PROGRAM.source, NESTED, Measured("kernels", (("sin", 1),)), 1),
    (Named(_multiplying).source, get("torch-selective"), Measured("kernels", (("mm", 1), ("sin", 3))), 0),
    (Named(_multiplying).source, replace(NESTED, binding=COMPILING), Measured("kernels", (("mm", 1), ("sin", 2))), 0),
    (PROGRAM.source, NESTED, Measured("alive", (("held 1", 0),)), 0),
    (Named(_cyclic).source, NESTED, Measured("alive", (("made", 1),)), 0),
    (Named(_cyclic).source, NESTED, Measured("alive", (("end", 0),)), 1),
    (PROGRAM.source, NESTED, Measured("alive", (("end", 0),)), 0),
    (PROGRAM.source, get("plain"), Measured("alive", (("forward", 0),)), 1),
    (PROGRAM.source, NESTED, Measured("inside", (("forward", 1),), at_most=True), 0),
    (PROGRAM.source, get("plain"), Measured("inside", (("due k", 0),), at_most=True), 1),
    (PROGRAM.source, get("legacy"), Measured("recomputed", (("due k", 0),), at_most=True, region="f"), 1),
    (PROGRAM.source, get("legacy"), Measured("recomputed", (("due k", 0),), at_most=True, region="g"), 0),
    (PROGRAM.source, get("plain"), Measured("recomputed", (("due k", 0),), at_most=True, region="f"), 0),
    (PROGRAM.source, NESTED, Measured("saved"), 0),
    (PROGRAM.source, get("plain"), Measured("saved"), 1),
    (PROGRAM.source, NESTED, Measured("packed", (("packed in forward", 1),)), 0),
    (PROGRAM.source, NESTED, Measured("packed", (("packed in forward", 2),)), 1),
    (PROGRAM.source, NESTED, Measured("objects"), 0),
    (GROWING, NESTED, Measured("objects"), 1),
    (ONCE, NESTED, Measured("objects"), 0),
    (Named(_moving).source, GRAPH, Measured("moved", (("copies to the CPU", 1),)), 0),
    (Named(_moving).source, GRAPH, Measured("moved", (("bytes to the CPU", 4),), at_most=True), 1),
    (Named(_counting).source, GRAPH, Measured("expected"), 0),
    (Named(_counting).source, GRAPH, Measured("values"), 0),
    (PROGRAM.source, replace(NESTED, binding="from no_such_module import checkpoint"), Measured("raises"), 2),
]


def _written(source: str, implementation: Implementation, measured: Measured | None) -> str:
    return script(source, implementation, "law", measured)


def _rounding(checkpoint: Any, note: Any, device: str, *, off: float) -> None:
    x = torch.tensor([1.0, -3.0], dtype=torch.float64, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821
    note("leaves", (x,))

    def f(h):  # type: ignore[no-untyped-def]
        calls.append(None)
        return (h * (1 + off * (len(calls) > 1))).square()

    calls = []  # type: ignore[var-annotated]
    y = checkpoint(f, x)
    note("forward", {"y": y, "kinds": (y > 0, None, "text")})
    y.sum().backward()
    note("gradients 0", [x.grad])
    if off > 1e-12:
        raise ValueError("the program's own")


UNIT = 2.0**-52
ROUNDED = [
    (measured, off, units, status)
    for measured in ("values", "left")
    for off, units, status in [(0.0, 0, 0), (4 * UNIT, 0, 1), (4 * UNIT, 64, 0), (1e-9, 64, 1)]
]


def _of_cases() -> list[str]:
    return [_written(source, one, measured) for source, one, measured, _ in CASES]


def _rounded() -> list[str]:
    return [
        script(Named(_rounding, (("off", off),)).source, NESTED, "law", Measured(measured), units=units)  # type: ignore[arg-type]
        for measured, off, units, _ in ROUNDED
    ]


def _without_a_module() -> list[str]:
    text = _written(Named(_counting).source, GRAPH, Measured("fails"))
    return [text.replace("simulated_device.device import", "no_such_module import")]


ENDING = {
    "import sys\nsys.exit(1)": 2,
    "def checkpoint(*_):\n    sys.exit(1)": 2,
    "def checkpoint(*_):\n    raise SystemExit(1)": 2,
    "checkpoint = lambda *_: os._exit(1)": 2,
    "checkpoint = lambda function, *args: function(*args) * 2": 1,
    "checkpoint = lambda function, *args: function(*args)": 0,
}


def _ending() -> list[str]:
    return [_written(PROGRAM.source, replace(NESTED, binding=one), Measured("values")) for one in ENDING]


def _hanging() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "HANG_SECONDS", 1)
        hanging = replace(NESTED, binding="def checkpoint(*_):\n    while True: pass")
        return [_written(PROGRAM.source, hanging, Measured("hangs"))]


SCRIPTS: dict[str, Callable[[], list[str]]] = {
    "cases": _of_cases,
    "rounded": _rounded,
    "without a module": _without_a_module,
    "ending": _ending,
    "hanging": _hanging,
}


@pytest.fixture(scope="module")
def run() -> dict[str, list[tuple[int, str]]]:
    """Status and output of each script, all replayed by one process, which takes longer to start than they do."""
    texts = {name: made() for name, made in SCRIPTS.items()}
    found = iter(replayed(text for some in texts.values() for text in some))
    return {name: [next(found) for _ in some] for name, some in texts.items()}


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{measured.what}-{due}" for _, _, measured, due in CASES])
def test_the_status_says_whether_what_is_due_was_seen(index: int, run: dict[str, list[tuple[int, str]]]) -> None:
    code, output = run["cases"][index]
    assert code == CASES[index][3], output


def test_a_script_takes_for_a_difference_what_the_verdict_took_for_one(run: dict[str, list[tuple[int, str]]]) -> None:
    assert [status for status, _ in run["rounded"]] == [status for *_, status in ROUNDED], run["rounded"]


def test_no_line_of_a_script_is_too_long() -> None:
    long = replace(NESTED, name="torch-nonreentrant-full")
    texts = [
        script(source, one, "law", measured, units=units)
        for source, _, measured, _ in CASES[:-1]
        for one in (long, get("legacy"), GRAPH)
        for units in (0, 123456.789)
    ]
    assert max(len(line) for text in texts for line in text.splitlines()) <= WIDTH


def test_whatever_is_measured_has_a_case() -> None:
    assert {measured.what for _, _, measured, _ in CASES} == set(get_args(get_type_hints(Measured)["what"]))


def test_an_import_that_fails_ends_with_another_status(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_written(PROGRAM.source, CASES[-1][1], Measured("raises")))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert (done.returncode, "ModuleNotFoundError" in done.stderr) == (2, True)


def test_no_module_of_the_program_is_imported_where_an_error_is_a_verdict(run: dict[str, list[tuple[int, str]]]) -> None:
    ((code, output),) = run["without a module"]
    assert (code, "ModuleNotFoundError" in output) == (2, True)


def test_scripts_that_hang_or_fail_show_nothing(tmp_path: Path) -> None:
    rows = [row("one", "somebody", "diverges", program="while True: pass\nsys.exit(1)")]
    rows.append(row("two", "somebody", "diverges", program="import no_such, sys\nsys.exit(1)"))
    write(tmp_path / "run.jsonl", HEADER, rows)
    brief = "import sys; from conformance.reproducers import replay; from reprise.command_line import main; "
    brief += "replay.SECONDS = 1; sys.exit(main(['replay', *sys.argv[1:]]))"
    command = [sys.executable, "-c", brief, str(tmp_path / "run.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "law one: status -9, expected 1" in done.stdout
    assert "0 of 2 scripts show their fault; 1 ended with another error, and show nothing" in done.stdout


def test_a_script_of_a_hang_ends_by_itself(run: dict[str, list[tuple[int, str]]]) -> None:
    ((code, output),) = run["hanging"]
    assert (code, "in checkpoint" in output, "expected to end within 1 seconds" in output) == (1, True, True), output


def test_status_1_is_a_fault_only_where_the_script_itself_ends_with_it(run: dict[str, list[tuple[int, str]]]) -> None:
    assert [code for code, _ in run["ending"]] == [*ENDING.values()]


def test_those_that_only_print_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, HEADER, [row("one", "legacy", "diverges", program="print()"), row("two", "legacy")])
    told: list[str] = []
    assert not replay.replay_files([path], told.append)  # nothing is left to run
    assert told[1] == "1 more only print, because their laws measure more than they do; they are not run"


def test_what_is_not_measured_says_so_at_its_head() -> None:
    text = script(PROGRAM.source, NESTED, "law", None, detail="two\nlines")
    assert "# The law measures more" in text
    assert "\n# two\n# lines\n" in text
    assert not replay.standalone([{"verdict": "diverges", "program": text}])


def test_a_script_imports_torch_and_the_implementation_alone() -> None:
    text = _written(PROGRAM.source, get("torch-nonreentrant"), Measured("alive", (("held 1", 0),)))
    lines = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert lines == ["import functools, gc, os, sys", "import torch", "from torch.utils.checkpoint import checkpoint"]


def test_the_law_and_the_implementation_are_said_at_the_head() -> None:
    text = script(PROGRAM.source, NESTED, "law one. " + "It is so. " * 20, Measured())
    assert text.startswith('"""nested, law one. It is so.')
    assert max(map(len, text.splitlines())) <= WIDTH


def test_options_are_passed() -> None:
    text = script(PROGRAM.source, NESTED, "law", Measured(), "early_stop=False")
    assert "\ncheckpoint = functools.partial(checkpoint, early_stop=False)\n" in text


def test_the_lines_that_bind_are_found() -> None:
    for name, options in (("legacy", ""), ("torch-reentrant", "determinism_check='none'")):
        text = script(PROGRAM.source, get(name), "law", Measured("objects"), options)
        assert binding_in(text) == binding(get(name), options)


def test_what_the_program_has_no_use_for_is_not_bound() -> None:
    one, other = (PROGRAM.source + end for end in ("", "    graph.logged_backward(y)\n"))
    assert binding_in(_written(one, get("torch-graph"), Measured("objects"))) == "from torch.autograd import graph"
    assert binding_in(_written(other, get("torch-graph"), Measured("objects"))) == binding(get("torch-graph"))


def test_outcomes_say_what_was_measured() -> None:
    def check(case: Case) -> None:
        case.equals_plain()

    assert judge(check, Case(PROGRAM, NESTED, "cpu"), recomputes=False, gradients=False).measured == Measured("values")


def test_only_faults_are_replayed() -> None:
    rows = [
        {"verdict": "diverges", "program": "sys.exit(0)"},
        {"verdict": "diverges", "program": "print()"},
        {"verdict": "refuses", "program": "sys.exit(0)"},
    ]
    assert replay.standalone(rows) == rows[:1]
