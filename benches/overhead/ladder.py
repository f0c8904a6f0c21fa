"""What the overhead consists of: a ladder of checkpoints of one chain, from hooks alone up to ``nested``, timed in one run.

``native``, whose hooks are in C++, stands beside it.

The time from one rung to the next is what an ingredient costs, and the first rung is what hooks cost by themselves. From
the last minimal one to ``nested`` come what is fixed for a region (arguments, modes, locks, options) and recomputed tensors
that belong to one backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benches.overhead.chain import LENGTHS, Checkpoint, Function, chain, regions, rounds_of, theirs
from benches.overhead.minimal_checkpoints import handles, hooks, looks, slots, stop
from benches.rounds import Times, interleaved
from impls import native, nested


@dataclass(frozen=True)
class Rung:
    """A checkpoint on the ladder, and what it has that the one before it lacks."""

    name: str
    ingredient: str
    checkpoint: Checkpoint


MINIMAL = (
    Rung("hooks", "hooks alone", hooks),
    Rung("stop", "early stop, an exception out of the hook", stop),
    Rung("looks", "a look at each tensor, in forward and again", looks),
    Rung("handles", "a handle that follows each tensor's version", handles),
    Rung("slots", "slots that show what the graph still holds", slots),
)
LADDER = (
    *MINIMAL,
    Rung("nested-unseeded", "`nested` with preserve_rng_state=False",
         functools.partial(nested.checkpoint, preserve_rng_state=False)),
    Rung("nested", "`nested`: random numbers are replayed", nested.checkpoint),
    Rung("native-unseeded", "`native` with preserve_rng_state=False",
         functools.partial(native.checkpoint, preserve_rng_state=False)),
    Rung("native", "`native`: random numbers are replayed", native.checkpoint),
    Rung("torch", "PyTorch's non-reentrant", theirs),
)  # fmt: skip
OF_NATIVE = {"native", "native-unseeded"}


@dataclass(frozen=True)
class Step:
    """What a rung costs: by length of the chain, µs that a region adds to replay, and their ratio to what PyTorch's adds."""

    name: str
    ingredient: str
    added: tuple[float, ...]
    ratios: tuple[float, ...]


def require_plain(rungs: Sequence[Rung], length: int) -> None:
    """Raise ValueError unless each rung gives a chain of this length plain's gradient, to the last bit and not zero."""
    function, start = chain(length), torch.linspace(0.25, 1, 4)

    def gradient(through: Callable[[Function, Tensor], Tensor]) -> Tensor:
        x = start.clone().requires_grad_()
        through(function, x).backward(torch.ones(4))
        assert x.grad is not None
        return x.grad

    expected = gradient(lambda one, x: one(x))
    if not expected.all():
        raise ValueError(f"the gradient of a chain of {length} is {expected.tolist()}, and zeros prove nothing")
    for rung in rungs:
        found = gradient(rung.checkpoint)
        if not torch.equal(found, expected):
            raise ValueError(f"the gradient through {rung.name} on a chain of {length} is {found.tolist()}, "
                             f"plain's {expected.tolist()}: its times say nothing")  # fmt: skip


def rungs(names: Collection[str]) -> tuple[Rung, ...]:
    """The rungs that can run, if our checkpoints with these names can."""
    return tuple(rung for rung in LADDER if "native" in names or rung.name not in OF_NATIVE)


def climbed(ladder: Sequence[Rung], scale: float, lengths: Sequence[int] = LENGTHS) -> list[Step]:
    """Time a ladder and replay, interleaved, on each length. Raises ValueError as require_plain does."""
    found: dict[int, Times] = {}
    for length in lengths:
        require_plain(ladder, length)
        rounds, calls = rounds_of(length, scale)
        found[length] = interleaved(regions(length, {one.name: one.checkpoint for one in ladder}), rounds=rounds, calls=calls)
    return [step(rung, list(found.values())) for rung in ladder]


def step(rung: Rung, times: Sequence[Times]) -> Step:
    """What a rung costs by these times, one for each length."""
    added = tuple(1e6 * (one.median(rung.name) - one.median("replay")) for one in times)
    return Step(rung.name, rung.ingredient, added, tuple(one.ratio(rung.name, "torch", "replay") for one in times))
