"""The command reprise check: its status, its JSON, and what ends it before a check."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.checking import check
from reprise.model_check.command import main
from reprise.model_check.errors import InvalidArgument
from tests.support.checked_models import built

HERE = "tests.end_to_end.model_check.test_check"


def build_fails() -> Any:
    return dict[str, int]()["no such key"]


def test_an_error_of_build_is_told_as_such_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:build_fails"]) == 2
    line = build_fails.__code__.co_firstlineno + 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"reprise check: build failed at {__file__}:{line}: KeyError: 'no such key'"
    )


def build_without_steps() -> Any:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_pre_hook(lambda *_: pytest.fail("a step began"))
    return model, torch.ones(1, 2)


def test_a_glob_that_matches_nothing_is_told_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:build_without_steps", "--regions", "0", "layers.*"]) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert first == "... build(), then plain, twice"
    assert last.startswith("reprise check: regions: 'layers.*' matches no module; its largest modules: 0 (6 parameters)")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"regions": 3}, "regions: 3 is no glob"),
    ({"regions": ["layers.*", None]}, "regions: None is no glob"),
    ({"regions": [""]}, "regions: '' is no glob"),
    ({"steps": "2"}, "steps is '2'; it must be a whole number"),
    ({"steps": True}, "steps is True; it must be a whole number"),
    ({"impl": checkpoint}, "impl is <function checkpoint"),
    ({"impl": [3]}, "impl is 3; accepted are names"),
]


@pytest.mark.parametrize(("options", "told"), WRONG)
def test_an_argument_of_another_type_is_refused_before_the_model_is_built(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        check(lambda: pytest.fail("it was built"), **options)


def needing(function: Any, *args: Any, need: Any) -> Any:
    return function(*args)


def without_arguments(function: Any) -> Any:
    return function()


def without_keywords(function: Any, *args: Any) -> Any:
    return function(*args)


def raising_of_its_own(function: Any, *args: Any, **kwargs: Any) -> Any:
    return needing(function, *args, **kwargs)


def build_with_keyword() -> Any:
    return built(call=lambda layer, x: checkpoint(lambda *, x: layer(x), x=x, use_reentrant=False))()


def build_with_option() -> Any:
    return built(call=lambda layer, x: checkpoint(layer, x, use_reentrant=False, early_stop=False))()


def build_raising_where_recomputed() -> Any:
    def after(_: Any, x: Any) -> Any:
        return x if torch._C._current_graph_task_id() == -1 else dict.fromkeys()  # type: ignore[call-overload]

    return built(after)()


SIGNATURES = [
    ("needing", "build_plainly", "with (function, 1 further argument): missing a required"),
    ("without_arguments", "build_plainly", "with (function, 1 further argument): too many positional arguments"),
    ("without_keywords", "build_with_keyword", "with (function, 0 further arguments, x=...): got an unexpected keyword"),
    ("without_keywords", "build_with_option", "with (function, 1 further argument, early_stop=...): got an unexpected"),
]
build_plainly = built()


@pytest.mark.parametrize(("impl", "name", "told"), SIGNATURES)
def test_an_implementation_with_another_signature_is_bad_input(
    impl: str, name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{__name__}:{name}", "--impl", f"{__name__}:{impl}"]) == 2
    shown = capsys.readouterr()
    line = shown.err.splitlines()[-1]
    assert line.startswith(f"reprise check: impl is '{__name__}:{impl}', which cannot be called for region ")
    assert told in line
    assert "; accepted is a callable, called as checkpoint(function, *args, **kwargs)" in line
    assert not shown.out


ELSEWHERE = [
    (f"{__name__}:raising_of_its_own", "build_plainly", "refuses"),
    (f"{__name__}:torch_checkpoint", "build_raising_where_recomputed", "crashes"),
    ("legacy", "build_with_keyword", "refuses"),
]
torch_checkpoint = functools.partial(checkpoint, use_reentrant=False)


@pytest.mark.parametrize(("impl", "name", "verdict"), ELSEWHERE)
def test_a_type_error_that_is_raised_inside_is_a_verdict(impl: str, name: str, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{__name__}:{name}", "--impl", impl, "--json", str(path)]) == 1
    (result,) = json.loads(path.read_text())["results"]
    assert (result["verdict"], result["error"].partition(":")[0]) == (verdict, "TypeError")


@pytest.mark.parametrize(("name", "status"), [("build", 0), ("build_with_batch_norm", 1)])
def test_the_status_and_the_json_of_the_command(name: str, status: int, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{HERE}:{name}", "--impl", "nested", "--json", str(path)]) == status
    told = json.loads(path.read_text())
    assert (told["results"][0]["verdict"], told["agrees"], told["passes"]) == (
        ("diverges", False, False) if status else ("agrees", True, True)
    )


def test_the_json_has_versions_devices_and_the_number_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{HERE}:build", "--impl", "nested", "--steps", "3", "--json", str(path)]) == 0
    told = json.loads(path.read_text())
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in ("torch", "numpy")}}
    assert (told["versions"], told["devices"], told["steps"]) == (versions, ["cpu"], 3)
    compared = told["results"][0]["comparison"]
    assert compared["gradients_of_later_steps"]["total"] == 2 * compared["gradients"]["total"]


def test_the_command_imports_neither_the_suite_nor_its_libraries() -> None:
    told = "import sys, reprise.model_check.checking, reprise.model_check.command; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in ran.stdout.split()} & {"cyclopts", "conformance", "benches", "pytest"}


@pytest.mark.parametrize("package", ["torch", "numpy"])
def test_a_package_that_is_missing_is_named(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\nfrom reprise.model_check.command import main; sys.exit(main(['m:f']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = ran.stderr.splitlines()[-1]  # torch warns of numpy
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False)
    assert told.startswith(f"reprise check: it needs the package {package}, which this Python lacks: ")


def test_an_interrupt_while_torch_is_imported_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "reprise", "check", "m:build"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, "reprise check: interrupted; nothing is written\n")


PATIENCE = 300  # seconds; what is not at its end by then is not interrupted
CATCHES = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize("after", ["", "raise RuntimeError('half imported')", "raise SystemExit(4)", "def f(): return 1"])
@pytest.mark.parametrize("module", ["numpy", "m"])
def test_an_interrupt_that_a_module_catches_as_it_is_imported_is_told_all_the_same(
    module: str, after: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(CATCHES + after)
    # Whoever runs the tests may ignore SIGINT, as jobs in the background do; the command would inherit that.
    program = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", program, sys.executable, "-m", "reprise", "check", "m:f"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (130, "reprise check: interrupted; nothing is written")
    assert "Traceback" not in ran.stderr


def test_an_interrupt_within_code_that_c_runs_has_the_same_status(tmp_path: Path) -> None:
    """Python would end the process by a signal then."""
    program = "import ctypes\nctypes.pythonapi.PyRun_SimpleString(b'raise KeyboardInterrupt')\nraise KeyboardInterrupt"
    (tmp_path / "torch.py").write_text(program)
    command = [sys.executable, "-m", "reprise", "check", "m:f"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (130, "reprise check: interrupted; nothing is written")


def test_the_handler_of_interrupts_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main(["no_such_module:build"]) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_report_that_cannot_be_written_is_refused_before_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{HERE}:build", "--json", "/no such folder/report.json"]) == 2
    assert capsys.readouterr().err == "reprise check: --json is /no such folder/report.json; its folder must exist\n"


def test_an_interrupt_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reprise.model_check.checking.check", interrupted)
    assert main([f"{HERE}:build"]) == 130
    assert capsys.readouterr().err == "reprise check: interrupted; nothing is written\n"
