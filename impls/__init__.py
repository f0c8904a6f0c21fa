"""Interchangeable implementations of activation checkpointing, and of what belongs to it, behind one interface."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from impls.implementation import CAPABILITIES, KINDS, Implementation, Kind, Known, optional_capabilities
from impls.peers import PEERS, Peer

__all__ = [
    "CAPABILITIES",
    "COMPILED",
    "GRAPH_NAMES",
    "KINDS",
    "PEERS",
    "Implementation",
    "Kind",
    "Known",
    "Peer",
    "find",
    "get",
    "installed",
    "load",
    "module_of",
    "names",
]

ENTRY_POINTS = "reprise.implementations"

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
# Built in, but written in C++, so available only where they can be built. ``names`` leaves them out; ``find`` has them.
COMPILED: Mapping[str, tuple[Kind, str]] = MappingProxyType({"native": ("checkpoint", "impls.native.api")})


_CALLED: Mapping[Kind, str] = {
    "checkpoint": "checkpoint(function, *args, **kwargs)",
    "offload": "OffloadModel(model, device, ...)",
}
_LISTED = 8  # so many names at most


def names(kind: Kind | None = None) -> tuple[str, ...]:
    """The names of the implementations that come with the testbed, all of them or those of one kind.

    Peers, which others ship and which may not be installed, have their names in ``PEERS``; what has to be built, in
    ``COMPILED``.

    Raises ValueError for a kind that does not exist.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    return tuple(name for name, (its, _) in _MODULES.items() if kind in (None, its))


def get(name: str) -> Implementation:
    """The implementation of that name, built in or a peer. For those in ``COMPILED`` call :func:`find`.

    Raises ValueError for an unknown name, with a list of the names, and for a peer that is not installed, with what to do.
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


def module_of(name: str) -> str:
    """The name of the module in which an implementation is declared, built in or the adapter of a peer; it is not imported.

    Raises ValueError when there is none of that name.
    """
    if name in PEERS:
        return f"impls.peers.{PEERS[name].module}"
    modules = {**_MODULES, **COMPILED}
    if name not in modules:
        raise ValueError(f"no implementation is called {name!r}; there are {', '.join((*modules, *PEERS))}")
    return modules[name][1]


def installed() -> Mapping[str, str]:
    """The implementations of installed distributions: names to references ``"pkg.mod:attr"``, none of which is imported here.

    They are the entry points of the group ``reprise.implementations``. Raises ValueError, which names the distributions,
    when one has the name of a built-in implementation or a peer, or two have the same name for different things.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for one in metadata.entry_points(group=ENTRY_POINTS):
        if one.name in _MODULES or one.name in COMPILED or one.name in PEERS:
            what = "peer" if one.name in PEERS else "built-in implementation"
            raise ValueError(f"{_brought(one)} calls an implementation {one.name!r}, which is the name of a {what}")
        if found.setdefault(one.name, one).value != one.value:
            raise ValueError(f"{_brought(one)} and {_brought(found[one.name])} both call an implementation {one.name!r}")
    return MappingProxyType({name: one.value for name, one in found.items()})


def _brought(one: metadata.EntryPoint) -> str:
    distribution = one.dist.name if one.dist else "an installed distribution"
    return f"{distribution} (entry point {one.name} = {one.value})"


def find(name: str, kind: Kind = "checkpoint") -> Implementation:
    """The implementation that a user calls ``name``: built in, a peer, brought by a distribution, or at ``"pkg.mod:attr"``.

    Raises ValueError as :func:`get`, :func:`installed` and :func:`load` do, and for one in ``COMPILED`` that cannot be built.
    """
    if ":" in name:
        return load(name, kind)
    if name in COMPILED:
        package = importlib.import_module(COMPILED[name][1].rpartition(".")[0])
        try:
            package.load_extension()  # no more than that: a device is asked for what it has only once it is there
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        implementation: Implementation = package.IMPLEMENTATION
        return implementation
    there = {} if name in _MODULES or name in PEERS else installed()
    if name not in there:
        try:
            return get(name)
        except ValueError as error:
            raise ValueError(f"{error}; installed: {', '.join(there)}" if there else str(error)) from error
    try:
        return load(there[name], kind)
    except ValueError as error:
        raise ValueError(f"the installed implementation {name!r}: {error}") from error


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
            where = "" if part == attribute else f" (looked for {part!r})"
            raise ValueError(f"{reference!r}: {module_name!r} has no attribute {attribute!r}{where}{_offered(value)}")
        value = getattr(value, part)
    if isinstance(value, Implementation):
        return value
    if kind == "graph":
        if missing := [name for name in GRAPH_NAMES if not hasattr(value, name)]:
            raise ValueError(f"{reference!r} has no {', '.join(missing)}; of kind graph are the names of torch.autograd.graph")
    elif not callable(value):
        accepted = f"a callable, called as {_CALLED[kind]}, or an impls.Implementation"
        told = f"{reference!r} is {value!r:.60}, of type {type(value).__name__}; accepted is {accepted}"
        raise ValueError(f"{told}. A namespace of hooks and graph tools is for conformance, with --like graph")
    subject: dict[str, Any] = {"checkpoint": value} if kind == "checkpoint" else {"provides": value}
    if kind == "graph":
        subject["capabilities"] = optional_capabilities(value)
    return Implementation(reference, kind=kind, summary="declares nothing", source=reference, declared=False, **subject)


def _offered(value: Any) -> str:
    """What there is in a module that could be judged: its public callables, without what it imported."""
    if not inspect.ismodule(value):
        return ""
    imported = {
        name
        for name, one in vars(value).items()
        if ((inspect.isclass(one) or inspect.isroutine(one)) and one.__module__ != value.__name__)
        or type(one).__module__ == "typing"
    }
    there = [name for name, one in vars(value).items() if name[0] != "_" and (callable(one) or isinstance(one, Implementation))]
    own = [name for name in there if name not in imported] or there
    more = f" and {len(own) - _LISTED} more" if len(own) > _LISTED else ""
    return f"; callables there: {', '.join(own[:_LISTED])}{more}" if own else "; there is nothing there to be called"
