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

LISTS = """
## The rules of nesting

1. A saved tensor belongs to `one` region.
2. <b>Another</b> rule.

## What is not covered

- Random numbers.
"""


def row(law: str, impl: str, verdict: str = "agrees", **others: Any) -> dict[str, Any]:
    made = {
        "law": law,
        "impl": impl,
        "device": "cpu",
        "expected": verdict,
        "verdict": verdict,
        "cases": 60,
        "detail": "",
        "cause": "",
        "effect": "",
        "unproven": {},
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

# What is made into a page: text that would break one that takes it for more than text, and every verdict.
HOSTILE = "</script><img src=x onerror=alert(1)><!-- <script> & &amp; {{ 1 }} {% x %} \u2028 'single' \"double\" é"
SCRIPT = "import sys\nprint('</script> & <b>')\nsys.exit(1)\n"
NEWER = {"python": "3.11.9", "torch": "2.14.1"}
PAGE_ROWS = [
    *ROWS,
    row("streams", "nested", family="rng", statement="Random numbers are drawn once."),
    row(
        "streams",
        "older",
        "crashes",
        family="rng",
        program=SCRIPT,
        detail="IndexError: <none>",
        counts={"crashes": 60},
        known={"reason": "nobody waits", "source": "pytorch#1, https://example.org/?a=<b>; and a book"},
    ),
    row("packs", "hooks", family="hooks", subject="graph", statement="A hook packs what is saved & nothing else."),
    row("packs", "torch-hooks", "hangs", family="hooks", subject="graph", program="while True: pass"),
]
ELSEWHERE = [
    row("masks", "older", "crashes", family="rng", device="cuda", expected="agrees"),
    row("masks", "older", family="rng"),
]
PEER_ROWS = [row("subsets", "torch-selective"), row("masks", "torch-selective", "refuses", family="rng", known=None)]
