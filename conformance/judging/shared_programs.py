"""Sends the programs that were drawn for a law, and the runs of plain that were made, to the process of an implementation.

That process could draw the same programs and run plain itself, which takes about as long as judging an implementation.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from conformance.judging.explorer import Explorer
from conformance.judging.judge import Observation
from conformance.judging.law import Law
from conformance.judging.verdicts import Seen
from impls import Implementation


def pack(explorer: Explorer, law: Law, claims: Implementation) -> bytes:
    """The law's programs for these claims, with those runs of plain that survive it unchanged; b"" if the programs do not.

    Plain runs only where it did already: not every law needs that.
    """
    runs = explorer.references
    packed = [(one, _packed(runs[one.source]) if one.source in runs else b"") for one in explorer.programs(law, claims)]
    try:
        return pickle.dumps(packed)
    except Exception:  # noqa: BLE001 - a program of somebody else's law may hold anything
        return b""


def unpack(explorer: Explorer, law: Law, claims: Implementation, packed: bytes) -> None:
    """Give an explorer in another process what was packed there. What is missing it makes itself."""
    if packed:
        there = pickle.loads(packed)
        explorer.begin(law)
        explorer.take(law, claims, [program for program, _ in there])
        explorer.references.update({program.source: pickle.loads(seen) for program, seen in there if seen})


def _packed(seen: Observation) -> bytes:
    """A run of plain; b"" if it ended with an error, whose leaves are looked at, or noted what need not survive."""
    if seen.error is not None or not all(map(_survives, _parts([*seen.notes.values()]))):
        return b""
    leaves, seen.leaves = seen.leaves, ()
    try:
        return pickle.dumps(seen)
    finally:
        seen.leaves = leaves


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _survives(value: Any) -> bool:
    """Whether a noted value is equal to itself in another process."""
    if isinstance(value, Seen):
        return type(value.values) is torch.Tensor and value.values.layout is torch.strided and value.device == "cpu"
    return value is None or type(value) in (bool, int, float, str, bytes, torch.dtype, torch.Size)
