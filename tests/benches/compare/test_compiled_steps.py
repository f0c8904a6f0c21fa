"""Compiled steps: compiled once and whole, measured beside the compiled plain one, and never left out without a reason."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch._dynamo.backends.debugging import aot_eager_decomp_partition
from torch._functorch import config as partitioner

import impls
from benches.compare import compiled, compiled_report
from benches.compare.compiled_steps import PEERS, Compiled, CompiledRow, measured_rows, offered
from benches.compare.contenders import checkpointing
from benches.compare.measurement import MEASURED, RAISES, VOID, Subject
from benches.compare.meters import Bytes
from benches.models import workloads
from benches.models.blocks import Operators
from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.provenance import measured_code
from conformance.rows.option_values import InvalidOption
from tests.support.generated_pages import write_places

ELEMENTS, SINES, BLOCKS = 64, 3, 2
STATE = torch.get_rng_state().nbytes
PAGE = compiled_report.SECTION.section


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with own_compiler_cache():
        yield
    torch.set_num_threads(threads)


def tiny(name: str = "chain", blocks: int = BLOCKS) -> workloads.Workload:
    return workloads._made(name, "S", "cpu", lambda: ([Operators(SINES) for _ in range(blocks)], (ELEMENTS,)))


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(tiny(), "cpu")


class Backend:
    """A backend that notes each graph, and the memory budget that is in force."""

    def __init__(self) -> None:
        self.budgets: list[float] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.budgets.append(partitioner.activation_memory_budget)
        return aot_eager_decomp_partition(graph, inputs)


def picked(*names: str) -> list[Compiled]:
    return [offered()[name]() for name in names]


@pytest.fixture(scope="module")
def rows(subject: Subject) -> dict[str, CompiledRow]:
    names = "plain", "plain-eager", "torch-nonreentrant", "nested", "reentrant", "budget-0"
    return {row.contender: row for row in measured_rows(subject, picked(*names), Backend(), 0)}


def test_each_contender_is_compiled_once_and_as_one_graph(subject: Subject) -> None:
    backend = Backend()
    found = measured_rows(subject, picked("plain", "nested", "budget-0.5", "budget-0", "plain-eager"), backend, 2)
    assert [row.status for row in found] == [MEASURED] * 5
    assert backend.budgets == [1.0, 1.0, 0.5, 0.0]
    assert partitioner.activation_memory_budget == 1.0


def test_what_is_kept_is_what_the_graphs_pass_on(rows: dict[str, CompiledRow]) -> None:
    kept = {name: row.allocated.kept for name, row in rows.items() if row.allocated is not None}
    of_one = 4 * ELEMENTS
    assert kept.keys() == rows.keys()
    assert kept["plain-eager"] == SINES * BLOCKS * of_one
    assert kept["nested"] == kept["reentrant"] == kept["torch-nonreentrant"] < kept["plain-eager"]
    assert kept["budget-0"] <= kept["plain"]


def test_compile_time_is_that_of_what_is_compiled(rows: dict[str, CompiledRow]) -> None:
    assert rows["plain-eager"].compile_seconds is None
    assert all(row.compile_seconds is not None for name, row in rows.items() if name != "plain-eager")
    assert all(row.times is None for row in rows.values())


def test_times_are_ratios_to_the_compiled_plain_step(subject: Subject) -> None:
    plain, nested = measured_rows(subject, picked("plain", "nested"), "eager", 2)
    assert plain.times == (1.0, 1.0, 1.0)
    assert nested.times is not None


def test_what_takes_too_long_to_compile_is_left_out_with_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "workload", lambda name, *_: tiny(name))
    monkeypatch.setattr(compiled, "KINDS", {"chain": None, "lstm": None})
    monkeypatch.setattr(compiled, "SECONDS", 0)
    choice, origin = compiled.Choice(["nested"], backend="eager", rounds=0), measured_code.begin()
    found = compiled.measured(choice, Console(quiet=True), origin)
    assert (found["rows"], found["workloads"], found["fingerprints"]["workload"]) == ([], {}, {})
    (lstm,) = [one for one in found["left_out"] if one["name"] == "lstm"]
    told = r"compiling the plain step alone takes \d+ s of CPU time, and 0 s were left for all of them"
    assert re.fullmatch(told, lstm["reason"])
    named = compiled.measured(replace(choice, workloads=["lstm"]), Console(quiet=True), origin)
    assert [row["contender"] for row in named["rows"]] == ["plain", "nested"]
    assert named["left_out"] == []


def breaking(function: Callable[..., torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return function(value)


def scaled(function: Callable[..., torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    return function(value * 1.01)


def test_what_breaks_the_graph_or_the_gradients_has_the_reason_in_its_row(subject: Subject) -> None:
    wrong = [Compiled(one.__name__, "yours", checkpointing(one.__name__, "yours", one)) for one in (breaking, scaled)]
    plain, broken, void = measured_rows(subject, [*picked("plain"), *wrong], "eager", 0)
    assert (plain.status, broken.status, void.status) == (MEASURED, RAISES, VOID)
    assert broken.detail.startswith("Unsupported: ")
    assert (void.detail, void.allocated) == ("gradients are not those of plain", None)


def test_a_workload_that_does_not_compile_is_shown_with_the_reason(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuses(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no sines\nat all")

    with own_compiler_cache() as own:
        plain, eager = measured_rows(subject, picked("plain", "plain-eager"), refuses, 2)
    assert not Path(own).exists()
    assert [*tmp_path.iterdir()] == []  # also what torch leaves after an error
    assert plain.status == RAISES
    assert "no sines" in plain.detail
    assert (eager.status, eager.times) == (MEASURED, None)  # beside nothing


def test_nothing_is_compiled_into_the_users_cache(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (row,) = measured_rows(subject, picked("plain"), "eager", 0)
    assert (row.status, row.detail) == (RAISES, "KeyError: 'TORCHINDUCTOR_CACHE_DIR'")


def test_contenders_are_those_that_compile_and_what_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(name: str) -> Any:
        raise ValueError("no compiler")

    monkeypatch.setattr("impls.find", unavailable)
    found, missing = compiled.contenders((), "cpu")
    assert [one.name for one in found] == ["plain", "plain-eager", "budget-0", "budget-0.5"]
    checkpoints = {"torch-nonreentrant", "torch-selective", "torch-remat", "reentrant", "nested", "native"}
    assert {one.name for one in missing} == checkpoints
    with pytest.raises(InvalidOption, match="impl is 'native', which cannot be had here: no compiler"):
        compiled.contenders(["native"], "cpu")


def test_peers_are_those_that_claim_to_compile() -> None:
    claiming = set()
    for name, peer in impls.PEERS.items():
        with contextlib.suppress(ValueError):  # it is not installed here
            claiming |= {name} if "compiled" in peer.load().capabilities else set()
    assert "torch-selective" in claiming <= {*PEERS}


def test_what_a_selective_policy_keeps_is_kept_in_the_graph() -> None:
    attention = workloads.workload("attention", "S", "cpu")
    found = measured_rows(Subject(attention, "cpu"), picked("torch-nonreentrant", "torch-selective"), Backend(), 0)
    assert [row.status for row in found] == [MEASURED] * 2
    recomputed, selective = (row.allocated.kept for row in found if row.allocated is not None)
    assert recomputed < selective


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"impl is 'nestd'; it must be one of plain, .*did you mean 'nested'[?]"):
        compiled.contenders(["nestd"], "cpu")


def test_a_backend_that_does_not_exist_and_fake_tensors_are_refused() -> None:
    assert "no-such-backend" in compiled.uncompilable("cpu", "no-such-backend")
    assert compiled.uncompilable("cpu", "eager") == ""
    with pytest.raises(InvalidOption, match="device is 'fake'"):
        compiled.compare(compiled.Choice(device="fake"))


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the command stores, of a tiny workload."""
    monkeypatch.setattr(compiled, "workload", lambda name, *_: tiny(name))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    write_places(tmp_path, [PAGE])
    choice = compiled.Choice(["nested", "budget-0"], ["chain", "lstm"], backend="eager", rounds=2)
    compiled.compare(choice, publish=True, root=tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == cache
    return dict(json.loads((tmp_path / "results" / "compiled-cpu.json").read_text(encoding="utf-8")))


def test_what_is_published_is_what_check_wants(content: dict[str, Any], tmp_path: Path) -> None:
    assert [(row["workload"], row["contender"]) for row in content["rows"]] == [
        (workload, name) for workload in ("chain", "lstm") for name in ("plain", "nested", "budget-0")
    ]
    assert {row["status"] for row in content["rows"]} == {MEASURED}
    assert {"torch", "python"} <= content["versions"].keys()
    assert content["suite"]["commit"]
    assert compiled_report.SECTION.check(tmp_path) == ""
    text = (tmp_path / PAGE.page).read_text(encoding="utf-8")
    assert text.startswith(f"before\n{PAGE.begin}\n\n| workload | contender |")
    (tmp_path / PAGE.page).write_text(text.replace("| `nested`", "| `nested`, faster"), encoding="utf-8")
    told = "the comparison of compiled steps in docs/comparison.md is stale: python -m reprise compare --compiled --write"
    assert compiled_report.SECTION.check(tmp_path) == told


def test_without_results_there_is_no_table(tmp_path: Path) -> None:
    write_places(tmp_path, [PAGE])
    PAGE.write(tmp_path, compiled_report.SECTION.nothing)
    assert compiled_report.SECTION.check(tmp_path) == ""


def test_nothing_is_left_of_what_was_compiled(content: dict[str, Any], tmp_path: Path) -> None:
    assert content["rows"]
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_what_is_left_out_and_what_failed_is_told(content: dict[str, Any]) -> None:
    row = CompiledRow("chain", "nested", "ours", RAISES, "Unsupported: a | b")
    left_out = [{"name": name, "reason": reason} for name, reason in compiled.LEFT_OUT.items()]
    text = compiled_report.markdown({**content, "rows": [asdict(row)], "left_out": left_out})
    assert "| chain | `nested` | raises | – | – | – | Unsupported: a \\| b |" in text
    assert all(f"{name} ({reason})" in text for name, reason in compiled.LEFT_OUT.items())


def test_what_is_not_timed_has_no_ratio() -> None:
    row = CompiledRow("chain", "plain", "plain", MEASURED, "", "close", (0.9, 1.0, 1.1), Bytes(1024, 2048), 12.34)
    assert compiled_report.cells(asdict(row)) == ["plain", "1.00 (0.90–1.10)", "2.00 KiB", "1.00 KiB", "12.3 s", "close"]
    assert compiled_report.cells(asdict(replace(row, times=None)))[1] == "–"


def test_each_workload_is_compiled_or_left_out_with_a_reason() -> None:
    assert compiled.LEFT_OUT.keys() < workloads.KINDS.keys()
    assert all(compiled.LEFT_OUT.values())
    sources = measured_code.begin().sources
    assert compiled.fingerprints(sources, picked("plain", "budget-0"), ["attention"]).keys() == {"contender", "workload"}
