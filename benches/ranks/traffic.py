"""What a rank hands to collectives: kind, number and bytes, counted as torch's dispatcher is asked for them.

The *payload* of one is the whole buffer: what an all-gather gives, what a reduce-scatter takes, what an all-reduce or a
transfer is about. What a rank *sends* of it follows from the algorithm on a ring of n ranks: (n - 1) / n of an all-gather or a
reduce-scatter, twice that of an all-reduce, all of what it sends to one other, nothing of what it receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GATHER, SCATTER, REDUCE, SEND, RECEIVE = "all-gather", "reduce-scatter", "all-reduce", "send", "receive"
# Operators of c10d by name, with the place of the argument that is the payload. Any other one is refused: it would be missed.
OPERATORS: Mapping[str, tuple[str, int]] = {
    "_allgather_base_": (GATHER, 0),
    "_reduce_scatter_base_": (SCATTER, 1),
    "allreduce_": (REDUCE, 0),
    "send": (SEND, 0),
    "recv_": (RECEIVE, 0),
}
Key = tuple[str, int]  # the kind of a collective, and the number of ranks in its group


def share_sent(kind: str, ranks: int) -> Fraction:
    """How much of the payload a rank sends."""
    ring = Fraction(ranks - 1, ranks)
    return {GATHER: ring, SCATTER: ring, REDUCE: 2 * ring, SEND: Fraction(1), RECEIVE: Fraction(0)}[kind]


class Traffic:
    """Numbers and payloads in bytes, by kind and size of the group."""

    def __init__(self) -> None:
        self.number: Counter[Key] = Counter()
        self.payload: Counter[Key] = Counter()

    def add(self, kind: str, ranks: int, size: int, number: int = 1) -> None:
        """So many collectives of ``size`` bytes each. Those of one rank move nothing and do not count."""
        if number and ranks > 1:
            self.number[kind, ranks] += number
            self.payload[kind, ranks] += number * size

    @property
    def sent(self) -> int:
        """Bytes that a rank sends. Rounded to a whole number, which padded buffers give exactly."""
        return round(sum(share_sent(*key) * size for key, size in self.payload.items()))

    @property
    def rows(self) -> list[list[Any]]:
        """Kind, ranks, number and payload, in the order of their names."""
        return [[*key, self.number[key], self.payload[key]] for key in sorted(self.number)]


class TrafficMode(TorchDispatchMode):
    """Counts collectives while it is on, on the thread that enters it, backward on the CPU included."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("_c10d_functional", "_c10d_functional_autograd") or (
            func.namespace == "c10d" and name not in OPERATORS
        ):
            raise RuntimeError(f"{func} is a collective that is not counted: add it to {__name__}.OPERATORS")
        if func.namespace == "c10d":
            kind, place = OPERATORS[name]
            ranks = next(dist.ProcessGroup.unbox(one).size() for one in args if isinstance(one, torch.ScriptObject))
            tensors = [one for one in tree_leaves(args[place]) if isinstance(one, Tensor)]
            self.traffic.add(kind, ranks, sum(one.nbytes for one in tensors))
        return func(*args, **(kwargs or {}))
