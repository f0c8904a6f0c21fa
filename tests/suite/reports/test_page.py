"""The page of results shows every verdict once, whatever stands in it, and is made from results alone."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import impls
from conformance.page import docs_lists, figures, models, page
from conformance.reports.editions import editions, entries
from conformance.reports.merge import united
from conformance.reproducers.script_files import naming_files
from conformance.rows.results_file import ROOT, Results, is_unexpected, read_all, write, write_all
from tests.support import page_records
from tests.support.elements import Elements
from tests.support.generated_pages import write_lists
from tests.support.synthetic_results import HEADER, HOSTILE, LISTS, NEWER, PAGE_ROWS, PEER_ROWS, ROWS, SCRIPT, row

pytest.importorskip("jinja2", reason="the page is made with Jinja2")


def results(*rows: Any, path: str = "results/conformance-cpu.jsonl", **header: Any) -> Results:
    return Results(Path(path), HEADER | header, rows or tuple(ROWS), {})


def made(tmp_path: Path, *found: Results) -> Elements:
    return Elements(page.rendered(found, tmp_path, LISTS))


def records(elements: Elements) -> list[dict[str, Any]]:
    ((_, text),) = elements.all("script", id="records")
    return page_records.records(text)


def cells(elements: Elements) -> list[dict[str, str | None]]:
    return [has for has, _ in elements.all("button") if (has.get("class") or "").startswith("cell ")]


def test_every_verdict_has_one_cell_and_one_record(tmp_path: Path) -> None:
    shown = made(tmp_path, results(*PAGE_ROWS), results(*PEER_ROWS, path="results/peers-cpu.jsonl"))
    rows = [*PAGE_ROWS, *PEER_ROWS]
    assert sorted(int(cell["value"] or -1) for cell in cells(shown)) == list(range(len(rows)))
    for told, its in zip(records(shown), rows, strict=True):
        assert {key: told[key] for key in ("law", "impl", "device", "verdict", "cases", "detail")}.items() <= its.items()
        assert told["unexpected"] is is_unexpected(its)
        assert told["program"] is bool(its["program"])


def test_tallies_count_the_rows(tmp_path: Path) -> None:
    (edition,) = editions(entries([results(*PAGE_ROWS)]))
    tallies = [counts for table in edition.tables for family in table.families for counts in family.tallies]
    assert sum(tallies, Counter()) == Counter(its["verdict"] for its in PAGE_ROWS)
    shown = made(tmp_path, results(*PAGE_ROWS))
    assert sum(int(text) for _, text in shown.all("b") if text.isdigit()) == 2 * len(PAGE_ROWS)  # filters count them too


def test_what_stands_in_results_is_text(tmp_path: Path) -> None:
    """A script, a statement or a name that looks like HTML, like the end of a script or like a template is shown as it is."""
    hostile = row(
        HOSTILE, HOSTILE, "diverges", program=HOSTILE, detail=HOSTILE, statement=HOSTILE, family=HOSTILE, device=HOSTILE
    )
    plain, shown = made(tmp_path, results(row("a", "b", "diverges"))), made(tmp_path, results(hostile))
    tags = [Counter(tag for tag, _ in elements.found if tag != "wbr") for elements in (plain, shown)]
    assert tags[0] == tags[1]
    (told,) = records(shown)
    assert [told[key] for key in ("law", "impl", "detail", "family")] == [HOSTILE] * 4
    assert HOSTILE in [text for _, text in shown.all("span", **{"class": "statement"})]


def test_devices_and_versions_of_torch_have_tables_of_their_own(tmp_path: Path) -> None:
    other = results(
        row("masks", "nested", device="cuda"), row("masks", "nested"), versions=NEWER, path="results/conformance-cuda.jsonl"
    )
    shown = made(tmp_path, results(), other)
    found = [(has["data-device"], has["data-torch"]) for has, _ in shown.all("section", **{"class": "edition"})]
    assert found == [("cpu", "2.13.0+cpu"), ("cuda", "2.14.1"), ("cpu", "2.14.1")]
    machine, drawn = "Xeon · 2 CPUs · Linux-6", "profile default · seed 7 · suite at 0123456789 · 2026-11-21 14:00 UTC"
    measured = [edition.measured for edition in editions(entries([results(), other]))]
    assert measured[1] == [("conformance-cuda.jsonl", f"{machine} · python 3.11.9 · torch 2.14.1 · {drawn}", "")]


def test_one_implementation_by_two_suites_has_two_columns(tmp_path: Path) -> None:
    other = results(row("masks", "older", "crashes"), suite={"commit": "fedcba9876543210", "dirty": True})
    (edition,) = editions(entries([results(), other]))
    (table,) = edition.tables
    assert [(column.name, column.note) for column in table.columns] == [
        ("nested", ""),
        ("older", "python 3.11.9, suite 0123456789"),
        ("older", "python 3.11.9, suite fedcba9876"),
    ]


def test_verdicts_that_contradict_each_other_stand_in_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "merged.jsonl"
    write_all(path, [results(row("masks", "older", seed)) for seed in ("agrees", "diverges")])
    shown = made(tmp_path, *united(read_all(path)))
    assert len(cells(shown)) == 2
    assert len(shown.all("td", **{"class": "conflict"})) == 1


def test_the_command_repeats_the_run_that_gave_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "merged.jsonl"
    fault = row("masks", "older", "diverges", program=SCRIPT)
    write_all(
        path,
        [results(row("masks", "older", "diverges", program=SCRIPT + "\n# longer")), results(fault, seed=8, profile="soak")],
    )
    (entry,) = entries(united(read_all(path)))
    assert entry.command == (
        "nox -s conformance -- --torch 2.13.0 --impl older --device cpu --profile soak --seed 8 -k 'test_masks[older]'"
    )


def test_the_command_chooses_one_law_and_one_implementation() -> None:
    (entry,) = entries([results(row("grad_mode_is_forwards", "torch-nonreentrant"))])
    options = shlex.split(entry.command.partition(" -- ")[2])[2:]  # nox takes --torch and its value for itself
    command = [sys.executable, "-m", "pytest", "conformance", "--collect-only", "-q", *options]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    chosen = [line for line in told.splitlines() if "::" in line]
    assert chosen == ["conformance/laws/test_ambient.py::test_grad_mode_is_forwards[torch-nonreentrant]"]


def test_peers_are_judged_again_by_their_session() -> None:
    (entry,) = entries([results(row("masks", next(iter(impls.PEERS))))])
    assert entry.command.startswith("nox -s peers -- ")


def test_a_declared_limit_has_reason_and_source() -> None:
    law, declared = next(iter(impls.get("legacy").known.items()))
    said = {"reason": "it was so", "source": "a paper"}
    rows = [
        row(law, "legacy", "diverges"),
        row("masks", "legacy", known=said),
        row(law, "older"),
        row("masks", "nested", known=None),
    ]
    found = [entry.known for entry in entries([results(*rows)])]
    assert found == [{"reason": declared.reason, "source": declared.source}, said, None, None]


def test_a_script_that_is_a_file_is_linked_and_its_text_stands_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    rows = [row(law, "older", "diverges", program=SCRIPT) for law in ("masks", "subsets")]
    (path.parent / "programs").mkdir(parents=True)
    (path.parent / "programs" / "older-masks.py").write_text(SCRIPT)
    write(path, HEADER, naming_files(path, rows))
    assert [entry.script_file for entry in entries(read_all(path))] == ["programs/older-masks.py", ""]
    shown = page.rendered(read_all(path), path.parent, LISTS)
    assert [told["folder"] for told in records(Elements(shown))] == ["programs", ""]
    assert "sys.exit(1)" not in shown


def test_figures_stand_in_the_page(tmp_path: Path) -> None:
    assert not made(tmp_path, results()).all("img")
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "memory-by-depth.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    head = {**HEADER, "device": "cpu", "size": "S", "rounds": 15, "threads": 1}
    (tmp_path / "compare-cpu.json").write_text(json.dumps(head))
    found = made(tmp_path, results())
    ((image, _),) = found.all("img")
    assert image["alt"] == "memory by depth"
    assert (image["src"] or "").startswith("data:image/svg+xml;charset=utf-8,<svg xmlns=%27http")
    assert found.all("a", href="compare-cpu.json")
    assert len(found.all("a", href="compare/memory-by-depth.svg")) == 2
    ((name, about, _),) = figures.comparisons(tmp_path)
    assert name == "compare-cpu.json"
    assert about.startswith("cpu, size S, 15 rounds, threads: 1 · ")


def test_real_models_are_a_table_of_what_was_found(tmp_path: Path) -> None:
    agrees = {"verdict": "agrees", "error": "", "rounding": False, "differs": [], "differs_later": []}
    found = {"differs": ["2 of 9 gradients"], "differs_later": ["losses of later steps"]}
    differs = {"verdict": "diverges", "error": "", "rounding": True, **found}
    later = {**differs, "differs": []}
    checked = {
        "name": "GPT-2",
        "package": "transformers",
        "error": "",
        "implementations": {"a": agrees, "b": differs, "c": later},
    }
    failed = {**checked, "name": "BERT", "error": "no such switch", "implementations": {}}
    (tmp_path / "zoo-cpu.json").write_text(json.dumps({**HEADER, "rows": [checked, failed]}))
    (run,) = models.models(tmp_path)
    assert run.implementations == ("a", "b", "c")
    told = ("agrees", "rounding: 2 of 9 gradients", "rounding: losses of later steps")
    assert [cells for *_, cells in run.lines] == [told, ("not checked: no such switch", "", "")]
    assert made(tmp_path, results()).all("section", **{"class": "models"})


def test_a_figure_is_told_as_its_drawing_says(tmp_path: Path) -> None:
    agent = "<dc:creator><dc:title>who drew it</dc:title></dc:creator>"
    words = f"<dc:title>what</dc:title>{agent}<dc:description>in words</dc:description>"
    work = f"<metadata xmlns:dc='http://purl.org/dc/elements/1.1/'><work>{words}</work></metadata>"
    (tmp_path / "some-plot.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{work}</svg>")
    (figure,) = figures.figures(tmp_path)
    assert (figure.caption, figure.description) == ("what", "in words")


def test_nothing_is_asked_of_a_network(tmp_path: Path) -> None:
    for _, attributes in made(tmp_path, results(*PAGE_ROWS)).found:
        urls = [attributes.get(name) or "" for name in ("src", "href", "action", "srcset", "poster")]
        assert not [url for url in urls if ":" in url and not url.startswith("data:")]
    styles = (Path(page.__file__).parent / page.STYLE).read_text()
    assert "url(" not in styles
    assert "@import" not in styles


def test_two_lists_of_the_docs_are_shown(tmp_path: Path) -> None:
    shown = made(tmp_path, results())
    assert [text.strip() for _, text in shown.all("li")][:3] == [
        "A saved tensor belongs to  region.",
        "<b>Another</b> rule.",
        "Random numbers.",
    ]
    assert "one" in [text for _, text in shown.all("code")]
    assert len(docs_lists.items(docs_lists.text(ROOT), docs_lists.RULES)) == 6
    assert len(docs_lists.items(docs_lists.text(ROOT), docs_lists.NOT_COVERED)) > 6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no heading '## The rules of nesting'"),
        (LISTS.replace("1. ", "").replace("2. ", ""), "has no list under '## The rules of nesting'"),
        (LISTS.replace("2. ", "3. "), r"are numbered \[1, 3\]; they must be 1 to 2"),
        (LISTS.replace("What is not", "What is"), "has no heading '## What is not covered'"),
    ],
)
def test_docs_without_these_lists_make_no_page(text: str, told: str, root: Path) -> None:
    write_lists(root, text)
    with pytest.raises(ValueError, match=told):
        page.write(root)
    assert not (root / "results" / "index.html").exists()


@pytest.mark.parametrize(
    ("impl", "program", "takes"),
    [
        ("nested", "from impls.nested import checkpoint", "this project"),
        ("torch-nonreentrant", "import torch\nfrom conformance.simulated_device.device import second", "this project"),
        ("torch-nonreentrant", "import torch  # impls", "torch alone"),
        ("torch-remat", "import torch_remat", "torch and torch-remat"),
        ("theirs", "import theirs", "torch and what it imports"),
    ],
)
def test_what_a_script_takes_is_told(impl: str, program: str, takes: str) -> None:
    (entry,) = entries([results(row("masks", impl, "diverges", program=program))])
    assert entry.takes == takes


def test_plain_is_said_to_be_there_for_comparison(tmp_path: Path) -> None:
    beside = {"class": "beside"}
    assert len(made(tmp_path, results(row("masks", "plain"))).all("p", **beside)) == 1
    assert not made(tmp_path, results()).all("p", **beside)


def test_results_without_verdicts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hold no verdicts"):
        page.rendered([Results(Path("none"), HEADER, (), {})], tmp_path, LISTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with results of the suite's own implementations and of peers."""
    write(tmp_path / "results" / "conformance-cpu.jsonl", HEADER, PAGE_ROWS)
    write(tmp_path / "results" / "peers-cpu.jsonl", HEADER, PEER_ROWS)
    write_lists(tmp_path)
    return tmp_path


def test_a_stale_page_is_noticed(root: Path) -> None:
    stale = f"{root / 'results' / 'index.html'} is stale: python -m reprise page"
    assert page.check(root) == stale
    page.write(root)
    assert page.check(root) == ""
    assert len(records(Elements((root / "results" / "index.html").read_text()))) == len(PAGE_ROWS) + len(PEER_ROWS)
    write(root / "results" / "conformance-cpu.jsonl", HEADER, [its | {"cases": 61, "counts": {}} for its in PAGE_ROWS])
    assert page.check(root) == stale


def test_what_is_missing_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jinja2", None)
        with pytest.raises(ValueError, match="jinja2"):
            page.write(root)
    (root / "results" / "conformance-cpu.jsonl").unlink()
    with pytest.raises(ValueError, match="nox -s conformance writes it"):
        page.write(root)
    assert not (root / "results" / "index.html").exists()


def test_a_law_is_found_by_its_words_and_told_with_its_tier(tmp_path: Path) -> None:
    (told,) = records(made(tmp_path, results(row("dropout_masks_are_replayed", "nested", "diverges"))))
    assert (told["tier"], told["consequence"], told["effect"]) == ("everyday", "wrong gradient", "wrong gradient")
    assert {"GPT", "dropout"} <= set(told["words"].split(", "))


def test_peers_have_their_summaries_without_being_installed() -> None:
    assert page._summary("fairscale").startswith("FairScale")
    assert page._summary("somebody:checkpoint") == ""


def test_a_drawing_is_embedded_without_metadata_and_with_short_coordinates() -> None:
    path, text = '<path id="a" d="M 1.23456 -7.0001 L 2 3.5"/>', '<text x="4.56789">9.8765</text>'
    shortened = figures.shortened(f"<svg>\n <metadata>made by 1.2345</metadata> {path} {text}</svg>")
    assert shortened == '<svg> <path id="a" d="M 1.23 -7.00 L 2 3.5"/> <text x="4.57">9.8765</text></svg>'
