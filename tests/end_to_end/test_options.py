"""The command line, as a user gives it: what is refused, and that the exit status tells the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import impls
from conformance.rows import option_values
from conformance.runs.selection import SOUGHT

ROOT = Path(__file__).parents[2]
MODULE = """
from typing import Any, Callable
import torch
from impls import CAPABILITIES, Implementation, Known
from impls.nested import checkpoint as right

NUMBER = 3

def doubling(function, *args, **kwargs):
    double = lambda value: value * 2 if isinstance(value, torch.Tensor) else value
    value = right(function, *args, **kwargs)
    return torch.utils._pytree.tree_map(double, value) if kwargs or isinstance(value, tuple) else value

def without_keywords(function, *args, **kwargs):
    if kwargs:
        raise TypeError("keyword arguments are not supported here")
    return right(function, *args)

everything = frozenset(CAPABILITIES)
doubles = Known("diverges", "doubles", "here")
known = {"keyword_arguments": doubles, "unused_outputs": doubles}
few = {"keyword_arguments_that_are_false": doubles}
frank = Implementation("frank", doubling, capabilities=everything, known=known)
modest = Implementation("modest", without_keywords, capabilities=everything - {"keyword-arguments"})
boasting = Implementation("boasting", without_keywords, capabilities=everything)
misspelt = Implementation("misspelt", right, known={"keyword_argument": doubles})
astray = Implementation("astray", right, known={"sparse_matrices": doubles, "handles_pickle_and_copy": doubles})
masked = Implementation("nested", right)
overcautious = Implementation("overcautious", right, capabilities=everything, known=few)
frank_again = frank
"""
# Several runs in one process, since starting one takes longer than running two laws; all but one judge in it.
SEVERAL = """
import contextlib, io, json, sys
import pytest

for arguments in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = pytest.main(arguments)
    print(json.dumps([int(code), text.getvalue()]))
"""
KEYWORDS = ["-k", "keyword_arguments and not false"]
FEW_CASES = ["-k", "keyword_arguments_that_are_false"]
RUNS = {
    "modest and frank": ["--impl", "somebody:modest", "--impl", "somebody:frank", "--in-process", *KEYWORDS],
    "doubling": ["--impl", "somebody:doubling"],
    "without keywords": ["--impl", "somebody:without_keywords", "--in-process", *KEYWORDS],
    "boasting": ["--impl", "somebody:boasting", "--in-process", *KEYWORDS],
    "overcautious": ["--impl", "somebody:overcautious", "--in-process", *FEW_CASES],
    "right and overcautious": ["--impl", "somebody:right", "--impl", "somebody:overcautious", "--in-process", *FEW_CASES],
    "peers": ["--peers", "--in-process", "-k", "keyword_arguments and torch-selective and not false"],
    "unknown name": ["--impl", "best"],
    "misspelt name": ["--impl", "nestd"],
    "path": ["--impl", "mine/somebody.py:right"],
    "import that fails": ["--impl", "broken:right", "--in-process"],
    "one name twice": ["--impl", "somebody:frank", "--impl", "somebody:frank_again", "--in-process"],
    "unknown module": ["--impl", "acme.nope:x"],
    "unknown module in this process": ["--impl", "acme.nope:x", "--in-process"],
    "unknown attribute": ["--impl", "somebody:missing"],
    "unknown like": ["--impl", "plain", "--like", "best"],
    "like without effect": ["--impl", "plain", "--like", "nested"],
    "impl and peers": ["--impl", "plain", "--peers"],
    "limit without process": ["--impl", "somebody:right", "--in-process", "--memory-limit", "4"],
    "limit of what is built in": ["--impl", "plain", "--memory-limit", "4"],
    "limit under no law": ["--impl", "somebody:misspelt"],
    "limit under a law of another kind": ["--impl", "somebody:astray"],
    "name of another": ["--impl", "somebody:masked"],
    "device with a number": ["--impl", "plain", "--device", "cpu:1"],
    "limit of words": ["--impl", "plain", "--memory-limit", "abc"],
    "limit that is no number": ["--impl", "plain", "--memory-limit", "nan"],
    "right twice": ["--impl", "somebody:right", "--impl", "somebody:right", "--in-process"],
    "negative seed": ["--impl", "plain", "--seed", "-1"],
    "unknown device": ["--impl", "plain", "--device", "nonsense"],
    "no such device": ["--impl", "plain", "--device", "cuda"],
    "nothing selected": ["--impl", "plain", "-k", "no_such_law"],
}


def write(directory: Path) -> None:
    (directory / "somebody.py").write_text(MODULE)
    (directory / "broken.py").write_text("import nowhere\n")


@pytest.fixture
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nobody here wrote."""
    write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "somebody"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status and output of each run."""
    directory = tmp_path_factory.mktemp("runs")
    write(directory)
    laws = ["-p", "no:cacheprovider", "conformance/laws/test_structure.py", "-k", "unused_outputs"]
    always = [*laws, "--profile", "quick", "--results", str(directory / "results.jsonl")]
    env = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", SEVERAL, json.dumps([[*always, *options] for options in RUNS.values()])]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(RUNS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("right twice", 0),
        ("modest and frank", 0),
        ("doubling", 1),
        ("without keywords", 1),
        ("boasting", 1),
        ("overcautious", 1),  # a limit that is gone is as wrong as a claim that is broken
        ("right and overcautious", 1),
    ],
)
def test_the_status_is_zero_exactly_when_all_is_as_declared(name: str, status: int, judged: dict[str, tuple[int, str]]) -> None:
    code, output = judged[name]
    assert code == status, output


def test_an_unexpected_verdict_comes_with_its_program(judged: dict[str, tuple[int, str]]) -> None:
    _, output = judged["doubling"]
    assert "expected: agrees, as nested declares; found: diverges in" in output
    assert "def run(checkpoint, note, device):" in output
    assert output.index("making 1 script small, some seconds each") < output.index("results: ")


def test_one_that_is_named_twice_is_judged_once(judged: dict[str, tuple[int, str]]) -> None:
    code, output = judged["right twice"]
    assert code == 0, output
    assert "somebody:right: everyday: 1 of 1 kept" in output


def test_peers_are_judged_as_far_as_they_are_there_and_the_others_named(judged: dict[str, tuple[int, str]]) -> None:
    code, output = judged["peers"]
    assert code == 0, output
    assert "left out: megatron-core: it computes on cuda alone" in output
    assert "selective" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown name", "--impl: no implementation is called 'best'; there are plain, legacy, reentrant, nested"),
        ("misspelt name", "; did you mean 'nested'?"),
        ("path", "It is a path; accepted is a module: PYTHONPATH=mine --impl somebody:right"),
        ("import that fails", "broken.py, line 1)"),
        (
            "one name twice",
            "--impl: somebody:frank and somebody:frank_again are both called 'frank'; give one of them another name",
        ),
        (
            "unknown attribute",
            "--impl: 'somebody:missing': 'somebody' has no attribute 'missing'; callables there",
        ),
        ("unknown module", f"No module named 'acme'{SOUGHT}"),
        ("unknown module in this process", f"No module named 'acme'{SOUGHT}"),
        ("unknown like", "--like: no implementation is called 'best'"),
        ("like without effect", "--like is 'nested' and has no effect"),
        ("impl and peers", "--peers has no effect beside --impl plain; give one of them"),
        ("limit without process", "--memory-limit is 4 and has no effect with --in-process"),
        ("limit of what is built in", "--memory-limit is 4 and has no effect: it is for what is not built in"),
        ("limit under no law", "known of 'misspelt' has law 'keyword_argument', which does not exist; nearest of"),
        (
            "limit under a law of another kind",
            "known of 'astray' has law 'handles_pickle_and_copy', which judges kind 'graph'; its own kind is 'checkpoint'",
        ),
        ("name of another", "--impl somebody:masked: its name is 'nested', which is taken; give it another"),
        ("device with a number", "--device is cpu:1; accepted is a device type, such as cpu or cuda, without a number"),
        ("limit of words", "argument --memory-limit: it is abc; accepted is a number of GiB above 0"),
        ("limit that is no number", "argument --memory-limit: it is nan; accepted is a number of GiB above 0"),
        ("negative seed", "argument --seed: it is -1; accepted is a whole number, 0 or more"),
        ("unknown device", "--device nonsense: torch cannot use it here"),
    ],
)
def test_a_wrong_option_is_a_usage_error(name: str, message: str, judged: dict[str, tuple[int, str]]) -> None:
    code, output = judged[name]
    assert code == pytest.ExitCode.USAGE_ERROR
    assert message in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_a_device_that_is_not_there_is_a_usage_error(judged: dict[str, tuple[int, str]]) -> None:
    code, output = judged["no such device"]
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--device cuda: torch cannot use it here" in output


def test_a_run_in_which_nothing_is_selected_fails(judged: dict[str, tuple[int, str]]) -> None:
    assert judged["nothing selected"][0] not in (0, 1)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("somebody", "'somebody' is not of the form pkg.mod:attr"),
        (":right", "':right' is not of the form pkg.mod:attr"),
        ("somebody:", "'somebody:' is not of the form pkg.mod:attr"),
        ("nobody:right", "importing 'nobody' failed: ModuleNotFoundError: No module named 'nobody'"),
        ("broken:right", "importing 'broken' failed: ModuleNotFoundError: No module named 'nowhere'"),
        (
            "somebody:missing",
            "'somebody' has no attribute 'missing'; callables there: doubling, without_keywords, frank, modest, boasting, miss",
        ),
        ("somebody:frank.missing.deep", "has no attribute 'frank.missing.deep' .looked for 'missing'."),
        (
            "somebody:NUMBER",
            r"is 3, of type int; accepted is a callable, called as checkpoint\(function, \*args, \*\*kwargs\), or an impls",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_says_which_part_failed(reference: str, message: str, somebody: str) -> None:
    with pytest.raises(ValueError, match=message):
        impls.load(reference)


def test_a_bare_callable_declares_nothing_and_a_record_speaks_for_itself(somebody: str) -> None:
    bare, record, deep = (impls.load(f"{somebody}:{name}") for name in ("right", "modest", "frank.checkpoint"))
    assert (bare.name, bare.declared, bare.capabilities) == ("somebody:right", False, frozenset())
    assert (record.name, record.declared) == ("modest", True)
    assert deep.declared is False


def test_an_unknown_name_lists_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=", ".join(impls.names())):
        impls.get("best")


def test_a_command_is_one_that_works_where_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert option_values.command("report", "--show", "one") == f"{sys.executable} -m reprise report --show one"
    monkeypatch.chdir(tmp_path)
    line = option_values.command("merge", "out file", Path("a.jsonl"))
    assert line == f"cd {ROOT} && {sys.executable} -m reprise merge 'out file' {tmp_path / 'a.jsonl'}"
    done = subprocess.run(option_values.command("report", "--help"), shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_module_is_found_where_pytest_is_called(tmp_path: Path) -> None:
    write(tmp_path)
    started = "import sys, pytest; sys.path.remove(''); sys.exit(pytest.main(sys.argv[1:]))"  # as by the command pytest
    command = [sys.executable, "-c", started, str(ROOT / "conformance"), "--impl", "somebody:missing", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'somebody' has no attribute 'missing'" in done.stderr
