"""The record by which an implementation of activation checkpointing presents itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

VerdictName = Literal["agrees", "refuses", "diverges", "crashes", "hangs"]

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "autocast": "the recomputation runs under forward's autocast state",
        "closure-gradients": "a region of which no input requires grad still gives gradients to what its function reads",
        "containers": "tensors inside lists, tuples, dicts and dataclasses take part in autograd, inputs and outputs",
        "context-fn": "the context_fn option, and through it selective checkpointing",
        "determinism-check": "a recomputation that saves other tensors than forward did is reported",
        "early-stop": "a recomputation ends as soon as what is needed is there",
        "early-stop-option": "early_stop=False runs every recomputation to its end",
        "exact-sums": "gradients are summed in plain's order, so they are equal to the last bit",
        "explicit-generators": "torch.Generator arguments, at any depth, are replayed and end where plain leaves them",
        "hidden-saves": "what a region saves belongs to it alone; regions and hooks around it see its inputs only (rules 1, 2)",
        "higher-order": "create_graph=True, and gradients of gradients",
        "keyword-arguments": "keyword arguments are passed on to the function",
        "non-tensor-arguments": "arguments that are not tensors are passed on to the function",
        "recomputes": "a region drops what it saved in forward and recomputes it in backward",
        "rng": "the recomputation draws forward's random numbers and leaves the ambient stream where it was",
        "rng-option": "preserve_rng_state=False switches the handling of random numbers off",
        "subset-requests": "torch.autograd.grad and backward(inputs=...)",
    }
)


@dataclass(frozen=True)
class Known:
    """A verdict other than the claimed one that is known and explained: why, and where that is written or was seen."""

    verdict: VerdictName
    reason: str
    source: str


def known(verdict: VerdictName, reason: str, source: str, *laws: str) -> dict[str, Known]:
    """The same verdict, for the same reason, under several laws."""
    return dict.fromkeys(laws, Known(verdict, reason, source))


@dataclass(frozen=True)
class Implementation:
    """One way to checkpoint, what it claims, and where it is known to fall short.

    ``checkpoint(function, *args, **kwargs)`` calls ``function`` and returns its value. ``capabilities`` are names
    from :data:`CAPABILITIES`; a law that needs one that is missing expects a refusal. ``known`` maps the name of a
    law to the verdict that is expected instead, with reason and source. ``declared`` is False for a bare callable,
    which is judged by the claims of another implementation.

    Raises ValueError for a capability that does not exist. It is not checked that ``checkpoint`` works.
    """

    name: str
    checkpoint: Callable[..., Any]
    summary: str = ""
    source: str = ""
    capabilities: frozenset[str] = frozenset()
    known: Mapping[str, Known] = field(default_factory=dict)
    declared: bool = True

    def __post_init__(self) -> None:
        unknown = sorted(self.capabilities - CAPABILITIES.keys())
        if unknown:
            raise ValueError(f"capabilities of {self.name!r}: {unknown} do not exist; there are {sorted(CAPABILITIES)}")

    def expected(self, law: str, needs: frozenset[str] = frozenset()) -> VerdictName:
        """The verdict that this implementation declares for a law that needs the given capabilities."""
        if law in self.known:
            return self.known[law].verdict
        return "agrees" if needs <= self.capabilities else "refuses"
