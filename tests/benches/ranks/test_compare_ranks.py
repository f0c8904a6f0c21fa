"""``compare --ranks``: what two and four ranks measure is what the model predicts, and what is not is told."""

from __future__ import annotations

import copy
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benches.ranks import report
from reprise import measuring
from reprise.command_line import main
from tests.support.generated_pages import place


@pytest.fixture(scope="module", params=report.RANKS)
def content(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run stores, whose status is 0."""
    path = tmp_path_factory.mktemp("ranks") / "ranks.json"
    before = children()
    options = ["--ranks", str(request.param), "--impl", "nested", "--rounds", "2", "--results", str(path)]
    assert main(["compare", *options]) == 0
    assert children() == before
    return json.loads(path.read_text(encoding="utf-8"))


def children() -> set[str]:
    """The processes that this one has started."""
    found = set[str]()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found |= {*path.read_text().split()}
    return found


def test_ranks_send_and_hold_what_is_predicted(content: dict[str, Any]) -> None:
    assert {row["implementation"] for row in content["rows"]} == {"plain", "nested"}
    assert len({row["parallelism"] for row in content["rows"]}) == (3 if content["ranks"] == 4 else 2)
    assert [*report.faults(content)] == []
    for row in content["rows"]:
        assert row["sent"] == row["predicted_sent"]
        assert min(row["sent"]) > 0
        assert len(row["peak"]) == content["ranks"]


def test_recomputation_lowers_the_peak_and_sends_more_under_tensor_parallelism_alone(content: dict[str, Any]) -> None:
    rows = {(row["parallelism"], row["implementation"]): row for row in content["rows"]}
    for parallelism in {row["parallelism"] for row in content["rows"]}:
        plain, nested = rows[parallelism, "plain"], rows[parallelism, "nested"]
        assert max(nested["peak"]) + content["bound"] < max(plain["peak"])
        assert (nested["sent"] > plain["sent"]) == (parallelism == "TP × FSDP2")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("gradients", "differ", "gradients are not plain's"),
        ("predicted_collectives", [], "collectives are"),
        ("predicted_peak", [0] * 4, "rank 0 takes"),
    ],
)
def test_what_is_not_as_predicted_is_a_fault(content: dict[str, Any], field: str, value: Any, told: str) -> None:
    changed = copy.deepcopy(content)
    changed["rows"][1][field] = value[: content["ranks"]] if isinstance(value, list) else value
    assert told in "\n".join(report.faults(changed))


def test_the_page_gets_the_table_that_check_wants(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, ranks = report.section(content["ranks"]), str(content["ranks"])
    page = tmp_path / section.section.page
    for path in (page, tmp_path / section.results):
        path.parent.mkdir(exist_ok=True)
    page.write_text(place(section.section), encoding="utf-8")
    (tmp_path / section.results).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(measuring, "ROOT", tmp_path)
    assert main(["compare", "--ranks", ranks, "--check"]) == 1
    section.write(tmp_path, content)
    assert main(["compare", "--ranks", ranks, "--check"]) == 0
    assert ("peak, full (computed)" in page.read_text(encoding="utf-8")) == (content["ranks"] == 4)
