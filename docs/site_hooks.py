"""What the pages need to be a site: the files of the project that they link to are part of it.

On a page, such a link begins with ``../``, as code browsers want it. MkDocs warns of one whose file is not there.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TARGET = re.compile(r"(?<=\]\()(?!\w+:)[^)#\s]+")  # of a link or an image that is no URL
PLACE = "project"  # where these files are on the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside ``docs``, and what linked Markdown files show from their own folders."""
    root = Path(config.docs_dir).parent
    linked = {name for page in files.documentation_pages() for name in _outside(page.content_string)}
    for name in sorted(linked):
        if name.endswith(".md"):
            folder = Path(name).parent
            linked |= {(folder / target).as_posix() for target in TARGET.findall((root / name).read_text(encoding="utf-8"))}
    for name in sorted(linked):
        if (root / name).is_file():
            files.append(File.generated(config, f"{PLACE}/{name}", abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of ``docs`` to the files that were added."""
    for name in _outside(markdown):
        if files.get_file_from_path(f"{PLACE}/{name}"):
            markdown = markdown.replace(f"](../{name}", f"]({PLACE}/{name}")
    return markdown


def _outside(markdown: str) -> set[str]:
    """The paths in the project of what a page in ``docs`` links to outside."""
    return {target.removeprefix("../") for target in TARGET.findall(markdown) if target.startswith("../")}
