"""The plots that the page of results shows, each with a caption and what it was measured on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from conformance.provenance.staleness import Now, note, older_names
from conformance.reports.editions import measured_on

_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_COORDINATES = re.compile(r'(?<= )(?:d|x|y|points)="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
WORDS = "{http://purl.org/dc/elements/1.1/}"  # the names of title and description in the metadata of an SVG file


@dataclass(frozen=True)
class Figure:
    """A drawing that stands in the page itself, as the URL of its data; its file, and what it says of itself."""

    file: str
    caption: str
    description: str
    data: str


def figures(directory: Path) -> list[Figure]:
    """The SVG files of a directory; none if there is no directory. As images they neither run scripts nor share ids.

    Caption and description are those in the drawing's metadata, else the name of its file.
    """
    return [_figure(path) for path in sorted(directory.glob("*.svg"))]


def _figure(path: Path) -> Figure:
    drawing, name = path.read_bytes(), path.stem.replace("-", " ")
    # The drawing has a title of itself, and one of the agent that made it; the agent's comes with no description.
    work = next((one for one in ET.fromstring(drawing).iter() if one.find(f"{WORDS}description") is not None), None)
    words = [name if work is None else work.findtext(f"{WORDS}{word}", name) for word in ("title", "description")]
    # Percent-encoded, since base64 would be longer. Characters that are not encoded are safe in an attribute between single
    # quotes.
    data = "data:image/svg+xml;charset=utf-8," + quote(shortened(drawing.decode()), safe=' !"$()*+,-./:;<=>?@[]^_`{|}~')
    return Figure(f"{path.parent.name}/{path.name}", words[0], words[1], data)


def shortened(drawing: str) -> str:
    """The drawing without metadata, its white space joined, its coordinates rounded to hundredths of a point."""
    bare = " ".join(_METADATA.sub("", drawing).split())
    return _COORDINATES.sub(lambda found: _LONG_NUMBER.sub(lambda one: f"{float(one[0]):.2f}", found[0]), bare)


def comparisons(directory: Path, now: Now | None = None) -> Iterator[tuple[str, str, str]]:
    """For each published comparison its file; how, on what and when it was measured; and what is older than the code."""
    for path in sorted(directory.glob("compare-*.json")):
        head: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        how = f"{head['device']}, size {head['size']}, {head['rounds']} rounds, threads: {head['threads']}"
        present = now.of_table(head) if now else head
        told = "; ".join(filter(None, [older_names(present), note(present)]))
        yield path.name, f"{how} · {measured_on(head)}", told
