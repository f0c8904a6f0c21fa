"""Published results: the file, the section of a page that shows it, and on what it was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.provenance.staleness import MARK, Now, is_older, marked, note, older_names
from conformance.reports.generated_section import Section


@dataclass(frozen=True)
class PublishedSection:
    """A generated section of a page in ``docs``, made from one file of results.

    ``about`` is what the section has, in the words of an error; ``nothing`` stands there if nothing is published. ``bench`` is
    the command that measures it, if that is not the section's name.
    """

    section: Section
    results: Path
    about: str
    nothing: str
    markdown: Callable[[Mapping[str, Any]], str]
    bench: str = ""

    def require_markers(self, root: Path) -> None:
        """Raise ValueError if the page has no place for the section: before anything is measured."""
        self.section.read(root)

    def write(self, root: Path, content: Mapping[str, Any], now: Now | None = None) -> None:
        """Put the results into the page, with marks at what is older than the code."""
        self.section.write(root, self.markdown((now or Now()).of_table(content)))

    def check(self, root: Path) -> str:
        """What is wrong with the section, apart from marks; "" when it has the results, or says that there are none."""
        path = root / self.results
        text = self.markdown(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else self.nothing
        if self.section.has(root, text):
            return ""
        wanted = "stale" if path.exists() else f"not {self.nothing!r}, and there is no {self.results}"
        return f"{self.about} in {self.section.page} is {wanted}: python -m reprise {self.bench or self.section.name} --write"


def store(path: Path, content: Mapping[str, Any]) -> None:
    """Write results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measured_on(content: Mapping[str, Any]) -> str:
    """Machine, versions, commit of the suite and date, in one line; and what is wrong with the commit, as a mark."""
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    commit = content["suite"]["commit"][:10] + (" with uncommitted changes" if content["suite"]["dirty"] else "")
    gone = marked(f" {MARK} {told}.") if (told := note(content)) else ""
    return f"{machine['processor']}, {machine['cpus']} CPUs; {versions}; suite at {commit}, {content['date'][:10]}.{gone}"


def older_mark(content: Mapping[str, Any], **names: str) -> str:
    """The mark at what has these names in a table, if it is older than the code; else ""."""
    return marked(f" {MARK}") if is_older(content, **names) else ""


def older_note(content: Mapping[str, Any]) -> str:
    """What is older than the code in a table, as a mark; "" if nothing is."""
    return marked(f" {told}.") if (told := older_names(content)) else ""
