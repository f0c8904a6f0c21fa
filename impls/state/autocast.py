"""Autocast of the CPU and of one device type: of all modes, ``reentrant`` restores this one alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch


class Autocast(NamedTuple):
    """Autocast of the CPU and of one device type: (type, enabled, dtype), and whether casts are cached."""

    kind: str
    types: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def current(cls, kind: str) -> Autocast:
        """What is in force on this thread."""
        kinds = [one for one in dict.fromkeys(("cpu", kind)) if torch.amp.is_autocast_available(one)]
        types = tuple((one, torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in kinds)
        return cls(kind, types, torch.is_autocast_cache_enabled())

    @contextmanager
    def apply(self) -> Iterator[None]:
        """A context in which this is in force."""
        with ExitStack() as stack:
            if self != Autocast.current(self.kind):
                for one, enabled, dtype in self.types:
                    stack.enter_context(torch.autocast(one, dtype, enabled, self.cache))
            yield
