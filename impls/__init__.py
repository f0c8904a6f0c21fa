"""Interchangeable implementations of activation checkpointing, and of what belongs to it, behind one interface."""

from __future__ import annotations

import importlib
from typing import Any

from impls.implementation import CAPABILITIES, KINDS, Implementation, Kind, Known
from impls.peers import PEERS, Peer

__all__ = [
    "CAPABILITIES",
    "GRAPH_NAMES",
    "KINDS",
    "PEERS",
    "Implementation",
    "Kind",
    "Known",
    "Peer",
    "get",
    "load",
    "names",
]

GRAPH_NAMES = (
    "saved_tensors_hooks",
    "save_on_cpu",
    "disable_saved_tensors_hooks",
    "register_multi_grad_hook",
    "allow_mutation_on_saved_tensors",
    "Node",
    "GradientEdge",
    "get_gradient_edge",
    "increment_version",
)
_MODULES: dict[str, tuple[Kind, str]] = {
    "plain": ("checkpoint", "impls.plain"),
    "legacy": ("checkpoint", "impls.legacy"),
    "reentrant": ("checkpoint", "impls.reentrant"),
    "nested": ("checkpoint", "impls.nested"),
    "torch-reentrant": ("checkpoint", "impls.peers.torch_reentrant"),
    "torch-nonreentrant": ("checkpoint", "impls.peers.torch_nonreentrant"),
    "torch-nonreentrant-full": ("checkpoint", "impls.peers.torch_nonreentrant_full"),
    "graph": ("graph", "impls.graph"),
    "torch-graph": ("graph", "impls.peers.torch_graph"),
    "offload": ("offload", "impls.offload"),
}


def names(kind: Kind | None = None) -> tuple[str, ...]:
    """The names of the implementations that come with the testbed, all of them or those of one kind.

    Peers, which others ship and which may not be installed, have their names in ``PEERS``.

    Raises ValueError for a kind that does not exist.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    return tuple(name for name, (its, _) in _MODULES.items() if kind in (None, its))


def get(name: str) -> Implementation:
    """The implementation of that name, built in or a peer.

    Raises ValueError, which lists the names, when there is none, and which says what to do when a peer is not installed.
    """
    if name in PEERS:
        try:
            return PEERS[name].load()
        except ValueError as error:
            raise ValueError(f"the peer {name!r} cannot be had: {error}") from error
    if name not in _MODULES:
        there = f"there are {', '.join(_MODULES)}, the peers {', '.join(PEERS)}, or pkg.mod:attr"
        raise ValueError(f"no implementation is called {name!r}; {there}")
    return importlib.import_module(_MODULES[name][1]).IMPLEMENTATION


def load(reference: str, kind: Kind = "checkpoint") -> Implementation:
    """The implementation at ``"pkg.mod:attr"``: an :class:`Implementation`, or something of ``kind`` that declares nothing.

    Raises ValueError that says which part failed: the form, the import, the attribute, or its being of that kind.
    """
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{reference!r} is not of the form pkg.mod:attr")
    try:
        value = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{reference!r}: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{reference!r}: {module_name!r} has no attribute {attribute!r} (looked for {part!r})")
        value = getattr(value, part)
    if isinstance(value, Implementation):
        return value
    if kind == "graph":
        if missing := [name for name in GRAPH_NAMES if not hasattr(value, name)]:
            raise ValueError(f"{reference!r} has no {', '.join(missing)}; of kind graph are the names of torch.autograd.graph")
    elif not callable(value):
        told = f"{reference!r} is a {type(value).__name__}, neither callable nor an Implementation"
        raise ValueError(f"{told}; a namespace of hooks and graph tools is judged with --like graph")
    subject: dict[str, Any] = {"checkpoint": value} if kind == "checkpoint" else {"provides": value}
    return Implementation(reference, kind=kind, summary="declares nothing", source=reference, declared=False, **subject)
