"""Interchangeable implementations of activation checkpointing behind one interface."""

from __future__ import annotations

import importlib

from impls.implementation import CAPABILITIES, Implementation, Known

__all__ = ["CAPABILITIES", "Implementation", "Known", "get", "load", "names"]

_MODULES = {
    "plain": "impls.plain",
    "legacy": "impls.legacy",
    "reentrant": "impls.reentrant",
    "nested": "impls.nested",
    "torch-reentrant": "impls.peers.torch_reentrant",
    "torch-nonreentrant": "impls.peers.torch_nonreentrant",
    "torch-nonreentrant-full": "impls.peers.torch_nonreentrant_full",
}


def names() -> tuple[str, ...]:
    """The names of the implementations that come with the testbed."""
    return tuple(_MODULES)


def get(name: str) -> Implementation:
    """The built-in implementation of that name; ValueError, which lists the names, when there is none."""
    if name not in _MODULES:
        raise ValueError(f"no implementation is called {name!r}; there are {', '.join(_MODULES)}, or pkg.mod:attr")
    return importlib.import_module(_MODULES[name]).IMPLEMENTATION


def load(reference: str) -> Implementation:
    """The implementation at ``"pkg.mod:attr"``: an :class:`Implementation`, or a callable that declares nothing.

    Raises ValueError that says which part failed: the form, the import, the attribute, or its being callable.
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
    if not callable(value):
        raise ValueError(f"{reference!r} is a {type(value).__name__}, neither callable nor an Implementation")
    return Implementation(reference, value, summary="declares nothing", source=reference, declared=False)
