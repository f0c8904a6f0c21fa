"""Generated sections of Markdown pages, each between a pair of markers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conformance.provenance.staleness import unmarked


@dataclass(frozen=True)
class Section:
    """What stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` on the page at this path in the project."""

    name: str
    page: Path

    @property
    def begin(self) -> str:
        """The marker above."""
        return f"<!-- {self.name}:begin -->"

    @property
    def end(self) -> str:
        """The marker below."""
        return f"<!-- {self.name}:end -->"

    def updated(self, page: str, inside: str) -> str:
        """The text of the page with ``inside`` between the markers; ValueError unless it has each of them once, in order."""
        before, first, rest = page.partition(self.begin)
        _, second, after = rest.partition(self.end)
        if not (first and second) or self.begin in after or self.end in after:
            raise ValueError(f"{self.page} must have {self.begin} and {self.end} once each, in this order")
        return f"{before}{self.begin}\n\n{inside}\n\n{self.end}{after}"

    def read(self, root: Path) -> str:
        """The text of the page; ValueError if it has no place for the section."""
        text = (root / self.page).read_text(encoding="utf-8")
        self.updated(text, "")
        return text

    def write(self, root: Path, inside: str) -> None:
        """Put this between the markers."""
        (root / self.page).write_text(self.updated(self.read(root), inside), encoding="utf-8")

    def has(self, root: Path, inside: str) -> bool:
        """Whether this is what stands there, apart from marks at older results."""
        present = unmarked(self.read(root))
        return present == self.updated(present, inside)
