"""What reentrant restores for a recomputation: autocast and random numbers, of the CPU and of one device type."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from impls.state.devices import device_states, set_device_states

# Generators are process-wide, so recomputations on several threads take turns.
_turn = threading.RLock()


class Autocast(NamedTuple):
    """Autocast of the CPU and of one device type: (type, enabled, dtype), and whether casts are cached."""

    kind: str
    types: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def present(cls, kind: str) -> Autocast:
        """What is in force on this thread."""
        kinds = [one for one in dict.fromkeys(("cpu", kind)) if torch.amp.is_autocast_available(one)]
        types = tuple((one, torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in kinds)
        return cls(kind, types, torch.is_autocast_cache_enabled())

    @contextmanager
    def again(self) -> Iterator[None]:
        """Put it in force for a while, if anything else is."""
        with ExitStack() as stack:
            if self != Autocast.present(self.kind):
                for one, enabled, dtype in self.types:
                    stack.enter_context(torch.autocast(one, dtype, enabled, self.cache))
            yield


class Streams:
    """The random number streams of the CPU, of some devices of one type and of some generators, as they are now."""

    def __init__(self, kind: str, devices: Sequence[int], generators: Iterable[torch.Generator]) -> None:
        self.kind, self.devices, self.generators = kind, devices, (torch.default_generator, *generators)
        self.states = [generator.get_state() for generator in self.generators]
        self.device_states = device_states(kind, devices)

    def restore(self) -> None:
        """Put the streams back to where they were."""
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
        set_device_states(self.devices, self.device_states, device_type=self.kind)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Put the streams back for a while; afterwards, also after an error, they go on from where they are now."""
        with _turn:
            present = Streams(self.kind, self.devices, self.generators[1:])
            try:
                self.restore()
                yield
            finally:
                present.restore()
