"""Meters: what a run costs, in counts that are exact. They are told when a program notes something.

A meter is a context manager around one run, with ``at(label, value)``. Meters see an implementation from outside only.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter:
    """Does nothing, and so is what other meters are made from."""

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a region, as the implementation is to see it."""
        return function

    def at(self, label: str, value: Any) -> None:
        """A program has noted ``value`` under ``label``."""


class Calls(Meter):
    """How often the function of each region was called."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[function.__name__] += 1
            return function(*args, **kwargs)

        return counted


class _Watch(TorchDispatchMode):
    """Hands every operator with its result to a callback."""

    def __init__(self, see: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(func, result)
        return result


class Storages(Meter):
    """Storages that operators made, and which of them are alive at each note.

    ``alive[label]`` is the number that are alive and do not belong to a tensor in the noted value; ``bytes`` theirs.
    """

    def __init__(self) -> None:
        self.known: dict[int, StorageWeakRef] = {}
        self.sizes: dict[int, int] = {}
        self.alive: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self.mode = _Watch(self.see)

    def see(self, func: Any, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and type(leaf) is not torch.nn.Parameter:
                storage = leaf.untyped_storage()
                weak = StorageWeakRef(storage)
                if weak.cdata not in self.known and storage.nbytes():
                    self.known[weak.cdata], self.sizes[weak.cdata] = weak, storage.nbytes()

    def __enter__(self) -> Storages:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)

    def living(self) -> dict[int, int]:
        """The storages alive now, by identity, with their bytes."""
        gone = [key for key, weak in self.known.items() if weak.expired()]
        for key in gone:
            del self.known[key], self.sizes[key]
        return dict(self.sizes)

    def at(self, label: str, value: Any) -> None:
        living = self.living()
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                living.pop(StorageWeakRef(leaf.untyped_storage()).cdata, None)
        self.alive[label], self.bytes[label] = len(living), sum(living.values())


class Kernels(Meter):
    """Forward operators that really ran: those of forward, and those inside functions of regions later on."""

    def __init__(self, counted: frozenset[str]) -> None:
        self.counted = counted
        self.depth = 1
        self.total = 0
        self.mode = _Watch(self.see)

    def see(self, func: Any, result: Any) -> None:
        self.total += self.depth > 0 and func.overloadpacket.__name__ in self.counted

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
        if label == "forward":
            self.depth -= 1

    def __enter__(self) -> Kernels:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)
