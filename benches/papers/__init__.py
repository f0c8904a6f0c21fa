"""One paper a file: what it claims, and what comes out here."""

from __future__ import annotations

import importlib

from benches.papers.paper import Paper

NAMES = (
    "chen2016",
    "griewank2000",
    "rotor2019",
    "dtr2021",
    "korthikanti2022",
    "torch_budget",
    "nested90105",
    "offload",
)


def load(name: str) -> Paper:
    """The paper of that name. Raises ValueError, which lists the names, when there is none."""
    if name not in NAMES:
        raise ValueError(f"there is no paper {name!r}; there are {', '.join(NAMES)}")
    return importlib.import_module(f"benches.papers.{name}").PAPER
