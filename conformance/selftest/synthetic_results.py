"""Results of a run that never was: a header and a few rows, for the tests of what is made from results."""

from __future__ import annotations

from typing import Any

HEADER: dict[str, Any] = {
    "kind": "header",
    "versions": {"python": "3.11.9", "torch": "2.13.0+cpu"},
    "machine": {"platform": "Linux-6", "processor": "Xeon", "cpus": 2, "accelerator": None},
    "seed": 7,
    "profile": "default",
    "suite": {"commit": "0123456789abcdef", "dirty": False},
    "date": "2026-11-21T14:00:00+00:00",
}


def row(law: str, impl: str, verdict: str = "agrees", **others: Any) -> dict[str, Any]:
    made = {
        "law": law,
        "impl": impl,
        "device": "cpu",
        "expected": verdict,
        "verdict": verdict,
        "cases": 60,
        "detail": "",
        "program": "",
        "family": "gradients",
        "statement": "Gradients equal plain's.",
    }
    return made | others


ROWS = [
    row("subsets", "nested"),
    row("subsets", "older", "refuses", detail="RuntimeError: no", program="print('subsets')", counts={"refuses": 60}),
    row("masks", "nested", "diverges", expected="agrees", family="rng", counts={"agrees": 57, "diverges": 3}),
    row("masks", "older", family="rng"),
]
