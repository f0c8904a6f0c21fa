"""Time and bytes of a transformer layer on CUDA, by how much of it is recomputed.

One layer of the 22B model of Korthikanti et al. 2022 in bfloat16, whole on one device: *none* of it recomputed, the
attention core (*selective*), all of it (*full*). A step is forward and backward; after each of them the host waits for the
device. Each technique takes its turn in every round, in an order drawn anew, and its overhead is beside *none* in the same
round. The paper's times are of one of eight tensor parallel ranks, so only overheads can be compared. A row whose gradients
are not those of *none* is void.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from benches.compare.measurement import MEASURED, RAISES, VOID, Quartiles, agreement, device_seconds, quartiles
from benches.compare.report import size as shown_size
from benches.papers.korthikanti2022 import FORMULAS, OF_22B, PAPER, TIMES, Run, run
from benches.papers.meters.layer_times import Lap, Layer, timed
from benches.papers.models.transformer_layer import Shape, Technique, paper_bytes
from benches.published import store
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from conformance.runs import device_check

ROUNDS = 15
DTYPE = torch.bfloat16
CODE = ["benches.layer:measured"]
TOLD = (
    "The whole layer on one device. The paper's times (table 4) are of one of 8 tensor parallel ranks on A100s. Bytes are what "
    "autograd saves, statistics of layer norm apart, which the formulas neglect."
)


@dataclass(frozen=True)
class Row:
    """What a technique costs.

    ``forward``, ``backward`` and ``combined`` are quartiles of seconds; ``overhead`` those of combined beside that of none
    in the same round, less 1. ``saved`` are bytes, ``formula`` those of the paper. ``gradients`` are "equal" to those of none
    to the last bit, or "close" where those are not the same each time.
    """

    name: str
    status: str
    formula: int
    detail: str = ""
    gradients: str = ""
    forward: Quartiles | None = None
    backward: Quartiles | None = None
    combined: Quartiles | None = None
    overhead: Quartiles | None = None
    saved: int | None = None
    statistics: int | None = None


def measured(shape: Shape, device: str, rounds: int, clock: Callable[[], float] = device_seconds) -> list[Row]:
    """A row for each technique, none first. What one raises is in its row; without none, nothing is compared or timed."""
    rows: dict[str, Row] = {}
    there: dict[str, Layer] = {}
    expected: list[Tensor] = []
    repeats = True
    for name in TIMES:
        row = Row(name, MEASURED, paper_bytes(shape, Technique(recompute=name)))
        try:
            if rows and not expected:
                raise RuntimeError("there is nothing to compare with, for none was not measured")
            one, found, again, saved = _tried(shape, Technique(recompute=name), device)
        except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is one
            told = (str(error).strip() or "without a message").splitlines()[0]
            rows[name] = replace(row, status=RAISES, detail=f"{type(error).__name__}: {told[:300]}")
            continue
        if not expected:
            expected, repeats = found, agreement(again, found, True) == "equal"
        row = replace(row, saved=saved.activations, statistics=saved.statistics)
        rows[name] = _judged(row, found, expected, repeats)
        if rows[name].status == MEASURED:
            there[name] = one
    laps = timed(there, rounds, clock)
    for name, one in there.items():
        rows[name] = _judged(_timed(rows[name], laps[name], laps["none"]), one.gradients(), expected, repeats)
    return list(rows.values())


def _tried(shape: Shape, technique: Technique, device: str) -> tuple[Layer, list[Tensor], list[Tensor], Run]:
    """A layer with the gradients of two steps, and what it saves. What raises here leaves nothing on the device."""
    one = Layer(shape, technique, dtype=DTYPE, device=device)
    return one, one.gradients(), one.gradients(), run(shape, technique, device=device)


def _judged(row: Row, found: Sequence[Tensor], expected: Sequence[Tensor], repeats: bool) -> Row:
    """The row with how its gradients agree; a void one without numbers."""
    agreed = agreement(found, expected, repeats)
    if agreed != "differ":
        return replace(row, gradients=agreed)
    later = " any more once it was timed" if row.combined else ""
    return Row(row.name, VOID, row.formula, f"gradients are not those of none{later}", agreed)


def _timed(row: Row, laps: Sequence[Lap], of_none: Sequence[Lap]) -> Row:
    return replace(
        row,
        forward=quartiles([lap.forward for lap in laps]),
        backward=quartiles([lap.backward for lap in laps]),
        combined=quartiles([lap.combined for lap in laps]),
        overhead=quartiles([lap.combined / its.combined - 1 for lap, its in zip(laps, of_none, strict=True)]),
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows, as they are shown."""
    heads = "recomputed", "forward, ms", "backward, ms", "combined, ms", "overhead", "paper, a rank of 8", "saved"
    made = Table(*heads, "formula", "gradients")
    for row in rows:
        if not (row.forward and row.backward and row.combined and row.overhead) or row.saved is None:
            made.add_row(row.name, row.status, *[""] * 6, Text(row.detail))
            continue
        low, middle, high = row.overhead
        formula = f"{FORMULAS[row.name]}: {shown_size(row.formula)} ({row.saved / row.formula:.4f})"
        made.add_row(
            row.name,
            *(f"{1e3 * one[1]:.3f}" for one in (row.forward, row.backward, row.combined)),
            "–" if row.name == "none" else f"{middle:+.1%} ({low:+.1%} to {high:+.1%})",
            TIMES[row.name],
            shown_size(row.saved),
            formula,
            row.gradients,
        )
    return made


def run_bench(*, device: str = "cuda", rounds: int = ROUNDS, publish: bool = False, root: Path = ROOT) -> bool:
    """Measure, print and store in ``results/runs``, or publish; whether every row was measured.

    Raises InvalidOption for a device that cannot be used, ValueError for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    try:
        device_check.require_cuda(device, "the paper's layer is one of a GPU")
    except ValueError as error:
        raise InvalidOption(f"--device: {error}") from error
    if publish:
        origin.require()
    rows = measured(OF_22B, device, rounds)
    fault = origin.fault() if publish else ""
    kind = "layer-cuda" if publish and not fault else f"runs/layer-cuda-{time.strftime('%Y%m%d-%H%M%S')}"
    path = root / "results" / f"{kind}.json"
    store(path, json.loads(json.dumps(content(rows, device, rounds, origin))))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table(rows), TOLD, f"results: {path}", sep="\n")
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    return all(row.status == MEASURED for row in rows)


def content(rows: Sequence[Row], device: str, rounds: int, origin: Origin) -> dict[str, Any]:
    """What is stored."""
    head = results_file.header(seed=0, profile="layer", device=device, suite=origin.suite)
    return {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "device": device,
        "rounds": rounds,
        "shape": asdict(OF_22B),
        "dtype": str(DTYPE).removeprefix("torch."),
        "tensor_parallel": 1,
        "paper": {"source": PAPER.source, "place": "table 4", "tensor_parallel": 8, "times": TIMES},
        "rows": [asdict(row) for row in rows],
        "fingerprints": {"table": {"rows": measured_code.of_roots(origin.sources, CODE)}},
    }
