"""The page of results in headless Chromium: filters, the panel of a verdict, keyboard, widths, light and dark.

Screenshots go to the directory that REPRISE_SCREENSHOTS names, or to a temporary one. Without Chromium these tests are
skipped, unless REPRISE_BROWSER is "required".
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from conformance.page import page
from conformance.rows.results_file import Results
from tests.support.browser import CONTRAST, DOWN, ENTER, ESCAPE, RIGHT, TAB, WIDTHS, Browser
from tests.support.synthetic_results import ELSEWHERE, HEADER, HOSTILE, LISTS, NEWER, PAGE_ROWS, PEER_ROWS, SCRIPT, row

STRANGE = row(HOSTILE, HOSTILE, "diverges", program=HOSTILE, detail=HOSTILE, statement=HOSTILE, family=HOSTILE)
SHOWN = len(PAGE_ROWS) + len(PEER_ROWS) + len(ELSEWHERE) + 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two devices and two versions of torch."""
    pytest.importorskip("jinja2")
    directory = tmp_path_factory.mktemp("results")
    found = [
        Results(directory / "conformance-cpu.jsonl", HEADER, (*PAGE_ROWS, STRANGE), {}),
        Results(directory / "peers-cpu.jsonl", HEADER, tuple(PEER_ROWS), {}),
        Results(directory / "conformance-cuda.jsonl", HEADER | {"versions": NEWER}, tuple(ELSEWHERE), {}),
    ]
    (directory / "index.html").write_text(page.rendered(found, directory, LISTS), encoding="utf-8")
    return directory / "index.html"


def test_at_first_there_are_families_and_all_verdicts(browser: Browser, path: Path) -> None:
    browser.visit(path)
    assert browser.text("#found") == f"{SHOWN} verdicts on 5 laws"
    assert browser.laws() == []
    assert [one.text.split() for one in browser.all(".edition[data-device='cuda'] .tally")] == [["crashes", "1"]]
    browser.one("#unfold").click()
    assert len(browser.verdicts()) == SHOWN
    browser.one("#unfold").click()
    assert browser.laws() == []


def test_verdicts_are_filtered(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.one(".verdict.crashes").click()
    assert browser.verdicts() == ["crashes", "crashes"]
    browser.one(".verdict.refuses").click()
    assert sorted(browser.verdicts()) == ["crashes", "crashes", "refuses", "refuses"]
    assert browser.address() == {"verdict": ["refuses", "crashes"]}
    assert browser.text("#found") == f"4 of {SHOWN} verdicts on 3 laws"
    tallies = [one.text for one in browser.all(".family .tally") if one.text]
    assert sorted(tally.split() for tally in tallies) == [["crashes", "1"]] * 2 + [["refuses", "1"]] * 2
    browser.one("button[type='reset']").click()
    assert browser.eventually(browser.address, {})
    assert browser.text("#found").startswith(f"{SHOWN} verdicts")


def test_families_are_filtered(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.choose("family", "rng")
    assert set(browser.laws()) == {"masks", "streams"}
    assert {one.get_attribute("data-family") for one in browser.all(".family")} == {"rng"}
    assert browser.address() == {"family": ["rng"]}


def test_implementations_are_filtered(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.one(".menu summary").click()
    browser.one(".menu [value='nested']").click()
    browser.one(".menu [value='hooks']").click()
    browser.press(ESCAPE)
    assert not browser.all(".options")
    assert browser.focused().tag_name == "summary"
    assert [one.text for one in browser.all(".scroller thead th:not(:first-child)")] == ["nested", "hooks"]
    assert browser.address() == {"impl": ["nested", "hooks"]}
    assert browser.one(".menu summary").text == "nested, hooks"


def test_devices_versions_and_what_is_unexpected_are_filtered(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.choose("device", "cuda")
    assert [one.text for one in browser.all(".edition h2")] == ["cuda torch 2.14.1"]
    browser.choose("device", "all devices")
    browser.choose("torch", "2.14.1")
    assert browser.text("#found") == f"2 of {SHOWN} verdicts on 1 law"
    browser.choose("torch", "all versions")
    browser.choose("only", "only what is not as declared")
    assert browser.verdicts() == ["diverges", "crashes"]
    browser.choose("only", "only limits")
    assert sorted(set(browser.verdicts())) == ["crashes", "diverges", "hangs", "refuses"]


def test_statements_are_searched(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.one("input[type='search']").send_keys("drawn RANDOM")
    assert browser.laws() == ["streams"]
    browser.one("input[type='search']").send_keys(" nobody waits")  # the reason of a limit
    assert browser.laws() == ["streams"]
    browser.one("input[type='search']").send_keys(" nowhere")
    assert (
        browser.one("#nothing").text
        == "No verdict fits these filters. Search finds laws with all of its words in name, statement or reasons."
    )


def test_the_address_holds_filters_and_verdict(browser: Browser, path: Path) -> None:
    browser.visit(path, "#family=rng&impl=older&text=drawn&cell=streams%2Folder%2Fcpu%2F2.13.0%2Bcpu")
    assert browser.text("#panel-verdict") == "! crashes"
    browser.press(ESCAPE)
    assert browser.verdicts() == ["crashes"]
    assert browser.eventually(browser.address, {"family": ["rng"], "impl": ["older"], "text": ["drawn"]})


def test_an_address_of_something_that_is_not_there_shows_everything(browser: Browser, path: Path) -> None:
    browser.visit(path, "#family=nowhere&device=tpu&cell=none&what=ever&verdict=%F0")
    assert browser.text("#found") == f"{SHOWN} verdicts on 5 laws"


def test_the_mouse_opens_a_verdict(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.one("#unfold").click()
    cell = browser.cell("masks", "nested")
    cell.click()
    assert browser.one("#panel-verdict").text == "≠ diverges, unexpected"
    assert browser.one("#panel-statement").text == "Gradients equal plain's."
    assert browser.one("#panel-law").text == "rng / masks"
    names, values = ([one.text for one in browser.all(f"#panel-facts {tag}")] for tag in ("dt", "dd"))
    assert dict(zip(names, values, strict=True)) == {
        "Implementation": "nested",
        "Measured with": "torch 2.13.0+cpu on cpu",
        "Cases": "60 · agrees 57 · diverges 3",
        "Declared": "agrees, so this verdict is unexpected",
    }
    assert "--impl nested --device cpu" in browser.one("#panel-command").text
    assert not browser.all("#panel-script, #panel-seen")
    assert browser.address() == {"cell": ["masks/nested/cpu/2.13.0+cpu"]}
    browser.one("#close").click()
    assert not browser.all("#panel")
    assert browser.eventually(browser.focused, cell)


def test_a_law_that_too_few_cases_prove_is_not_said_to_be_kept(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    idle = row("masks", "nested", detail="only 1 of 60 cases prove anything", as_declared=False)
    found = [Results(tmp_path / "conformance-cpu.jsonl", HEADER, (idle,), {})]
    (tmp_path / "index.html").write_text(page.rendered(found, tmp_path, LISTS), encoding="utf-8")
    browser.visit(tmp_path / "index.html", "#cell=masks%2Fnested%2Fcpu%2F2.13.0%2Bcpu")
    assert browser.text("#panel-verdict") == "✓ agrees, unexpected"
    assert "agrees, but too few cases prove it" in [one.text for one in browser.all("#panel-facts dd")]


def test_a_verdict_leads_to_the_same_law_elsewhere_and_to_its_neighbours(browser: Browser, path: Path) -> None:
    browser.visit(path, "#cell=masks%2Fnested%2Fcpu%2F2.13.0%2Bcpu")
    others = browser.all("#panel-elsewhere button")
    assert [one.text.split()[0] for one in others] == ["nested", "older", "torch-selective", "older", "older"]
    assert [one.text for one in browser.all("#panel-elsewhere p")] == [
        "cpu, torch 2.13.0+cpu",
        "cuda, torch 2.14.1",
        "cpu, torch 2.14.1",
    ]
    others[3].click()
    assert browser.one("#panel-facts dd:nth-of-type(2)").text == "torch 2.14.1 on cuda"
    before = browser.address()
    browser.one("#next").click()
    assert browser.address() != before
    browser.one("#previous").click()
    assert browser.address() == before
    browser.press(ESCAPE)
    assert browser.eventually(browser.focused, browser.cell("masks", "older", 1))


def test_all_of_it_works_by_keyboard(browser: Browser, path: Path) -> None:
    browser.visit(path, "#family=rng")
    browser.run("document.querySelector('.family:not([hidden]) .toggle').focus()")
    browser.press(ENTER)
    assert browser.focused().get_attribute("aria-expanded") == "false"
    browser.press(ENTER, TAB)
    assert browser.focused() == browser.cell("masks", "nested")
    browser.press(RIGHT, DOWN)
    assert browser.focused() == browser.cell("streams", "older")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press(ENTER)
    command = "python -m reprise report --show older --law streams"
    assert browser.one("#panel-run").get_property("textContent") == command
    assert browser.one("#panel-hint").text == "In the root of a clone, this prints it:"
    assert browser.one("#panel-detail").text == "IndexError: <none>"
    assert browser.one("#panel-facts dd:last-child").text == "pytorch#1, https://example.org/?a=<b>; and a book"
    links = [one.get_attribute("href") for one in browser.all("#panel-facts a")]
    assert links == ["https://github.com/pytorch/pytorch/issues/1", "https://example.org/?a=%3Cb%3E"]
    browser.press(ESCAPE)
    assert not browser.all("#panel")
    assert browser.eventually(browser.focused, browser.cell("streams", "older"))


def test_the_command_of_a_script_is_copied(browser: Browser, path: Path) -> None:
    browser.visit(path, "#cell=streams%2Folder%2Fcpu%2F2.13.0%2Bcpu")
    browser.run("window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); };")
    browser.one("[data-copy='panel-run']").click()
    assert browser.run("return copied") == ["python -m reprise report --show older --law streams"]
    assert browser.one("[data-copy='panel-run']").text == "Copied"


def test_a_script_that_is_a_file_can_be_opened_and_run(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "results" / "programs").mkdir(parents=True)
    path, its = tmp_path / "results" / "conformance-cpu.jsonl", row("masks", "nested", "diverges", program=SCRIPT)
    (script := tmp_path / "results" / "programs" / "nested-masks.py").write_text(SCRIPT)
    shown = page.rendered([Results(path, HEADER, (its,), {})], path.parent, LISTS)
    path.with_name("index.html").write_text(shown, encoding="utf-8")
    browser.visit(path.with_name("index.html"), "#cell=masks%2Fnested%2Fcpu%2F2.13.0%2Bcpu")
    assert browser.one("#panel-file").get_property("href") == script.as_uri()
    assert browser.one("#panel-run").text == "python results/programs/nested-masks.py"
    assert "ends with status 1 while the fault is there; it takes torch alone:" in browser.text("#panel-hint")


def test_what_looks_like_html_is_shown_as_text(browser: Browser, path: Path) -> None:
    browser.visit(path)
    browser.one("#unfold").click()
    browser.cell(HOSTILE, HOSTILE).click()
    for selector in ("#panel-statement", "#panel-detail", "#panel-facts dd"):
        assert browser.text(selector) == HOSTILE
    printed, judged = (shlex.split(browser.text(f"#panel-{which}")) for which in ("run", "command"))
    assert printed[3:] == ["report", "--show", HOSTILE, "--law", HOSTILE]
    assert judged[-1] == f"test_{HOSTILE}[{HOSTILE}]"


def test_without_javascript_the_tables_can_be_read(browser: Browser, path: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.visit(path, scripted=False)
        assert len(browser.all(".laws .cell")) == SHOWN
        assert not browser.all(".choices, .found")
        assert "need JavaScript" in browser.one("noscript p").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_choice_of_implementations_ends_before_its_arrow(browser: Browser, path: Path) -> None:
    for width in WIDTHS:
        browser.look(width, "light")
        browser.visit(path)
        summary, text = "document.querySelector('.menu summary')", "document.querySelector('.menu summary span')"
        ends = browser.run(f"return [{text}.getBoundingClientRect().right, {summary}.getBoundingClientRect().right]")
        assert ends[1] - ends[0] > 16
        assert browser.run(f"return {text}.scrollWidth <= {text}.clientWidth")


def test_light_and_dark_differ(browser: Browser, path: Path) -> None:
    browser.visit(path)
    color = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(color)
    browser.look(1400, "dark")
    assert browser.run(color) != light


def test_a_request_and_an_error_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    """The control of what the fixture asserts: a page that asks, of a port where nobody listens."""
    (tmp_path / "asks.html").write_text("<img src='http://127.0.0.1:9/nobody.png'><p style='color: #999'>faint</p>")
    browser.visit(tmp_path / "asks.html", scripted=False)
    assert browser.requests() == ["http://127.0.0.1:9/nobody.png"]
    assert len(browser.complaints()) == 1
    ((_, ratio),) = browser.run(CONTRAST)
    assert ratio < 4.5
