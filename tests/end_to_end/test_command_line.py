"""The command line: help that fits a screen, one line and status 2 for bad input, and that each subcommand does its job."""

from __future__ import annotations

import ast
import inspect
import itertools
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import docstring_parser
import pytest
from rich.console import Console

import impls
import reprise
from benches.models.workloads import KINDS, SIZES
from benches.papers import NAMES
from conformance.judging.law import PROFILES
from conformance.provenance.fingerprints import PACKAGES
from conformance.provenance.syntax_trees import imports
from conformance.rows.results_file import ROOT, read_all, write
from conformance.runs import portability
from reprise import command_line, judging, measuring, results, values
from reprise.command_line import GROUPS, main
from tests.support.generated_pages import write_places
from tests.support.synthetic_results import HEADER, ROWS, row

COMMANDS = {command.__name__: example for commands in GROUPS.values() for command, example in commands.items()}
LINES, COLUMNS = 40, 80  # of a screen


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with results, whose root is where the user is."""
    write(tmp_path / "results" / "conformance-cpu.jsonl", HEADER, ROWS)
    for name in ("default-cpu", "one", "two"):
        write(tmp_path / "results" / "runs" / f"{name}.jsonl", HEADER, ROWS)
    write_places(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in (results, measuring):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run of pytest is told; nothing is run."""
    told: list[str] = []

    def run(arguments: Sequence[str]) -> int:
        told.extend(arguments)
        return 0

    monkeypatch.setattr(judging, "run_pytest", run)
    return told


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_screen_and_has_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "_console", lambda: Console(width=COLUMNS))
    assert main([*filter(None, [name]), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    assert any(line.startswith(f"Example: reprise {name}") for line in lines)
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_each_command_is_accepted(name: str, here: Path) -> None:
    command, bound, _ = command_line.application().parse_args(shlex.split(COMMANDS[name]), exit_on_error=False)
    assert command.__name__ == name
    assert bound.signature


@pytest.mark.parametrize("described", [*(one for commands in GROUPS.values() for one in commands), judging.Judged])
def test_each_option_has_a_text(described: Callable[..., Any]) -> None:
    texts = {one.arg_name: one.description for one in docstring_parser.parse(described.__doc__ or "").params}
    assert texts.keys() == inspect.signature(described).parameters.keys()
    assert all(texts.values())


WRONG = [
    ("", "jugde", 'Unknown command "jugde". Did you mean "judge"?'),
    ("check", "", "the following arguments are required: build"),
    ("check", "train", "build is 'train'; it must be of the form pkg.mod:function"),
    ("check", "nowhere:build", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ("check", "builtins:dict --steps x", "argument --steps: invalid int value: 'x'"),
    ("check", "builtins:dict --steps 0", "steps is 0; it must be a whole number, 1 or more"),
    ("check", "builtins:dict --impl nestd", "no implementation is called 'nestd'"),
    ("check", "builtins:dict --device warp", "device is 'warp'"),
    ("judge", "nested", "'nested' is no option; accepted are --impl nested, and options of pytest after --"),
    ("judge", "--profil quick", "Unknown option: --profil. Did you mean --profile?"),
    ("judge", "--profile huge", 'Invalid value "huge" for --profile. Choose from: "quick", "round", "default"'),
    ("judge", "--seed -1", "Invalid value for --seed: it is -1; accepted is a whole number, 0 or more"),
    ("judge", "--memory-limit nan", "Invalid value for --memory-limit: it is nan; accepted is a number of GiB above 0"),
    ("judge", "-n many", "Invalid value for -n: it is many; accepted are a whole number from 0 on, 'auto' and 'logical'"),
    ("judge", "--results README.md", "Invalid value for --results: it is README.md, which exists and holds no results"),
    ("judge", "--impl", "--impl requires an argument"),
    ("soak", "--minutes 0", "Invalid value for --minutes: it is 0; accepted is a number above 0"),
    ("soak", "--minutes x", "Invalid value for --minutes: it is x; accepted is a number above 0"),
    ("soak", "--seed 1.5", "Invalid value for --seed: it is 1.5; accepted is a whole number, 0 or more"),
    ("soak", "--findings README.md", "Invalid value for --findings: README.md: line 1 is not JSON"),
    ("portability", "--settings native", "--settings has native; it takes two to compare: native, intel"),
    ("portability", "--settings native other", 'Invalid value "other" for --settings. Choose from: "native", "intel"'),
    ("portability", "-- --results=x", "--results has no effect"),
    ("features", "--write --check", "--write and --check exclude each other; give one of them"),
    ("features", "--write --seed 1", "--write and --check are about profile quick and seed 0; leave out --profile and --seed"),
    ("report", "", "one of --show NAME, --write, --check is required"),
    ("report", "--write --check", "--write and --check exclude each other; give one of them"),
    ("report", "--check --law masks", "--law has no effect without --show; add --show NAME"),
    ("report", "--show oldre", "--show: no result has impl 'oldre'; there are nested, older; --results FILE has those of"),
    ("report", "--show nested --results nowhere", "Invalid value for --results: nowhere does not exist; accepted is a file"),
    ("report", "--show nested --results .", "Invalid value for --results: . is no file; accepted is a file"),
    ("page", "now", "'now' is not accepted here."),
    ("replay", "", "parameter FILE requires an argument"),
    ("replay", "nowhere.jsonl", "Invalid value for FILE: nowhere.jsonl does not exist; accepted is a file that a run wrote"),
    ("replay", "results/runs/one.jsonl nowhere.jsonl", "nowhere.jsonl does not exist; accepted is a file that a run wrote"),
    ("replay", "README.md", "FILE: README.md: line 1 is not JSON"),
    ("merge", "out.jsonl", "parameter FILE requires an argument"),
    ("merge", "out.jsonl nowhere.jsonl", "Invalid value for FILE: nowhere.jsonl does not exist"),
    ("merge", "no/out.jsonl results/runs/one.jsonl", "Invalid value for OUT: no/out.jsonl cannot be written: no is not a dir"),
    ("merge", "results results/runs/one.jsonl", "Invalid value for OUT: results is a directory"),
    ("scripts", "results/runs/none.jsonl", "FILE: "),
    ("published", "--tell --mark", "--tell and --mark exclude each other"),
    ("compare", "--workload chains", 'Invalid value "chains" for --workload. Choose from: "chain", "attention"'),
    ("compare", "--rounds 1", "Invalid value for --rounds: it is 1; accepted is a whole number, 2 or more"),
    ("compare", "--write --impl nested", "--write is about a complete run; leave out --impl"),
    ("compare", "--redraw --budget 0.5", "--redraw is about a complete run; leave out --budget"),
    ("compare", "--backend eager", "--backend has no effect without --compiled; add --compiled"),
    ("compare", "--compiled --size XL", "--compiled: size is 'XL', which runs no kernels"),
    ("compare", "--compiled --budget 0.5 --check", "--check is about a complete run; leave out --budget"),
    ("compare", "--compiled --redraw", "--compiled does not take --redraw; leave out --redraw"),
    ("compare", "--compiled --workload sweeps", "--compiled: workload is 'sweeps'"),
    ("compare", "--ranks 3", "--ranks is 3; with compare, accepted are 2 and 4"),
    ("compare", "--ranks 0", "Invalid value for --ranks: it is 0; accepted is a whole number, 1 or more"),
    (
        "compare",
        "--ranks 2 --device cuda",
        "--device cannot be given with --ranks, which measures a decoder on the CPU with gloo",
    ),
    ("compare", "--ranks 2 --impl nestd", "--impl: no implementation is called 'nestd'"),
    ("compare", "--ranks 2 --write --impl nested", "--write is about a complete run; leave out --impl"),
    ("compare", "--redraw --write", "--write and --redraw exclude each other"),
    ("compare", "--device warp", "--device: device is 'warp', and torch cannot use it here"),
    ("overhead", "--scale 0", "Invalid value for --scale: it is 0; accepted is a number above 0"),
    ("overhead", "--write --bytes", "--write publishes a complete run; leave out --memory, --growth"),
    ("overhead", "--write --scale 0.5", "and give a --scale of 1 or more, not 0.5"),
    ("budget", "--write --check", "--write and --check exclude each other"),
    ("layer", "--rounds 1", "Invalid value for --rounds: it is 1; accepted is a whole number, 2 or more"),
    ("layer", "--device cpu", "--device: device is 'cpu'; it must be of type cuda"),
    ("offload", "--workload chain", 'Invalid value "chain" for --workload. Choose from: "attention"'),
    ("reproduce", "chen2061", 'Invalid value "chen2061" for PAPERS. Choose from: "chen2016"'),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_a_wrong_use_ends_with_status_2_and_one_line(
    name: str, arguments: str, message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*filter(None, [name]), *shlex.split(arguments)]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith(f"reprise {name}".rstrip())
    assert message in told.err


def test_choices_are_those_that_there_are() -> None:
    assert {*get_args(get_args(values.Profile)[0])} == {*PROFILES}
    assert get_args(judging.Setting) == tuple(one.name for one in portability.SETTINGS) == judging.ALL
    assert get_args(measuring.Workload) == (*KINDS, "sweeps")
    assert get_args(get_args(measuring.Size)[0]) == SIZES
    assert get_args(measuring.Paper) == NAMES


def test_the_options_of_a_run_are_forwarded(forwarded: list[str]) -> None:
    options = "--impl nested --impl a.b:c --like nested --device meta --profile quick --seed 3 --memory-limit 2 -k masks -n 0"
    assert main(["judge", *options.split(), "--", "-x", "--durations", "5"]) == 0
    pairs = {f"{one} {two}" for one, two in itertools.pairwise(forwarded)}
    wanted = "--impl nested,--impl a.b:c,--like nested,--device meta,--profile quick,--seed 3,--memory-limit 2.0,-k masks,-n 0"
    assert {*wanted.split(",")} <= pairs
    assert forwarded[-3:] == ["-x", "--durations", "5"]


def test_flags_and_results_are_forwarded(forwarded: list[str], here: Path) -> None:
    assert main(["judge", "--peers", "--in-process", "--results", "new.jsonl"]) == 0
    assert {"--peers", "--in-process", "--results", "new.jsonl"} <= {*forwarded}


@pytest.mark.parametrize(("of_pytest", "status"), [(0, 0), (1, 1), (2, 130), (3, 3), (4, 2), (5, 2)])
def test_the_status_of_a_run_is_kept_but_for_bad_input(of_pytest: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "run_pytest", lambda _: of_pytest)
    assert main(["judge"]) == status


def test_judge_judges(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    options = ["--impl", "plain", "--profile", "quick", "-n", "0", "-k", "keyword_arguments and not false"]
    command = [sys.executable, "-m", "reprise", "judge", *options, "--results", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["impl"] for run in read_all(path) for one in run.rows} == {"plain"}


def test_a_misspelt_implementation_is_answered_with_the_nearest() -> None:
    command = [sys.executable, "-m", "reprise", "judge", "--impl", "nestd", "-n", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("; did you mean 'nested'?")
    assert done.stderr.strip().count("\n") == 0


def test_report_writes_the_matrix_and_shows_failures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--check"]) == 1
    assert main(["report", "--write"]) == 0
    assert main(["report", "--check"]) == 0
    capsys.readouterr()
    assert main(["report", "--show", "older", "--results", "results/runs/one.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("# older on cpu, law subsets")


def test_page_makes_the_page(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("conformance.page.page._wanted", lambda root, now: f"a page of {root}")
    assert main(["page", "--check"]) == 1
    assert "is stale: python -m reprise page" in capsys.readouterr().err
    assert main(["page"]) == main(["page", "--check"]) == 0
    assert (here / "results" / "index.html").read_text() == f"a page of {here}"


def test_merge_writes_or_only_reports(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "other.jsonl", HEADER | {"seed": 8}, [row("masks", "older", "diverges")])
    assert main(["merge", "-", "results/runs/one.jsonl"]) == 0
    assert main(["merge", "out.jsonl", "results/runs/one.jsonl", "other.jsonl"]) == 1
    assert "conflict: older on cpu, law masks" in capsys.readouterr().out
    assert len(read_all(here / "out.jsonl")) == 2


def test_replay_needs_scripts_that_can_be_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "some.jsonl", HEADER, [row("masks", "older", "diverges", program="print()")])
    assert main(["replay", "some.jsonl"]) == 1
    assert "0 of 0 scripts show their fault" in capsys.readouterr().out


# What each other command calls, and what of the result makes its status 1; an error but that of budget makes it 2.
CALLED: dict[str, tuple[str, str, Any, Any]] = {
    "soak": ("soak --minutes 1 -n 0 --impl nested", "conformance.soak.command.soak", True, False),
    "portability": ("portability --settings native sse4 -k masks", "conformance.runs.portability.compare", True, False),
    "scripts": ("scripts results/peers-cpu.jsonl", "conformance.reproducers.script_files.resume", None, ValueError("no")),
    "operators": ("operators", "conformance.programs.operator_database.counted", "5 samples", ValueError("no")),
    "features": ("features --seed 1", "conformance.coverage.features_page.measured", "tables", ValueError("no")),
    "features, check": ("features --check", "conformance.coverage.features_page.check", [], ["a section is stale"]),
    "published": ("published", "benches.staleness.check", ([], "all"), (["one is older"], "none")),
    "published, marks": ("published --mark", "benches.staleness.mark", None, OSError("no")),
    "compare": ("compare --workload chain", "benches.compare.command.compare", True, False),
    "compare, anew": ("compare --redraw", "benches.compare.command.redraw", None, ValueError("nothing is published")),
    "compare, check": ("compare --check", "benches.published.PublishedSection.check", "", "stale"),
    "compare, compiled": ("compare --compiled", "benches.compare.compiled.compare", None, ValueError("not compiled")),
    "overhead": ("overhead --growth --scale 2", "benches.overhead.command.run_bench", True, False),
    "budget": ("budget --write", "benches.budget.command.run_bench", None, ValueError("a plan does not fit")),
    "layer": ("layer --rounds 2", "benches.layer.run_bench", True, False),
    "offload": ("offload --size M", "benches.offload.run_bench", True, False),
    "reproduce": ("reproduce chen2016", "benches.reproduce.reproduce_papers", True, False),
}


@pytest.mark.parametrize("name", CALLED)
def test_the_status_tells_what_came_out(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, function, fine, wrong = CALLED[name]
    for found, status in ((fine, 0), (wrong, 2 if isinstance(wrong, Exception) and name != "budget" else 1)):
        monkeypatch.setattr(function, _answering(found))
        assert main(shlex.split(arguments)) == status


def _answering(found: Any) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return answer


def test_older_results_are_no_failure_where_they_are_only_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benches.staleness.check", lambda root: (["one is older"], "none is of this code"))
    assert main(["published", "--tell"]) == 0
    assert capsys.readouterr() == ("none is of this code\n", "one is older\n")


def test_options_of_a_measurement_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("benches.overhead.command.run_bench", lambda **options: given.update(options) or True)
    assert main(["overhead", "--bytes", "--profile", "--scale", "2"]) == 0
    assert (given["parts"], given["scale"], given["publish"]) == (["profile", "bytes"], 2.0, False)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benches.reproduce.reproduce_papers", _answering(ModuleNotFoundError("no", name="scipy")))
    assert main(["reproduce"]) == 2
    assert "reprise reproduce needs the package scipy" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["cyclopts", "rich"])
def test_a_package_that_the_command_line_needs_is_named(package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['reprise', 'page']; import reprise.__main__ as main; "
    command = [sys.executable, "-c", f"{script} sys.exit(main.main())"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"reprise needs the package {package}, which this Python lacks: ")
    assert done.stderr.count("\n") == 1


def test_nothing_below_imports_the_command_line_or_its_library() -> None:
    paths = [path for package in {*PACKAGES} - {"reprise"} for path in (ROOT / package).rglob("*.py")]
    for path in paths:
        found = imports(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {name for one in found for name in (getattr(one, "module", None), *(each.name for each in one.names)) if name}
        assert not {name.partition(".")[0] for name in names} & {"reprise", "cyclopts"}, path


def test_the_python_api_is_that_of_the_implementations_and_the_check() -> None:
    checking = {"Report", "assert_equals_plain", "check"}
    assert all(getattr(reprise, name) is getattr(impls, name) for name in {*reprise.__all__} - checking)
    assert all(callable(getattr(reprise, name)) for name in checking)
    with pytest.raises(AttributeError, match="module 'reprise' has no attribute 'best'; it has Implementation, Report"):
        reprise.best  # noqa: B018
