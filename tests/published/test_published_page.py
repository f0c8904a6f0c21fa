"""The page of the results that are published now, in headless Chromium: it can be read at every width."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.page import docs_lists, page
from conformance.provenance.staleness import Now
from conformance.reports import report
from conformance.rows.results_file import ROOT
from tests.support.browser import CONTRAST, WIDTHS, Browser


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the results that are published now."""
    pytest.importorskip("jinja2")
    found = report.results()
    path = tmp_path_factory.mktemp("published") / "index.html"
    path.write_text(page.rendered(found, found[0].path.parent, docs_lists.text(ROOT)), encoding="utf-8")
    return path


def test_the_published_page_has_less_than_two_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(Now, "reasons", lambda *_: ["law"])  # marks at all of it are the most that it can have
    found = report.results()
    text = page.rendered(found, found[0].path.parent, docs_lists.text(ROOT), Now())
    assert text.count("<b>†</b></button>") == sum(len(one.rows) for one in found) > 1000
    assert len(text.encode()) < 2_000_000


DRAWN = "return [...document.images].map((image) => image.complete && image.naturalWidth)"


def test_the_figures_of_the_published_page_are_drawn(browser: Browser, published: Path) -> None:
    browser.visit(published)
    widths = browser.run(DRAWN)
    assert widths
    assert all(widths)


COVERED = """
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const buttons = [...document.querySelectorAll(".laws tr")].filter((row) => row.checkVisibility())
    .map((row) => [...row.querySelectorAll("td button")]).find((them) => them.length > 4);
const covered = [];
buttons[0].focus();
for (const key of [...buttons.slice(1).map(() => "ArrowRight"), ...buttons.slice(1).map(() => "ArrowLeft")]) {
  press(key);
  const { left, right, top, bottom } = document.activeElement.getBoundingClientRect();
  for (const x of [left + 2, right - 2]) {
    if (document.elementFromPoint(x, (top + bottom) / 2)?.closest("button") !== document.activeElement) covered.push(key);
  }
}
return [document.activeElement === buttons[0], buttons.length, covered];
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_what_has_the_focus_is_not_covered(browser: Browser, published: Path, width: int) -> None:
    browser.look(width, "light")
    browser.visit(published, "#family=rng")
    is_back, count, covered = browser.run(COVERED)
    assert is_back
    assert count > 4
    assert covered == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "fragment"),
    [("families", ""), ("laws", "#only=limits&family=rng"), ("panel", "#only=limits&family=rng")],
)
def test_the_published_page_can_be_read(
    browser: Browser, published: Path, tmp_path: Path, name: str, fragment: str, width: int, scheme: str
) -> None:
    """Nothing is wider than the window but what scrolls by itself, and text stands out from what is behind it."""
    browser.look(width, scheme)
    browser.visit(published, fragment)
    if name == "laws":
        browser.run("document.querySelector('.edition').scrollIntoView()")
    if name == "panel":
        browser.all(".laws .cell.diverges:not(.faded)")[0].click()
        assert browser.one("#panel-run").text.endswith(".py")
    browser.screenshot(Path(os.environ.get("REPRISE_SCREENSHOTS") or tmp_path) / f"{name}-{scheme}-{width}.png")
    assert browser.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    contrast = browser.run(CONTRAST)
    assert len(contrast) > 10
    assert [text for text, ratio in contrast if ratio < 4.5] == []


@pytest.mark.parametrize(
    ("searched", "law"),
    [
        ("BatchNorm", "a_module_updates_its_buffers_once"),
        ("LoRA", "no_input_requires_grad"),
        ("DDP", "accumulation_hooks_fire_once"),
        ("frozen", "a_module_in_eval_gives_gradients"),
        ("GPT", "dropout_masks_are_replayed"),
        ("AMP", "autocast_is_forwards"),
    ],
)
def test_a_use_case_finds_the_laws_that_matter_to_it(browser: Browser, published: Path, searched: str, law: str) -> None:
    browser.visit(published)
    browser.one("input[type='search']").send_keys(searched)
    found = [one.replace("\n", "") for one in browser.laws()]
    assert law in found
    assert len(found) < 60


REACHED = """
const isShown = (element) => {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  return left >= 0 && right <= innerWidth && element.contains(hit);
};
return [...document.querySelectorAll(".scroller table")].flatMap((table) => {
  const row = [...table.querySelectorAll(".laws tr")].find((one) => one.checkVisibility());
  return [...(row?.querySelectorAll("td") ?? [])].map((cell) => {
    cell.scrollIntoView({ inline: "center", block: "center" });
    return isShown(cell) && isShown(row.querySelector("th"));
  });
});
"""


@pytest.mark.parametrize("width", [400, 1400])
def test_every_column_is_reached_beside_the_names_of_laws(browser: Browser, published: Path, width: int) -> None:
    browser.look(width, "light")
    browser.visit(published, "#family=rng")
    reached = browser.run(REACHED)
    assert len(reached) > 12
    assert all(reached)


def test_every_implementation_in_the_menu_has_a_summary(browser: Browser, published: Path) -> None:
    browser.visit(published)
    browser.one(".menu summary").click()
    names, told = ([one.text for one in browser.all(f".menu .options {tag}")] for tag in ("b", "small"))
    assert {"fairscale", "torch-remat", "deepspeed-reentrant", "torch-selective"} <= {*names}
    assert len(told) == len(names)
    assert all(told)
