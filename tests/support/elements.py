"""The elements of a page, read with Python's own parser."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The elements of a page, with attributes and with the text that stands directly in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self.text.append("")
        if tag not in {"br", "input", "link", "meta", "wbr", "img"}:
            self.inside.append(len(self.found) - 1)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.found[self.inside.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.text[self.inside[-1]] += data

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        """The elements of this tag with these attributes."""
        pairs = zip(self.found, self.text, strict=True)
        return [(has, text) for (name, has), text in pairs if name == tag and wanted.items() <= has.items()]
