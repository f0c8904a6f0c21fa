"""The figures of the overhead of ``nested`` and ``native``: as tables on the terminal, and as those of docs/overhead.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benches.overhead.figures import Reading
from benches.overhead.ladder import Step
from benches.overhead.peak_bytes import Peak
from benches.published import PublishedSection, measured_on, older_mark, older_note
from conformance.reports.generated_section import Section

NONE = "–"
Stored = Mapping[str, Any]
Lines = list[list[str]]


def figures(content: Stored) -> Lines:
    """Headings, and a line for each reading."""
    lines = [["checkpoint", "figure", "ours", "PyTorch's", "ideal", "ratio", "limit", ""]]
    for one in (Reading(**stored) for stored in content["readings"]):
        parts = [NONE if part is None else f"{part:,.1f} {one.unit}" for part in (one.ours, one.torch, one.floor)]
        name = one.name + older_mark(content, table="readings")
        limit = [NONE, ""] if one.limit is None else [f"{one.limit:.2f}", _reached(one.holds)]
        lines.append([one.checkpoint, name, *parts, f"{one.value:.3f}", *limit])
    return lines


def ladder(content: Stored) -> Lines:
    """Headings, and a line for each rung: what it adds to the ideal, and in brackets the ratio to what PyTorch's adds."""
    lines = [["checkpoint", *(f"{length:,} saved" for length in content["lengths"])]]
    for index, one in enumerate(Step(**stored) for stored in content["ladder"]):
        name = f"+ {one.ingredient}" if index and "`" not in one.ingredient and one.name != "torch" else one.ingredient
        cells = zip(one.added, one.ratios, strict=True)
        name += older_mark(content, table="ladder")
        lines.append([name, *(f"{added:,.1f} µs ({ratio:.2f})" for added, ratio in cells)])
    return lines


def peaks(content: Stored) -> Lines:
    """Headings, and a line for each peak."""
    lines = [["checkpoint", "peak of", "counted by", "predicted", "measured", "ratio", "limit", ""]]
    for one in (Peak(**stored) for stored in content["bytes"]):
        limit = "equal" if one.limit == 0 else f"within {one.limit:.0%}"
        cells = f"{one.predicted:,}", f"{one.measured:,}", f"{one.ratio:.4f}", limit
        name = one.name + older_mark(content, table="bytes")
        lines.append([one.checkpoint, name, one.meter, *cells, _reached(one.holds)])
    return lines


def _reached(holds: bool) -> str:
    return "reached" if holds else "**not reached**"


def kept(content: Stored) -> bool:
    """Whether every limit holds of all that was measured."""
    return not missed(content)


def missed(content: Stored) -> list[str]:
    """The figures and peaks whose limit does not hold."""
    found = [f"{one.checkpoint}: {one.name}" for one in (Reading(**stored) for stored in content["readings"]) if not one.holds]
    missed_peaks = [one for one in (Peak(**stored) for stored in content["bytes"]) if not one.holds]
    return found + [f"{one.checkpoint}: peak of {one.name}" for one in missed_peaks]


def show(content: Stored, console: Console) -> None:
    """Print the tables that there are, and what the figures are made of."""
    for lines in (figures(content), ladder(content), peaks(content)):
        if len(lines) > 1:
            table = Table(*lines[0], box=box.SIMPLE_HEAD, pad_edge=False)
            for line in lines[1:]:
                table.add_row(*line)
            console.print(table)
    for note in (*details(content), *content["left_out"], measured_on(content)):
        console.print(note, markup=False, highlight=False)


def details(content: Stored) -> list[str]:
    """What figures are made of, beyond their lines in the table."""
    return [f"{one['checkpoint']}: {one['name']}: {one['detail']}." for one in content["readings"] if one["detail"]]


def markdown(content: Stored) -> str:
    """The tables and their notes, as docs/overhead.md has them."""
    beyond = missed(content)
    told = f"Not reached: {'; '.join(beyond)}." if beyond else "Every limit is reached."
    above = (
        f"{told} *Ours* and *PyTorch's* are what each adds to the ideal: plain forward and backward, and one more forward with "
        "grad (under no_grad: plain forward). Rows about memory have what each takes. Times are CPU time on "
        f"{content['threads']} thread, interleaved round by round: medians, except for the time per further saved tensor and "
        "per region in a row, which are of the fastest rounds."
    )
    below = (
        "What is left, as a ladder in one run: minimal checkpoints of the same chain, each with one ingredient more than the "
        "one above it, then `nested`. µs that a region adds to the ideal; in brackets, the ratio to what PyTorch's adds."
    )
    bytes_told = (
        "Peaks of a step. Of the chain: predicted by the plan alone. Of models, each block a region: by plain runs of each "
        "block alone, and the tensors between blocks. A region that keeps the state of the CPU's random numbers has "
        f"{content['state']:,} bytes more."
    )
    made = "\n".join(f"- {told}" for told in [*details(content), *content["left_out"]])
    parts = [above, _table(figures(content)), made, below, _table(ladder(content)), bytes_told, _table(peaks(content))]
    return "\n\n".join([*parts, measured_on(content) + older_note(content)])


def _table(lines: Sequence[Sequence[str]]) -> str:
    first, *others = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *others])


def state_bytes() -> int:
    """Bytes of the state of the CPU's random number generator."""
    return torch.get_rng_state().nbytes


SECTION = PublishedSection(
    section=Section("overhead", Path("docs") / "overhead.md"),
    results=Path("results") / "overhead-cpu.json",
    about="the overhead",
    nothing="No measurement is published yet: `python -m reprise overhead --write` makes one.",
    markdown=markdown,
)
