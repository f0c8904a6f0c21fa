"""Random number generators: their states are captured where forward runs, and set again for a recomputation.

Not covered: Python's and numpy's generators, and torch.Generator objects that are not arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from impls.state import accelerators
from impls.state.devices import device_states, set_device_states

# Generators are process-wide, so recomputations on several threads take turns.
_turn = threading.RLock()


States = list[tuple[torch.Generator, torch.Tensor]]


def states(explicit: tuple[torch.Generator, ...] = ()) -> States:
    """The state of the CPU's generator, of every device's default generator, and of those given explicitly.

    Every device counts, not only those of the arguments: a region may draw on a device that appears inside it alone.
    A runtime that has not been started is left alone.
    """
    module = accelerators.initialised()
    devices = () if module is None else getattr(module, "default_generators", ())
    return [(g, g.get_state()) for g in (torch.default_generator, *devices, *explicit)]


def set_states(states: States) -> None:
    """Set each generator to the state that stands beside it."""
    for generator, state in states:
        generator.set_state(state)


class Streams:
    """The random number streams of the CPU, of some devices of one type and of some generators, as they are now."""

    def __init__(self, kind: str, devices: Sequence[int], generators: Iterable[torch.Generator]) -> None:
        self.kind, self.devices, self.generators = kind, devices, (torch.default_generator, *generators)
        self.states = [generator.get_state() for generator in self.generators]
        self.device_states = device_states(kind, devices)

    def restore(self) -> None:
        """Put the streams back to where they were."""
        set_states(list(zip(self.generators, self.states, strict=True)))
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
