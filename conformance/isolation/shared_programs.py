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

    Only runs that were made already are sent: not every law needs one.
    """
    runs = explorer.references
    packed = [(one, _packed(runs[one.source]) if one.source in runs else b"") for one in explorer.programs(law, claims)]
    try:
        return pickle.dumps(packed)
    except Exception:  # noqa: BLE001 - a program of somebody else's law may hold anything
        return b""


def unpack(explorer: Explorer, law: Law, claims: Implementation, packed: bytes) -> None:
    """Give an explorer in this process what another process has packed. What is missing it makes itself."""
    if not packed:
        return
    try:
        received = [(program, pickle.loads(run) if run else None) for program, run in pickle.loads(packed)]
    except Exception:  # noqa: BLE001 - as above: what cannot be read here is drawn here
        return
    explorer.use_drawn(law, claims, [program for program, _ in received])
    explorer.references.update({program.source: run for program, run in received if run is not None})


def _packed(seen: Observation) -> bytes:
    """A run of plain; b"" if it raised, as laws then read its leaves, or noted what another process may not reproduce."""
    if seen.error is not None or not all(map(_survives, _parts([*seen.notes.values(), *seen.tried]))):
        return b""
    leaves, seen.leaves = seen.leaves, ()
    try:
        return pickle.dumps(seen)
    except Exception:  # noqa: BLE001 - whatever a note holds besides its values
        return b""
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
