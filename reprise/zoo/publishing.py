"""The zoo's table: measured, shown, stored and published in docs/zoo.md."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import impls
from benches.published import PublishedSection, measured_on, older_mark, older_note, store
from conformance.page.models import finding
from conformance.provenance import measured_code
from conformance.provenance.staleness import Now
from conformance.reports.generated_section import Section
from conformance.rows import results_file
from conformance.rows.results_file import ROOT
from reprise.zoo import running
from reprise.zoo.running import BUDGET, BUDGETED_BY, IMPLEMENTATIONS, ROUNDS
from reprise.zoo.time_of_a_check import LIMIT

CODE = ["reprise.zoo.running:measured", *map(impls.module_of, IMPLEMENTATIONS)]
_ABOUT_BUDGETS = (
    f"Budgets are {BUDGET} of plain's peak, under `{BUDGETED_BY}`; bytes. Time is that of a step with the regions chosen, as a "
    f"ratio to one with all of them: the median of {ROUNDS} rounds, in each of which both are timed, and quartiles. "
    "Where a lower quartile is above 1, the choice was slower in three of four rounds, and a run is not published; where the "
    "median alone is, the rounds do not tell."
)
WITHIN = 0.05  # how far a predicted peak may be from the executed one, as a share of that


def broken(content: Mapping[str, Any]) -> list[str]:
    """What is wrong in a run of the zoo: models not checked, budgets not kept or too costly, peaks not as predicted."""
    found = [f"{row['name']} of {row['package']}: {row['error']}" for row in content["rows"] if row["error"]]
    for row in content["budgets"]:
        if row["executed"] > row["budget"] or not row["agrees"]:
            found.append(f"{row['name']}: {row['executed']} bytes within {row['budget']}, agrees: {row['agrees']}")
        if abs(row["predicted"] / row["executed"] - 1) > WITHIN:
            found.append(f"{row['name']}: {row['predicted']} bytes were predicted, {row['executed']} executed")
        if row["flops"] > row["flops_of_all"]:
            found.append(f"{row['name']}: {row['flops']} FLOPs with the regions chosen, {row['flops_of_all']} with all of them")
        if row["time_beside_all"][0] > 1:
            told = f"a step takes {_time(row)} times as long as with all regions, longer in three of four rounds or more"
            found.append(f"{row['name']}: {told}")
    if (steps := content["time_of_a_check"]["checkpointed"]) >= LIMIT:
        found.append(f"a check took as long as {steps:.1f} steps; the limit is {LIMIT:.0f}")
    return found


def _models(content: Mapping[str, Any]) -> list[list[str]]:
    lines = [["model", "package", "kind", "regions", *content["implementations"], "kept", "peak", "run again"]]
    for row in content["rows"]:
        name = row["name"] + older_mark(content, table="rows")
        if row["error"]:
            lines.append([name, row["package"], row["kind"], row["error"], *[""] * (len(lines[0]) - 4)])
            continue
        nested = row["implementations"]["nested"]
        again = "" if nested["flops_again"] is None else f"{nested['flops_again']:.0%}"
        shares = (f"{nested[part] / row[part]:.0%}" if nested[part] is not None else "" for part in ("kept", "peak"))
        cells = (finding(row["implementations"][one]).replace("|", "\\|") for one in content["implementations"])
        lines.append([name, row["package"], row["kind"], str(row["regions"]), *cells, *shares, again])
    return lines


def _budgets(content: Mapping[str, Any]) -> list[list[str]]:
    lines = [["model", "plain's peak", "budget", "predicted", "executed", "checkpointed", "FLOPs beyond plain's", "with all"]]
    lines[0].append("time, beside all")
    for row in content["budgets"]:
        amounts = (f"{row[name]:,}" for name in ("plain", "budget"))
        predicted = f"{row['predicted']:,} ({row['predicted'] / row['executed'] - 1:+.1%})"
        beyond = (f"{row[name] / row['flops_plain'] - 1:+.1%}" for name in ("flops", "flops_of_all"))
        chosen = f"{row['chosen']} of {row['regions']}"
        lines.append([row["name"], *amounts, predicted, f"{row['executed']:,}", chosen, *beyond, _time(row)])
    return lines


def _time(row: Mapping[str, Any]) -> str:
    low, median, high = row["time_beside_all"]
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def _time_of_a_check(found: Mapping[str, Any]) -> str:
    names = " and ".join(f"`{name}`" for name in found["implementations"])
    return (
        f"Time: a check under {names} ({found['model']}) took as long as {found['checkpointed']:.1f} of the model's steps with "
        f"checkpointing, or {found['plain']:.1f} without. With {LIMIT:.0f} or more of the first, a run is not published."
    )


def _table(lines: Sequence[Sequence[str]]) -> str:
    first, *others = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *others])


def markdown(content: Mapping[str, Any]) -> str:
    """Both tables and their notes, as docs/zoo.md has them."""
    checked = [row for row in content["rows"] if not row["error"]]
    names = content["implementations"]
    agreeing = {name: sum(row["implementations"][name]["verdict"] == "agrees" for row in checked) for name in names}
    told = ", ".join(f"`{name}` {count}" for name, count in agreeing.items())
    return "\n\n".join(
        [
            f"{len(checked)} models were checked. The number in which every bit of a step is plain's: {told}.",
            _table(_models(content)),
            _ABOUT_BUDGETS,
            _table(_budgets(content)),
            _time_of_a_check(content["time_of_a_check"]),
            measured_on(content) + older_note(content),
        ]
    )


SECTION = PublishedSection(
    section=Section("zoo", Path("docs") / "zoo.md"),
    results=Path("results") / "zoo-cpu.json",
    about="the table of the zoo",
    nothing="No run is published yet: `python -m reprise zoo --write` makes one.",
    markdown=markdown,
)


def mark(root: Path, now: Now | None = None) -> None:
    """Write the table again, with marks at what is older than the code."""
    if (root / SECTION.results).exists() and (root / SECTION.section.page).exists():
        SECTION.write(root, json.loads((root / SECTION.results).read_text(encoding="utf-8")), now)


def run_zoo(*, publish: bool = False, root: Path = ROOT) -> list[str]:
    """Check the zoo, print the tables, and store them in ``results/runs`` or publish them. Returns what is wrong.

    Raises ModuleNotFoundError for a missing package, and ValueError for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    if publish:
        SECTION.require_markers(root)
        origin.require()
    versions = running.prepare()
    found = running.measured(lambda told: print(told, flush=True))
    head = results_file.header(seed=0, profile="zoo", device="cpu", suite=origin.suite)
    content = {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        **found,
        "fingerprints": {"table": {"rows": measured_code.of_roots(origin.sources, CODE)}},
    }
    content["versions"] = {**content["versions"], **versions}
    content = json.loads(json.dumps(content))
    faults = broken(content)
    fault = origin.fault() if publish else ""
    is_published = publish and not fault and not faults
    path = root / (SECTION.results if is_published else f"results/runs/zoo-cpu-{time.strftime('%Y%m%d-%H%M%S')}.json")
    store(path, content)
    print(markdown(content), f"results: {path}", sep="\n\n")
    if is_published:
        SECTION.write(root, content)
    return [*faults, *([f"{path} is not published: {fault}"] if fault else [])]
