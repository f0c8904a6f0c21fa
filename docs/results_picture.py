"""Takes ``docs/images/results.png``, a picture of the page of results, in headless Chromium.

Run as ``nox -s docs -- --picture``.
"""

from __future__ import annotations

from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).parents[1]
SIZE = 1280, 900
FIRST_TABLE = "document.querySelector('.laws').closest('section, div').scrollIntoView(); scrollBy(0, -24)"


def main() -> None:
    """Open the page, scroll to the first matrix, and write the picture."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options)
    try:
        driver.get((ROOT / "results" / "index.html").as_uri())
        driver.execute_script(FIRST_TABLE)
        driver.save_screenshot(str(ROOT / "docs" / "images" / "results.png"))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
