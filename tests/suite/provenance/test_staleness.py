"""Marks at what was measured on older code: where they are due, and that a check does not depend on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.page import page
from conformance.provenance.measured_code import of_roots, of_row
from conformance.provenance.staleness import NO_FINGERPRINT, OLDER, Now, is_older, marked, older_names, unmarked
from conformance.reports import matrix, report
from conformance.rows.results_file import ROOT, Results, write
from tests.support.generated_pages import write_places
from tests.support.repositories import commit, git
from tests.support.synthetic_results import HEADER, row

LAWS = "keyword_arguments", "dropout_masks_are_replayed"


@pytest.fixture(scope="module")
def now() -> Now:
    return Now(ROOT)


def results(now: Now, **fingerprints: str) -> Results:
    """Results of the code that there is now, but for the first row, of which some fingerprints are other ones."""
    rows = [row(law, impl) for law in LAWS for impl in ("nested", "legacy")]
    rows = [{**one, "fingerprints": of_row(now.sources, one, HEADER)} for one in rows]
    rows[0]["fingerprints"] |= fingerprints
    return Results(Path("conformance-cpu.jsonl"), HEADER, tuple(rows), {})


@pytest.mark.parametrize("reasons", [[], ["law"], ["implementation"], ["implementation", "law"]])
def test_a_row_is_older_when_a_fingerprint_is_another_one(reasons: list[str], now: Now) -> None:
    seen = now.of_results(results(now, **dict.fromkeys(reasons, "0")))
    assert [one.get(OLDER, []) for one in seen.rows] == [reasons, [], [], []]


def test_a_row_without_fingerprints_is_older(now: Now) -> None:
    seen = now.of_results(Results(Path("old.jsonl"), HEADER, (row("subsets", "nested"),), {}))
    assert seen.rows[0][OLDER] == [NO_FINGERPRINT]


@pytest.mark.parametrize("gone", [{"law": "a_law_that_was"}, {"impl": "was"}])
def test_a_row_of_code_that_is_no_more_is_older(gone: dict[str, str], now: Now) -> None:
    whole = results(now)
    seen = now.of_results(Results(whole.path, HEADER, ({**whole.rows[0], **gone},), {}))
    assert seen.rows[0][OLDER]


def test_a_peer_is_older_when_another_version_is_pinned(now: Now) -> None:
    header = {**HEADER, "versions": {**HEADER["versions"], "fairscale": now.pinned["fairscale"]}}
    one = row(LAWS[0], "fairscale")
    whole = [{**one, "fingerprints": of_row(now.sources, one, {**header, "versions": {"fairscale": version}})}
             for version in (now.pinned["fairscale"], "0.1")]  # fmt: skip
    assert [now.reasons(one, header) for one in whole] == [[], ["implementation"]]


def test_of_a_table_what_is_older_is_told_by_name(now: Now) -> None:
    entries = {name: of_roots(now.sources, [f"impls.{name}"]) for name in ("nested", "legacy")}
    entries["legacy"]["implementation"] = "0"
    table = {**HEADER, "fingerprints": {"contender": entries}}
    seen = now.of_table(table)
    assert older_names(seen) == "† measured on older code: contender legacy"
    assert [is_older(seen, contender=name) for name in ("nested", "legacy", "new")] == [False, True, True]
    assert (older_names(table), is_older(table, contender="legacy")) == ("", False)  # nobody has asked
    many = {"fingerprints": {"contender": dict.fromkeys("abcdefg")}, OLDER: {"contender": dict.fromkeys("abcde")}}
    assert older_names(many) == "† measured on older code: 5 of 7 contenders"
    assert older_names(now.of_table(HEADER)) == "† measured on older code, all of it"


def test_a_table_of_code_that_is_no_more_is_older(now: Now) -> None:
    entry = of_roots(now.sources, ["impls.nested"]) | {"of": ["impls.was"]}
    assert now.of_table({**HEADER, "fingerprints": {"table": {"rows": entry}}})[OLDER]["table"]


def test_a_commit_must_be_in_the_history_of_the_checkout(tmp_path: Path) -> None:
    first = commit(tmp_path, "first")
    git(tmp_path, "checkout", "--quiet", "--orphan", "elsewhere")
    second, now = commit(tmp_path, "second"), Now(tmp_path)
    assert now.commit_fault(second) == ""
    assert now.commit_fault(first) == f"commit {first[:10]} is not in the history of this checkout"
    assert now.commit_fault("6f9ca674b2" * 4) == "commit 6f9ca674b2 is not in this repository"


def test_marks_are_all_that_is_taken_away() -> None:
    one, lines = marked("†"), marked("many\nlines")
    assert unmarked(f"a{one} | b{lines}\n") == "a | b\n"


def test_the_matrix_counts_older_verdicts(now: Now) -> None:
    seen = now.of_results(results(now, law="0"))
    text = matrix.markdown(seen)
    assert "✓&nbsp;2<!-- older -->&nbsp; †&nbsp;1<!-- /older -->" in text
    assert "† measured on older code: 1 of 4 verdicts" in text
    assert "† commit 0123456789 is not in this repository." in text
    assert unmarked(text) == matrix.markdown(results(now))


@pytest.fixture
def root(tmp_path: Path, now: Now) -> Path:
    """A project whose pages were written when one verdict was older."""
    found = results(now, law="0")
    write(tmp_path / "results" / "conformance-cpu.jsonl", found.header, found.rows)
    write_places(tmp_path)
    report.write(tmp_path)
    page.write(tmp_path)
    return tmp_path


def test_what_is_written_is_marked_and_a_check_does_not_depend_on_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [root / "README.md", root / report.MATRIX.page, root / "results" / "index.html"]
    assert all("measured on older code" in path.read_text(encoding="utf-8") for path in paths)
    monkeypatch.setattr(Now, "reasons", lambda *_: ["law"])  # the code changes
    assert (report.check(root), page.check(root)) == ([], "")
    for path in paths:
        path.write_text(unmarked(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert (report.check(root), page.check(root)) == ([], "")


def test_the_page_marks_verdicts_families_and_commits(root: Path) -> None:
    text = (root / "results" / "index.html").read_text(encoding="utf-8")
    assert text.count("<b>†</b></button>") == text.count("<b>†</b></td>") == 1
    assert "† measured on older code: 1 of 4 verdicts." in text
    assert '· <b class="older">commit 0123456789 is not in this repository</b>' in text


def test_what_is_shown_of_an_older_verdict_says_so(now: Now) -> None:
    rows: Any = now.of_results(results(now, law="0")).rows
    broken = [{**one, "verdict": "diverges"} for one in rows]
    shown = [report.limits(broken, name) for name in ("nested", "legacy")]
    assert ["# measured on older code: law" in one for one in shown] == [True, False]
