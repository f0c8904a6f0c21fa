"""What a region's function reaches, as it is before and after each of its runs, and what changed in between."""

from __future__ import annotations

import hashlib
import pickle
import random
import weakref
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from reprise.model_check.reachable.walk import GENERATORS, Known, Walk, named
from reprise.model_check.regions import RegionRun
from reprise.model_check.tensors.tensor_difference import digest


@dataclass(frozen=True)
class State:
    """A tensor, container or random generator at one time: its identity, without keeping it alive, and its content.

    That is a digest of values, a length, or a digest of a generator's state.
    """

    identity: weakref.ref[torch.Tensor] | int
    content: str
    is_tensor: bool
    memory: tuple[StorageWeakRef, int] | None = None  # the storage of a dense tensor, and its offset
    is_generator: bool = False
    version: int = 0  # of a tensor that has one
    container: str = ""  # the path of what it is an element of

    def is_same_object(self, other: State) -> bool:
        """Whether both are of the same object, which is still there if it is a tensor."""
        one, another = self.identity, other.identity
        if isinstance(one, weakref.ref) and isinstance(another, weakref.ref):
            return one() is not None and one() is another()
        return one == another


Snapshot = Mapping[str, State]


def snapshot(known: Known, one: RegionRun) -> Snapshot:
    """What a region's function and its arguments reach now, by the path to it."""
    walk = _walked(known, one)
    return {path: replace(_state(value), container=walk.containers.get(path, "")) for path, value in walk.found.items()}


def reached(known: Known, one: RegionRun) -> Mapping[str, Any]:
    """Tensors, containers and generators that a region's function and its arguments reach, by the path to them."""
    return _walked(known, one).found


def _walked(known: Known, one: RegionRun) -> Walk:
    walk = Walk(known)
    walk.value(one.function, one.region.name, 0)
    for name, value in named(*one.arguments):
        if not isinstance(value, torch.Tensor):
            walk.value(value, f"{one.region.name}({name})", 0)
    return walk


def _state(value: Any) -> State:
    if isinstance(value, torch.Tensor):
        is_dense = value.layout == torch.strided
        memory = (StorageWeakRef(value.untyped_storage()), int(value.storage_offset())) if is_dense else None
        version = 0 if value.is_inference() else value._version
        return State(weakref.ref(value), digest(value), True, memory, version=version)
    if isinstance(value, GENERATORS):
        return State(id(value), digest_of_generator(value), False, is_generator=True)
    return State(id(value), f"{type(value).__name__} of {len(value)}", False)


def digest_of_generator(generator: Any) -> str:
    """A digest of a random generator's state; "" if it has none that can be read, as ``random.SystemRandom``."""
    try:
        if isinstance(generator, torch.Generator):
            state: Any = generator.get_state().tolist()
        elif isinstance(generator, random.Random):
            state = generator.getstate()
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state(legacy=False)
        else:
            state = generator.bit_generator.state
        return hashlib.sha256(pickle.dumps(state)).hexdigest()
    except Exception:  # noqa: BLE001 - an object of the user's may raise any error
        return ""


def filled_again(
    forward: tuple[Snapshot, Snapshot],
    again: tuple[Snapshot, Snapshot],
    used: Set[str],
    overwritten: Set[str] = frozenset(),
    *,
    finished: bool,
) -> Iterator[str]:
    """What forward wrote and the recomputation wrote with another value, or found already there and used or left alone.

    That it left something alone is known if it ``finished``, as others stop early, and not of what it has ``overwritten``
    with what was there. What it ``used`` are tensors that it found and that an operator of it was given.
    """
    for path, written in forward[1].items():
        before = forward[0].get(path)
        if written.is_generator or (before is not None and before.content == written.content):
            continue
        found, left = again[0].get(path), again[1].get(path)
        if found is None or left is None:
            continue
        is_left = (
            finished
            and path not in overwritten
            and left.is_tensor
            and left.content == found.content
            and left.is_same_object(found)
        )
        is_used = path in used and found.is_tensor and found.identity is written.identity
        if is_left or is_used or left.content not in (found.content, written.content):
            yield path


def changed_in_place(runs: tuple[Snapshot, Snapshot], path: str) -> bool:
    """Whether a run found a tensor there and wrote into the same object."""
    before, after = (one.get(path) for one in runs)
    if before is None or after is None or not after.is_tensor or not before.is_same_object(after):
        return False
    return (before.version, before.content) != (after.version, after.content)


def is_drawn_anew(forward: tuple[object, object], again: tuple[object, object]) -> bool:
    """Whether a recomputation draws other numbers than forward: from another state of the stream, or if forward draws none.

    If it leaves the state that forward left, both have seeded the stream themselves.
    """
    return again[1] not in (again[0], forward[1]) and (again[0] != forward[0] or forward[0] == forward[1])


def generators_drawn_anew(forward: tuple[Snapshot, Snapshot], again: tuple[Snapshot, Snapshot]) -> Iterator[str]:
    """Generators of which ``is_drawn_anew`` holds."""
    for path, one in again[0].items():
        if one.is_generator and all(path in seen for seen in (*forward, *again)):
            first, second = ((seen[0][path].content, seen[1][path].content) for seen in (forward, again))
            if is_drawn_anew(first, second):
                yield path


def changed_between(forward: tuple[Snapshot, Snapshot], again: tuple[Snapshot, Snapshot]) -> Iterator[str]:
    """Tensors whose values are neither those that forward left nor those that it found, which an implementation may restore."""
    for path, left in forward[1].items():
        before, found = forward[0].get(path), again[0].get(path)
        is_restored = before is not None and found is not None and found.content == before.content
        if left.is_tensor and found is not None and found.content != left.content and not is_restored:
            yield path
