"""A whole run of the laws that take ranks is published if all is as declared and its commit gives it; no other run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import impls
from conformance.distributed import script
from conformance.distributed.answer import BACKENDS, Answer, Task, Unjudged, WorldEnded
from conformance.distributed.case import RankedCase
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, all_laws
from conformance.distributed.script import Smaller
from conformance.distributed.world import World, Worlds
from conformance.judging.judge import Observation
from conformance.judging.verdicts import Verdict
from conformance.meters.interruptions import Timeout
from conformance.page import page
from conformance.programs.sums import DEFAULT
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.provenance.staleness import Now
from conformance.ranked_runs import command
from conformance.reports import report
from conformance.reports.editions import editions, entries
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import read, write
from conformance.runs import selection
from impls import Peer
from tests.support.generated_pages import write_places
from tests.support.synthetic_results import HEADER, ROWS, row

LAW = "ddp_trains_as_with_plain_regions"
SCRIPT = '"""{impl}, law {law}: diverges."""\nimport sys\n\nsys.exit(1)\n'


class Explorer:
    """Judges nothing: torch-reentrant diverges, as declared, and all others agree."""

    def __init__(self, *_: Any) -> None:
        pass

    def row(self, law: Any, one: Any, _: Any) -> dict[str, Any]:
        verdict = "diverges" if one.name == "torch-reentrant" else "agrees"
        program = SCRIPT.format(impl=one.name, law=law.name) if verdict == "diverges" else ""
        return row(law.name, one.name, verdict, family="distributed", program=program, ranks=2)


class Slow:
    """A world in which a program takes 20 seconds."""

    seconds, grace = 15.0, 1.0

    def __init__(self) -> None:
        self.limits: list[float] = []

    @contextmanager
    def limited(self, seconds: float, grace: float) -> Iterator[None]:
        self.seconds, before = seconds, self.seconds
        yield
        self.seconds = before

    def run(self, _: Task) -> list[Answer]:
        self.limits.append(self.seconds)
        if self.seconds < 20.0:
            raise WorldEnded("no answer", hangs=True)
        return []


def test_plain_gets_more_time_on_a_machine_that_is_held_up() -> None:
    explorer, world = RankedExplorer(Worlds(2), PROFILES["quick"], 0), Slow()
    for _ in range(2):
        assert explorer.plainly(Task("", ""), world) == []  # type: ignore[arg-type]
    assert (world.limits, world.seconds) == ([15.0, 60.0], 15.0)


@pytest.mark.parametrize("limits", [[15.0], [15.0, 60.0]])
def test_what_a_limit_ended_is_no_answer_of_plain(limits: list[float]) -> None:
    explorer, world = RankedExplorer(Worlds(2), PROFILES["quick"], 0), Slow()
    late = [Answer(0, Observation()), Answer(1, Observation(error=Timeout("no answer in 60 seconds")))]

    def run(_: Task) -> list[Answer]:
        world.limits.append(world.seconds)
        return late if world.seconds in limits else late[:1]

    world.run = run  # type: ignore[method-assign]
    plainly = partial(explorer.plainly, world=world)  # type: ignore[arg-type]
    case = RankedCase(Smaller("", DEFAULT), impls.get("nested"), 2, run, plainly, frozenset(), "")
    if len(limits) == 1:
        assert case.plain == late[:1]
    else:
        with pytest.raises(Unjudged, match="does not end with plain regions: rank 1: no answer in 60 seconds"):
            case.plain  # noqa: B018 - it raises
    assert world.limits == [15.0, 60.0]


class Stuck(World):
    """A world of which only plain's programs come to their end; whether ranks ``wait`` for each other is known."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__(2)
        self.waits, self.asked = waits, list[Task]()

    def run(self, task: Task) -> list[Answer]:
        if task.subject:
            self.asked.append(task)
            self.waited = self.waits
            raise WorldEnded("no answer", hangs=True)
        return [Answer(0, Observation()), Answer(1, Observation())]


@pytest.mark.parametrize(("waits", "times"), [(True, 1), (False, 2)])
def test_a_program_that_hangs_is_run_again_unless_its_ranks_have_certainly_waited(waits: bool, times: int) -> None:
    worlds, nested, other = Worlds(2), impls.get("nested"), impls.get("torch-nonreentrant")
    stuck = worlds._there[2] = Stuck(waits=waits)
    explorer = RankedExplorer(worlds, PROFILES["default"], 0)
    assert [one.verdict for one in explorer.outcomes(all_laws()[LAW], nested, nested)] == [Verdict.HANGS]
    assert len(stuck.asked) == times
    assert [one.verdict for one in explorer.outcomes(all_laws()[LAW], other, nested)] == [Verdict.HANGS]
    assert len(stuck.asked) == 2 * times


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without ranked results, in which nothing is really judged, at a commit that has all of its code."""
    (tmp_path / "results").mkdir()
    clean = replace(measured_code.begin(), changed=())
    monkeypatch.setattr(Origin, "fault", lambda self: "" if not self.changed else "there are changes")
    monkeypatch.setattr(command, "measured_code", SimpleNamespace(begin=lambda: clean, of_row=measured_code.of_row))
    monkeypatch.setattr(command, "RankedExplorer", Explorer)
    monkeypatch.setattr(command, "Worlds", lambda *_, **__: nullcontext(SimpleNamespace(started=1)))
    monkeypatch.setattr(command, "all_laws", lambda: {LAW: all_laws()[LAW]})
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PUBLISHED", tmp_path / "results" / "distributed-cpu.jsonl")
    monkeypatch.setattr(command, "PUBLISHED_PEERS", tmp_path / "results" / "distributed-peers-cpu.jsonl")
    for module in (report, page):
        monkeypatch.setattr(module, "write", lambda: None)
    return tmp_path


def judge(root: Path, choice: command.Choice | None = None, **others: Any) -> list[str]:
    told: list[str] = []
    arguments: dict[str, Any] = {"ranks": 2, "profile": "default", "seed": 0, "results": None, "say": told.append}
    assert command.judge(choice or command.Choice(), **(arguments | others)) == 0
    return told


def test_a_whole_run_is_published_with_its_scripts(root: Path) -> None:
    told = judge(root)
    published = root / "results" / "distributed-cpu.jsonl"
    assert told[-1] == f"results: {published}"
    rows = read(published).rows
    assert [one["impl"] for one in rows] == [*impls.names("checkpoint"), *impls.COMPILED]
    assert all({*one["fingerprints"]} == {"implementation", "declaration", "law"} for one in rows)
    script = root / "results" / "programs-distributed" / f"torch-reentrant-{LAW}.py"
    assert '"script": "programs-distributed/torch-reentrant-' in published.read_text()
    assert script.read_text() == SCRIPT.format(impl="torch-reentrant", law=LAW)
    assert not any(map(Now().reasons, rows, [read(published).header] * len(rows)))


def test_a_whole_run_of_peers_is_published_beside_it_if_none_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impls, "find", lambda name: replace(impls.get("nested"), name=name))
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"that of {package}")
    monkeypatch.setattr(selection, "left_out", lambda *_: {"fairscale": "is not installed"})
    judge(root, command.Choice(peers=True))
    assert not [*(root / "results").glob("distributed-*")]
    monkeypatch.setattr(selection, "left_out", lambda *_: {"megatron-core": "it computes on cuda alone"})
    published = root / "results" / "distributed-peers-cpu.jsonl"
    assert judge(root, command.Choice(peers=True))[-1] == f"results: {published}"
    there = {name for name, peer in impls.PEERS.items() if peer.runs_on("cpu")}
    assert {one["impl"] for one in read(published).rows} == there
    assert read(published).header["versions"]["fairscale"] == "that of fairscale"  # rows are older once it is another
    assert not (root / "results" / "distributed-cpu.jsonl").exists()


@pytest.mark.parametrize(
    ("choice", "others"),
    [
        (command.Choice(impl=["nested"]), {}),
        (command.Choice(words="ddp"), {}),
        (None, {"profile": "quick"}),
        (None, {"ranks": 4}),
        (None, {"seed": 1}),
    ],
)
def test_a_part_is_not_published(choice: command.Choice | None, others: dict[str, Any], root: Path) -> None:
    judge(root, choice, **others)
    assert not (root / "results" / "distributed-cpu.jsonl").exists()


def test_uncommitted_changes_are_not_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = replace(measured_code.begin(), changed=("impls/x.py",))
    monkeypatch.setattr(command, "measured_code", SimpleNamespace(begin=lambda: dirty, of_row=measured_code.of_row))
    assert "complete and as declared, but not published: there are changes" in judge(root)
    assert not (root / "results" / "distributed-cpu.jsonl").exists()


def test_what_is_not_as_declared_is_not_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[..., dict[str, Any]] = Explorer.row
    monkeypatch.setattr(Explorer, "row", lambda *of: made(*of) | {"expected": "refuses"})
    assert command.judge(command.Choice(), ranks=2, profile="default", seed=0, results=None, say=lambda _: None) == 1
    assert not (root / "results" / "distributed-cpu.jsonl").exists()


def test_two_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impls, "find", lambda *_: replace(impls.get("nested"), name="frank"))
    with pytest.raises(InvalidOption, match="--impl: a:x and a:y are both called 'frank'; give one of them another name"):
        command.Choice(impl=["a:x", "a:y", "a:x"]).pairs(all_laws())


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impls, "find", lambda *_: impls.get("nested"))
    with pytest.raises(InvalidOption, match="--impl a:x: its name is 'nested', which is taken; give it another"):
        command.Choice(impl=["a:x"]).pairs(all_laws())


GONE = "gone: it needs gone-1, which is not installed here"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (None, f"--peers: none can be judged here; {GONE}"),
        ("gone", f"-k 'gone' selects none of {len(all_laws())} laws .*; {GONE}"),
    ],
)
def test_peers_that_are_not_installed_are_told(words: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {} if words is None else {"torch-selective": impls.PEERS["torch-selective"]}
    monkeypatch.setattr(impls, "PEERS", there | {"gone": Peer("checkpoint", "gone", "no_such_package", "gone-1")})
    with pytest.raises(InvalidOption, match=told):
        command.Choice(peers=True, words=words).pairs(all_laws())


def test_what_cannot_be_judged_ends_the_run_with_the_rows_so_far(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[..., dict[str, Any]] = Explorer.row

    def row_of(explorer: Explorer, law: Any, one: Any, claims: Any) -> dict[str, Any]:
        if one.name == "reentrant":
            raise Unjudged("the ranks did not start\ntorch.distributed.run says:\nno port")
        return made(explorer, law, one, claims)

    monkeypatch.setattr(Explorer, "row", row_of)
    told: list[str] = []
    what = f"reentrant cannot be judged by law {LAW}: the ranks did not start; 2 of "
    with pytest.raises(InvalidOption, match=f"^{what}[^\n]*$"):
        command.judge(command.Choice(), ranks=2, profile="quick", seed=0, results=root / "rows.jsonl", say=told.append)
    assert told == ["the ranks did not start\ntorch.distributed.run says:\nno port"]
    assert [one["impl"] for one in read(root / "rows.jsonl").rows] == ["plain", "legacy"]


def test_published_verdicts_have_a_table_and_commands_of_their_own(root: Path) -> None:
    judge(root)
    write(root / "results" / "conformance-cpu.jsonl", HEADER, ROWS)
    write_places(root)
    (ranked,) = report.ranked(root)
    shown = entries([*report.results(root), ranked])
    table = editions(shown)[-1].tables[-1]
    assert table.title == "Checkpointing under several ranks"
    assert {column.name for column in table.columns} == {*impls.names("checkpoint"), *impls.COMPILED}
    (entry,) = (one for one in shown if one.row["impl"] == "torch-reentrant")
    assert entry.command == f"nox -s distributed -- --ranks 2 --impl torch-reentrant --profile default --seed 0 -k {LAW}"
    assert any(part.get("ranks") == 2 for part in entry.record())
    inside = dict(report._sections(root, report.results(root), [ranked]))[report.RANKS]
    assert f"| `{LAW}` |" in inside
    assert "≠ 60" in inside


def test_peers_beside_named_implementations_are_refused() -> None:
    with pytest.raises(InvalidOption, match="--peers has no effect beside --impl nested; give one of them"):
        command.Choice(impl=["nested"], peers=True).implementations()


def test_one_rank_judges_what_needs_no_other() -> None:
    fit = command.that_fit(all_laws(), 1, "cpu")
    assert {law.ranks for law in fit.values()} == {1}
    assert "an_error_on_one_rank_is_raised_there" not in fit
    assert command.that_fit(all_laws(), 2, "cpu") == all_laws()


def test_what_one_rank_cannot_judge_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laws = {law: all_laws()[law] for law in (LAW, "ddp_with_shared_weights")}
    monkeypatch.setattr(command, "all_laws", lambda: laws)
    told = judge(root, command.Choice(impl=["nested"]), ranks=1)
    assert told[0] == "left out, for 1 rank cannot judge them: ddp_with_shared_weights"
    with pytest.raises(InvalidOption, match="--ranks 1 can judge none of the selected laws; each takes more ranks"):
        judge(root, command.Choice(words="shared_weights"), ranks=1)


@pytest.mark.parametrize(
    ("device", "there", "told"),
    [
        ("cuda", 1, "--device cuda with --ranks 2 needs 2 devices, one for each rank; there are 1"),
        ("cuda", 0, "--device cuda with --ranks 2 needs 2 devices, one for each rank; there are 0"),
        ("meta", 9, "--device is meta; with --ranks, accepted are cpu, cuda"),
    ],
)
def test_a_device_for_each_rank_is_needed(device: str, there: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(InvalidOption, match=told):
        command.judge(command.Choice(device=device), ranks=2, profile="quick", seed=0, results=None, say=lambda _: None)


def test_laws_take_no_more_ranks_than_there_are_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert {law.ranks for law in command.that_fit(all_laws(), 2, "cuda").values()} == {1, 2}


def test_the_device_chooses_the_backend_here_and_in_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Task] = []
    world = World(2, device="cuda")
    monkeypatch.setattr(World, "_start", lambda _: None)
    monkeypatch.setattr(World, "_send", lambda _, task: sent.append(task))
    monkeypatch.setattr(World, "_received", lambda *_: [])
    world.run(Task("", ""))
    assert [(one.device, BACKENDS[one.device]) for one in sent] == [("cuda", "nccl")]
    assert script._start("cuda")[::2] == [
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        'dist.init_process_group("nccl")',
    ]
    assert script._start("cpu") == ['dist.init_process_group("gloo")']


def test_a_published_script_that_is_too_long_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST", len(SCRIPT.splitlines()))
    named = f"torch-reentrant, law {LAW}: its script has {len(SCRIPT.splitlines())} lines, more than "
    assert not [line for line in judge(root) if line.startswith(named)]
    monkeypatch.setattr(command, "MOST", len(SCRIPT.splitlines()) - 1)
    assert [line for line in judge(root) if line.startswith(named)] == [f"{named}{len(SCRIPT.splitlines()) - 1}"]
