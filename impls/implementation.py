"""The record by which an implementation presents itself: of checkpointing, of graph hooks, or of an offloaded model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args

VerdictName = Literal["agrees", "refuses", "diverges", "crashes", "hangs"]
Kind = Literal["checkpoint", "graph", "offload"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_NAME = re.compile(r"\w[\w.:+-]{0,149}")

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "autocast": "the recomputation runs under forward's autocast state",
        "closure-gradients": "a region of which no input requires grad still gives gradients to what its function reads",
        "compiled": "inside of what torch.compile compiles, a region is a part of the graph, without a graph break",
        "containers": "tensors inside lists, tuples, dicts and dataclasses take part in autograd, inputs and outputs",
        "context-fn": "the context_fn option, and through it selective checkpointing",
        "decorator": "without a function, options alone give a decorator",
        "determinism-check": "a recomputation that saves other tensors than forward did is reported",
        "early-stop": "a recomputation ends as soon as what is needed is there",
        "early-stop-option": "early_stop=False runs every recomputation to its end",
        "exact-sums": "gradients are summed in plain's order, so they are equal to the last bit",
        "explicit-generators": "torch.Generator arguments, at any depth, are replayed and end where plain leaves them",
        "hidden-saves": "what a region saves belongs to it alone; regions and hooks around it see its inputs only (rules 1, 2)",
        "higher-order": "create_graph=True, and gradients of gradients",
        "keyword-arguments": "keyword arguments are passed on to the function",
        "nesting": "regions inside regions, by the same implementation",
        "non-tensor-arguments": "arguments that are not tensors are passed on to the function",
        "non-tensor-outputs": "None, numbers and other values that are not tensors come back among the outputs",
        "recomputes": "a region drops what it saved in forward and recomputes it in backward",
        "rng": "the recomputation draws forward's random numbers and leaves the ambient stream where it was",
        "rng-option": "preserve_rng_state=False switches the handling of random numbers off",
        "subset-requests": "torch.autograd.grad and backward(inputs=...)",
    }
)
GRAPH_CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "end-of-backward": "queue_callback has something called when a backward has ended",
        "logging": "logged_backward writes down the nodes that a backward executes",
        "memory-budget": "region_activation_memory_budget, in what torch.compile compiles",
        "min-bytes": "the option min_bytes of save_on_cpu",
        "node-creation": "node_creation_hook sees each node of the graph when it is made",
        "stream-settings": "what backward does about streams that do not match can be set",
    }
)
# The names that may be missing from a namespace of kind graph, by the capability that it cannot claim without them.
OPTIONAL_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "end-of-backward": ("queue_callback",),
        "memory-budget": ("region_activation_memory_budget",),
        "node-creation": ("node_creation_hook",),
        "stream-settings": ("set_override_stale_capture_stream", "set_warn_on_accumulate_grad_stream_mismatch"),
    }
)
_CAPABILITIES: Mapping[Kind, Mapping[str, str]] = MappingProxyType(
    {"checkpoint": CAPABILITIES, "graph": GRAPH_CAPABILITIES, "offload": {}}
)


def capabilities_of(kind: Kind) -> frozenset[str]:
    """The names of all capabilities that an implementation of a kind may claim."""
    return frozenset(_CAPABILITIES[kind])


def optional_capabilities(namespace: Any) -> frozenset[str]:
    """The capabilities that a namespace of kind graph may claim by those of its names that it may lack."""
    return frozenset(key for key, names in OPTIONAL_NAMES.items() if all(hasattr(namespace, name) for name in names))


@dataclass(frozen=True)
class Known:
    """A verdict other than the claimed one that is known and explained: why, and where that is written or was seen.

    ``seed``: for a rare limit, a seed whose programs show it. They are tried if those of the run's own seed do not show it,
    before the limit is reported as gone. ``effect``: what exactly is seen instead, by the name that the law has for
    it; a divergence of another kind is then not the declared one.
    """

    verdict: VerdictName
    reason: str
    source: str
    seed: int | None = None
    effect: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(VerdictName):
            raise ValueError(f"verdict is {self.verdict!r}; accepted are {', '.join(get_args(VerdictName))}")
        for name in ("reason", "source"):
            if not isinstance(value := getattr(self, name), str) or not value.strip():
                raise ValueError(f"{name} is {value!r}; it must be some text: why, and where that is written or was seen")


def known(
    verdict: VerdictName, reason: str, source: str, *laws: str, seed: int | None = None, effect: str = ""
) -> dict[str, Known]:
    """The same verdict, for the same reason, under several laws. Raises ValueError without a law, and as ``Known`` does."""
    if not laws:
        raise ValueError("laws: none is given; it must be the name of one law at least")
    return dict.fromkeys(laws, Known(verdict, reason, source, seed, effect))


def _no_checkpoint(*_: object, **__: object) -> NoReturn:
    raise TypeError("this implementation is not of kind 'checkpoint': it has no checkpoint to call; see its field provides")


@dataclass(frozen=True)
class Implementation:
    """One implementation of one kind, what it claims, and where it is known to fall short.

    Of kind "checkpoint", ``checkpoint(function, *args, **kwargs)`` calls ``function`` and returns its value. Of kind
    "graph", ``provides`` has the public names of ``torch.autograd.graph``; of kind "offload", it is a class that is
    called as ``OffloadModel(model, device, ...)``. ``capabilities`` are names that exist for the kind, such as
    those in :data:`CAPABILITIES`; a law that needs one that is missing expects a refusal. ``known`` maps the name of
    a law to the verdict that is expected instead, with reason and source. ``declared`` is False for what says nothing
    of itself and is judged by the claims of another implementation. ``binding`` is Python source for scripts, which
    binds what is judged to the name ``checkpoint``, ``graph`` or ``OffloadModel``; without it a plain import does.
    ``share`` is how many of a profile's cases it is held to: less than 1 for what takes long for each of them, and
    then it has as much more time for each before it counts as hanging.

    Raises ValueError for a name that cannot be part of a file's name, a kind or a capability that does not exist, a share that
    is not in (0, 1], something in ``known`` that is no ``Known``, and when what the kind asks for is not given. It is not
    checked that it works.
    """

    name: str
    checkpoint: Callable[..., Any] = _no_checkpoint
    summary: str = ""
    source: str = ""
    capabilities: frozenset[str] = frozenset()
    known: Mapping[str, Known] = field(default_factory=dict)
    declared: bool = True
    kind: Kind = "checkpoint"
    provides: Any = None
    binding: str = ""
    share: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name is {self.name!r}; it must be 150 letters, digits and . : + - _ at most, for files are called by it"
            )
        if not isinstance(self.known, Mapping):
            raise ValueError(f"known of {self.name!r} is {self.known!r}; it must map names of laws to what is known")
        for law, limit in self.known.items():
            if not isinstance(law, str) or not isinstance(limit, Known):
                raise ValueError(
                    f"known of {self.name!r} has {limit!r} for law {law!r}; impls.implementation.known makes what is due"
                )
        if self.kind not in KINDS:
            raise ValueError(f"kind of {self.name!r} is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        is_checkpoint = self.kind == "checkpoint"
        if (self.checkpoint is _no_checkpoint) is is_checkpoint or (self.provides is None) is not is_checkpoint:
            wanted, other = ("checkpoint", "provides") if is_checkpoint else ("provides", "checkpoint")
            raise ValueError(f"{self.name!r} is of kind {self.kind!r}: {wanted} must be given, and {other} must not")
        if not 0 < self.share <= 1:
            raise ValueError(f"share of {self.name!r} is {self.share!r}; it must be more than 0 and at most 1")
        if is_checkpoint and not callable(self.checkpoint):
            raise ValueError(f"checkpoint of {self.name!r} is {self.checkpoint!r}; it must be callable, with a function first")
        there = _CAPABILITIES[self.kind]
        if not isinstance(self.capabilities, Set):
            told = f"capabilities of {self.name!r} are {self.capabilities!r}"
            raise ValueError(f"{told}; they must be a set of names, such as frozenset({{{min(there, default='...')!r}}})")
        object.__setattr__(self, "capabilities", frozenset(self.capabilities))
        unknown = sorted(map(str, self.capabilities - there.keys()))
        if unknown:
            raise ValueError(f"capabilities of {self.name!r}: {unknown} do not exist; there are {sorted(there)}")

    @property
    def subject(self) -> Any:
        """What the programs of this kind are given: the checkpoint, or what the implementation provides."""
        return self.checkpoint if self.kind == "checkpoint" else self.provides

    def importing(self, name: str) -> str:
        """Python source that binds what is judged to ``name``."""
        if self.binding:
            return self.binding
        if ":" in self.name:
            where, _, attribute = self.name.partition(":")
            return f"import {where}\n\n{name} = {where}.{attribute}" + ("" if not self.declared else ".subject")
        module, its = getattr(self.subject, "__module__", None), getattr(self.subject, "__qualname__", None)
        if module and its and its.isidentifier():
            return f"from {module} import {its}" + ("" if its == name else f" as {name}")
        return f"import impls\n\n{name} = impls.get({self.name!r}).subject"

    def expected(self, law: str, needs: frozenset[str] = frozenset()) -> VerdictName:
        """The verdict that this implementation declares for a law that needs the given capabilities."""
        if law in self.known:
            return self.known[law].verdict
        return "agrees" if needs <= self.capabilities else "refuses"
