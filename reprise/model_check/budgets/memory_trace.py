"""The memory of a plain step over time: which storages are alive when, and what each region makes, saves and is passed.

Time is counted in operators. Regions are outermost calls; what runs outside of them has the region ``None``. Bytes are
those of storages that operators made in the step.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reprise.model_check.errors import OwnWork
from reprise.model_check.metering import storages
from reprise.model_check.regions import Key, RegionRun, Watch, current_run
from reprise.model_check.run import Probe, Setting, run

FOREVER = sys.maxsize


@dataclass
class Stored:
    """A storage that an operator made: in which region, which regions saved it, and which were passed it."""

    size: int
    maker: Key | None
    died: int = FOREVER
    saved_by: set[Key | None] = field(default_factory=set)
    passed_to: set[Key] = field(default_factory=set)


@dataclass
class RegionTime:
    """When a region's forward began and ended, when it last saved, and when backward first asked for what it saved."""

    name: str
    begin: int
    end: int = FOREVER
    last_save: int = 0
    asked: int = FOREVER


@dataclass
class MemoryTrace(TorchDispatchMode):
    """``alive[t]`` is how many bytes are alive after operator t; with an error of its ``own``, nothing is traced any more.

    ``flops`` and ``operators`` are those of regions' forward.
    """

    model: nn.Module
    alive: list[int] = field(default_factory=lambda: [0])
    stored: list[Stored] = field(default_factory=list)
    regions: dict[Key, RegionTime] = field(default_factory=dict)
    flops: Counter[Key] = field(default_factory=Counter)
    operators: Counter[Key] = field(default_factory=Counter)
    own: OwnWork = field(default_factory=OwnWork)
    _known: weakref.WeakKeyDictionary[Any, Stored | None] = field(default_factory=weakref.WeakKeyDictionary)
    _now: int = 0  # bytes

    def __post_init__(self) -> None:
        super().__init__()
        with self.own:
            for storage in storages((*self.model.parameters(), *self.model.buffers())):
                self._known[storage] = None
            self.lazy = [one for one in (*self.model.parameters(), *self.model.buffers()) if is_lazy(one)]

    @property
    def time(self) -> int:
        """The number of the last operator."""
        return len(self.alive) - 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.own.is_ignored:
            return func(*args, **kwargs)
        with self.own:
            if self.lazy:
                self._leave_out_initialized()
            for storage in storages((args, kwargs)):
                self._known.setdefault(storage, None)  # was there before the step
        result = func(*args, **kwargs)
        with self.own:
            self._note_made(result)
            if (key := _outermost()) is not None:
                self.operators[key] += 1
                if func.overloadpacket in flop_registry:
                    self.flops[key] += int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=result))
        return result

    def _note_made(self, result: Any) -> None:
        for storage in storages(result):
            if storage not in self._known:
                self._known[storage] = one = Stored(storage.nbytes(), _outermost())
                self.stored.append(one)
                self._now += one.size
                weakref.finalize(storage, self._freed, one)
        self.alive.append(self._now)

    def _leave_out_initialized(self) -> None:
        """Take the storages of lazy parameters that forward has initialized for freed: they are no memory of the step."""
        for storage in storages([one for one in self.lazy if not is_lazy(one)]):
            if (one := self._known.get(storage)) is not None:
                self._freed(one)
            self._known[storage] = None
        self.lazy = [one for one in self.lazy if is_lazy(one)]

    def _freed(self, one: Stored) -> None:
        if one.died == FOREVER:
            one.died = len(self.alive)
            self._now -= one.size

    def _of(self, tree: Any) -> Iterator[Stored]:
        for storage in storages(tree):
            if (one := self._known.get(storage)) is not None:
                yield one

    def pack(self, tensor: torch.Tensor) -> tuple[Key | None, torch.Tensor]:
        """Note who saves a tensor."""
        region: Key | None = None
        with self.own:
            region = _outermost()
            for one in self._of(tensor):
                one.saved_by.add(region)
            if region is not None:
                self.regions[region].last_save = self.time
        return region, tensor.detach()  # an output that packs itself would never be freed

    def unpack(self, packed: tuple[Key | None, torch.Tensor]) -> torch.Tensor:
        """Note that backward asks for it."""
        region, tensor = packed
        if region is not None:
            with self.own:
                self.regions[region].asked = min(self.regions[region].asked, self.time)
        return tensor

    @contextmanager
    def watch(self, one: RegionRun) -> Iterator[None]:
        """Note when an outermost region runs, and what it is passed."""
        key = one.region.key
        if len(key) == 1:
            with self.own:
                self.regions[key] = RegionTime(one.region.name, self.time)
                for stored in self._of(one.arguments):
                    stored.passed_to.add(key)
        yield
        if len(key) == 1:
            with self.own:
                self.regions[key].end = self.time


def _outermost() -> Key | None:
    one = current_run()
    return one.region.key[:1] if one else None


def trace(setting: Setting) -> MemoryTrace:
    """Trace one plain step. Raises what the step raises, and MeteringFails for an error of the trace's own."""
    made: list[MemoryTrace] = []

    def mode(model: nn.Module) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(made[-1])
        stack.enter_context(saved_tensors_hooks(made[-1].pack, made[-1].unpack))
        return stack

    def watch(model: nn.Module) -> Watch:
        made.append(MemoryTrace(model))
        return made[-1].watch

    run(setting, None, steps=1, probe=Probe(mode, watch, lambda *_: None))
    made[-1].own.raise_failure()
    return made[-1]
