"""Reprise, a testbed for activation checkpointing: the public Python API. The command line is ``python -m reprise``.

``names()`` lists the built-in implementations, ``get(name)`` is one of them, ``load("pkg.mod:attr")`` is yours, and
``find(name)`` any of these, installed ones and peers too; each is an ``Implementation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from impls import Implementation, find, get, installed, load, names

__all__ = ["Implementation", "find", "get", "installed", "load", "names"]


def __getattr__(name: str) -> Any:
    """Import torch when it is needed: ``reprise --help`` must not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}; it has {', '.join(__all__)}")
    import impls

    return getattr(impls, name)
