"""A page in headless Chromium, and what the tests of the page of results ask of it."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.page_records import records

FLAGS = [
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
    "hide-scrollbars",
]
ESCAPE, ENTER, TAB, RIGHT, DOWN = "\ue00c", "\ue007", "\ue004", "\ue014", "\ue015"  # as WebDriver names keys
WIDTHS = {360: 740, 400: 740, 1400: 900}
PATIENCE = 20.0  # seconds in which a page has done what a key or a click started
# The text that can be seen, and how far it stands out from what is behind it, by the formula of WCAG 2.
CONTRAST = """
const channels = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => channels(color).slice(0, 3)
  .map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
const behind = (element) => {
  const color = getComputedStyle(element).backgroundColor;
  if ((channels(color)[3] ?? 1) === 1) return color;
  return element.parentElement ? behind(element.parentElement) : 'rgb(255, 255, 255)';
};
const root = document.querySelector('dialog[open]') || document.body;
return [...root.querySelectorAll('*')].filter((element) => element.checkVisibility() && !element.disabled
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => {
    const both = [light(getComputedStyle(element).color), light(behind(element))].sort((one, other) => other - one);
    return [element.outerHTML.slice(0, 90), (both[0] + 0.05) / (both[1] + 0.05)];
  });
"""


def started(user_data: Path) -> Any:
    """A driver of headless Chromium that keeps what it stores in this directory.

    Raises ModuleNotFoundError without selenium, and FileNotFoundError without the programs.
    """
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        raise FileNotFoundError("chromium or chromedriver is missing: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0] or ""
    for flag in [*FLAGS, f"user-data-dir={user_data}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    driver.set_page_load_timeout(120)
    return driver


class Browser:
    """A page in Chromium, and what the tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def visit(self, path: Path, fragment: str = "", *, scripted: bool = True) -> None:
        """Load a page, and wait for its script if it may run one."""
        self.driver.get("about:blank")  # another fragment alone would not load the page again
        self.driver.get(path.as_uri() + fragment)
        ready = "return 'ready' in document.documentElement.dataset"
        assert not scripted or self.eventually(lambda: self.run(ready), True)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """The elements that can be seen."""
        return [one for one in self.driver.find_elements("css selector", selector) if one.is_displayed()]

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def cell(self, law: str, impl: str, number: int = 0) -> Any:
        """The button of a verdict, in the first edition unless ``number`` says which of them."""
        told = records(self.text("#records"))
        entry = [place for place, its in enumerate(told) if (its["law"], its["impl"]) == (law, impl)][number]
        return self.driver.find_element("css selector", f".laws [value='{entry}']")

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> Any:
        return self.driver.switch_to.active_element

    def eventually(self, read: Callable[[], Any], due: Any) -> bool:
        """Whether what is read becomes what is due: a page hears later of a closed dialog, or a form that was reset."""
        until = time.monotonic() + PATIENCE
        while read() != due:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def verdicts(self) -> list[str]:
        """The verdicts that can be seen and are not faded, in the order of the page."""
        shown = self.all(".laws .cell:not(.faded)")
        return [one.get_attribute("class").split()[1] for one in shown]

    def laws(self) -> list[str]:
        return [one.text for one in self.all(".laws th code")]

    def address(self) -> dict[str, list[str]]:
        """The filters and the verdict in the address as the page has it: WebDriver may know of a change only later."""
        return parse_qs(self.run("return location.hash.slice(1)"))

    def choose(self, name: str, value: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.one(f"select[name='{name}']")).select_by_visible_text(value)

    def look(self, width: int, scheme: str) -> None:
        """Give the window this width, and let the user prefer this colour scheme, and that nothing moves."""
        size = {"width": width, "height": WIDTHS[width], "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]))

    def requests(self) -> list[str]:
        """The addresses asked for since this was asked last, but for files and data in the page itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if urlsplit(url).scheme not in {"file", "data", "about"}]

    def complaints(self) -> list[str]:
        """What the console was told since this was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
