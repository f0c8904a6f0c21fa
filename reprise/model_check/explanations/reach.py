"""Whether values that a recomputation computes otherwise than forward are read by backward, from the operators that ran.

Backward computes gradients of the loss alone, so what none of its operators reads reaches no gradient. What the recomputation
writes into tensors that were there before, such as buffers, may be read later, so it counts as read. A value that leaves
PyTorch, as a number of Python's, is followed no further than into the operators of the recomputation, whose results it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.multiprocessing.reductions import StorageWeakRef

from reprise.model_check.explanations.recording import Operator, Recording
from reprise.model_check.regions import RunOf


def first_that_reaches(recording: Recording, run: RunOf) -> int | None:
    """The place of the first operator of a recomputation that makes another value than in forward which is read later.

    None if there is none before the first operator that is not forward's; what that one and later ones read counts as read.
    """
    forward, again = recording.runs.get((run[0], 0), []), recording.runs.get(run, [])
    alike = _count_alike(forward, again)
    read = {*_there_before(recording, again), *_read_by_others(recording, run, again)}
    found: int | None = None
    for place in reversed(range(len(again))):
        two = again[place]
        if place >= alike:
            read |= {_source(recording, one) for one in two.storages}
            continue
        one = forward[place]
        made = {_source(recording, storage) for storage in _differing(one.made, two.made, two.made_storages)}
        if None in made or made & read:
            found = place
            read |= {_source(recording, storage) for storage in _differing(one.read, two.read, two.storages)}
    return found


def _count_alike(forward: Sequence[Operator], again: Sequence[Operator]) -> int:
    """How many operators are the same at the beginning, with as many tensors."""
    for place, (one, two) in enumerate(zip(forward, again, strict=False)):
        if (one.name, len(one.read), len(one.made)) != (two.name, len(two.read), len(two.made)):
            return place
    return min(len(forward), len(again))


def _differing(
    one: Sequence[str], two: Sequence[str], storages: Sequence[StorageWeakRef | None]
) -> Iterator[StorageWeakRef | None]:
    return (storage for first, second, storage in zip(one, two, storages, strict=True) if first != second)


def _source(recording: Recording, storage: StorageWeakRef | None) -> StorageWeakRef | None:
    """The storage that another one was cast from, since casts are not recorded."""
    return None if storage is None else recording.cast_from.get(storage, storage)


def _there_before(recording: Recording, again: Sequence[Operator]) -> Iterator[StorageWeakRef | None]:
    """The storages that a recomputation reads and has not made."""
    made: set[StorageWeakRef | None] = set()
    for one in again:
        storages = [_source(recording, storage) for storage in one.storages]
        yield from (storage for storage in storages if storage not in made)
        made |= {_source(recording, storage) for storage in one.made_storages}


def _read_by_others(recording: Recording, run: RunOf, again: Sequence[Operator]) -> Iterator[StorageWeakRef | None]:
    """The storages that backward and other regions read once a recomputation has begun."""
    for other, operators in recording.runs.items():
        if other != run and again:
            for one in operators:
                if one.time > again[0].time:
                    yield from (_source(recording, storage) for storage in one.storages)
