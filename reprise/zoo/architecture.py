"""What a model of the zoo is: its name, its package, and how it is built with the package's checkpointing switched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A model of the zoo. ``build``, which switches checkpointing on, goes to ``reprise.check``."""

    name: str
    package: str
    kind: str
    build: Callable[[], Any]


TOKENS, BATCH, VOCABULARY = 32, 4, 96
