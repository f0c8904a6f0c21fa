"""Reprise, a testbed for activation checkpointing: the public Python API. The command line is ``python -m reprise``.

``names()`` lists the built-in implementations. ``get(name)`` returns one of them, ``load("pkg.mod:attr")`` yours, and
``find(name)`` any of these, an installed one or a peer; each is an ``Implementation``. ``check(build)`` compares steps of your
model with checkpointing to plain ones and returns a ``Report``; ``assert_equals_plain(build)`` does the same in your tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from impls import Implementation, find, get, installed, load, names
    from reprise.model_check.checking import assert_equals_plain, check
    from reprise.model_check.report import Report

__all__ = ["Implementation", "Report", "assert_equals_plain", "check", "find", "get", "installed", "load", "names"]
_MODULES = {
    "Report": "reprise.model_check.report",
    "assert_equals_plain": "reprise.model_check.checking",
    "check": "reprise.model_check.checking",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``reprise --help`` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES.get(name, "impls")), name)
