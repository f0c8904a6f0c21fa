"""What a model of the zoo is: its name, its package, and how it is built with the package's checkpointing switched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A model of the zoo. ``build`` goes to ``reprise.check``; ``switch`` is the code that switches checkpointing on."""

    name: str
    package: str
    kind: str
    switch: str
    build: Callable[[], Any]


TOKENS, BATCH, VOCABULARY = 32, 4, 96
