"""Meters: what a run costs, in exact counts.

A meter is a context manager around one run; its ``at(label, value)`` is called whenever the program notes something. Meters see
an implementation only from outside.
"""

from __future__ import annotations

import functools
import gc
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from conformance.meters.counters import Watch, counted, region_name, storages
from conformance.meters.interruptions import Endless
from conformance.programs.notes import EACH_STEP, WHOLE_FORWARD, Note, Role, read


class Meter:
    """A meter that does nothing, from which others are derived."""

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a region, as the implementation gets it."""
        return function

    def at(self, label: str, value: Any) -> None:
        """A program has noted ``value`` under ``label``."""


def watching(see: Callable[[Any, Any], object]) -> Watch:
    """A mode that passes operators and their results to a callback."""
    mode = Watch()
    mode.see = see
    return mode


# Far above what any program costs. It ends a backward that starts itself again and again, which no signal can interrupt.
CALLS_PER_CASE = 500


class Calls(Meter):
    """How often the function of each region was called: in all, and up to each note; and whether one was inside another."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.nested = False
        self.local = threading.local()
        self.until: dict[str, Counter[str]] = {}

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a compiler can trace the counter's one change, but not these
                return function(*args, **kwargs)
            if len(self.names) > CALLS_PER_CASE:
                raise Endless(f"functions of regions were called more than {CALLS_PER_CASE} times")
            depth = getattr(self.local, "depth", 0)
            self.nested |= depth > 0
            self.local.depth = depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self.local.depth = depth

        return counted(limited, self.names)

    @property
    def counts(self) -> Counter[str]:
        """How often each function was called so far."""
        return Counter(self.names)

    def at(self, label: str, value: Any) -> None:
        self.until[label] = self.counts


@dataclass(frozen=True)
class Made:
    """A storage that an operator made: its number, its bytes, and the region whose function ran, "" outside of any."""

    number: int
    bytes: int
    region: str


@dataclass(frozen=True)
class Moment:
    """The storages alive at a note; ``held`` are those of the tensors noted, of leaves, and of gradients."""

    label: str
    alive: frozenset[Made]
    held: frozenset[Made]

    @property
    def note(self) -> Note:
        """The label, read."""
        return read(self.label)

    @property
    def kept(self) -> frozenset[Made]:
        """The storages that are alive although the program holds none of them."""
        return self.alive - self.held


class Storages(Meter):
    """The storages that operators made, and which of them are alive at each note.

    Its number distinguishes a storage from a later one at the same address. Tensors of bytes, such as states of random number
    generators, do not count, and neither do empty storages. On other threads, only storages that are made inside a region's
    function are seen.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[StorageWeakRef, Made]] = {}
        self.moments: list[Moment] = []
        self.made = 0
        self.shown: tuple[Any, ...] = ()
        self.local = threading.local()
        self.mode = watching(self.see)

    def see(self, func: Any, result: Any) -> None:
        for weak, size in storages(result, torch.uint8).items():
            if weak.cdata not in self.known:
                self.made += 1
                regions = getattr(self.local, "regions", None)
                self.known[weak.cdata] = weak, Made(self.made, size, regions[-1] if regions else "")

    def __enter__(self) -> Storages:
        self.mode.__enter__()
        torch.empty(0)  # torch's first dispatch imports modules in a cycle that keeps every frame of the stack
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)  # nothing is made yet, and modes cannot be compiled
            regions = self.local.__dict__.setdefault("regions", [])
            regions.append(region_name(function))
            try:
                # A thread that the program starts does not inherit the mode.
                modes = _get_current_dispatch_mode_stack()
                watched = any(isinstance(mode, Watch) and mode.see == self.see for mode in modes)
                with nullcontext() if watched else watching(self.see):
                    return function(*args, **kwargs)
            finally:
                regions.pop()

        return entered

    def living(self) -> frozenset[Made]:
        """The storages alive now."""
        for key, (weak, _) in list(self.known.items()):
            if weak.expired():
                del self.known[key]
        return frozenset(made for _, made in list(self.known.values()))

    def at(self, label: str, value: Any) -> None:
        if read(label).role is Role.LEAVES:
            self.shown = tuple(value)
        tensors = [leaf for leaf in tree_leaves((value, self.shown)) if isinstance(leaf, torch.Tensor)]
        gradients = [tensor.grad for tensor in tensors if tensor.layout == torch.strided and tensor.is_leaf]
        addresses = {weak.cdata for weak in storages([tensors, gradients])}
        alive = self.living()
        held = frozenset(made for address, (_, made) in list(self.known.items()) if address in addresses)
        self.moments.append(Moment(label, alive, held & alive))

    def end(self) -> Moment:
        """Note what is alive after the end of the program, when it holds only its leaves and their gradients."""
        self.at(Role.END, ())
        return self.moments[-1]


class Objects(Meter):
    """How many objects that the garbage collector tracks were made in the run and are alive, at each note "step"."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.types: list[str] = []  # JSON, since a container would be one object more

    def __enter__(self) -> Objects:
        gc.freeze()  # objects from before do not count
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()

    def at(self, label: str, value: Any) -> None:
        if read(label) == EACH_STEP:
            gc.collect()
            there = gc.get_objects()
            self.counts.append(len(there))
            self.types.append(json.dumps(Counter(type(one).__name__ for one in there)))


class Kernels(Meter):
    """How often each of these operators ran, in forward and later inside functions of regions."""

    def __init__(self, counted: Collection[str]) -> None:
        self.counted = counted
        self.depth = 1
        self.counts: Counter[str] = Counter()
        self.mode = watching(self.see)

    def see(self, func: Any, result: Any) -> None:
        kernel = func.overloadpacket.__name__
        if self.depth > 0 and kernel in self.counted:
            self.counts[kernel] += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            with self.inside():
                return function(*args, **kwargs)

        return entered

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def at(self, label: str, value: Any) -> None:
        if read(label) == WHOLE_FORWARD:
            self.depth -= 1

    def __enter__(self) -> Kernels:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)
