"""Random number generators: their states are captured where forward runs, and set again for a recomputation.

They belong to the process, so recomputations set them one at a time (``impls.state.process_lock``). Not covered: Python's and
numpy's generators, torch.Generator objects that are not arguments, and numbers that another thread draws, other than in a
recomputation, while this one recomputes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch

from impls.state import accelerators
from impls.state.devices import device_states, set_device_states


class Source(Protocol):
    """What random numbers come from: a torch.Generator, or a device."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor) -> object: ...


States = list[tuple[Source, torch.Tensor]]


@dataclass(frozen=True)
class Device:
    """What a device draws from, by its type and index."""

    kind: str
    index: int

    def get_state(self) -> torch.Tensor:
        return device_states(self.kind, [self.index])[0]

    def set_state(self, state: torch.Tensor) -> None:
        set_device_states([self.index], [state], device_type=self.kind)


def capture_states(explicit: tuple[torch.Generator, ...] = ()) -> States:
    """The state of the CPU's generator, of every device's default generator, and of those given explicitly.

    Every device counts, not only those of the arguments: a region may draw on a device that appears inside it alone.
    A runtime that has not been started is left alone. One that shows no generators, such as that of mps, is asked for states.
    """
    module = accelerators.initialized_module()
    devices = () if module is None else _sources_of(module)
    return states_of((torch.default_generator, *devices, *explicit))


def _sources_of(module: ModuleType) -> Sequence[Source]:
    """What the devices of an accelerator draw from; empty for one that draws from the CPU's generator, or says nothing."""
    generators: Sequence[Source] | None = getattr(module, "default_generators", None)
    if generators is None and hasattr(module, "get_rng_state"):
        kind = accelerators.accelerator()
        return () if kind is None else [Device(kind, index) for index in range(module.device_count())]
    return generators or ()


def states_of(sources: Iterable[Source]) -> States:
    """Each source with its state."""
    return [(source, source.get_state()) for source in sources]


def set_states(states: States) -> None:
    """Set each source to the state that stands beside it."""
    for source, state in states:
        source.set_state(state)
