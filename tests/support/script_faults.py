"""What keeps a script from being one for a bug report."""

from __future__ import annotations

import sys

import impls
from conformance.reproducers.reduction_steps import MOST
from conformance.reproducers.script import binding_in
from conformance.reproducers.script_syntax import imports, modules, subject

DATABASE = "torch.testing._internal"  # where torch's database of operators is, which cannot be imported without numpy


def _packages(text: str) -> set[str]:
    """The modules, by the first part of their names, that a text imports anywhere."""
    return {name.partition(".")[0] for name in modules(text)}


def _own(text: str) -> set[str]:
    """The packages, besides torch, that what a script is about comes from."""
    its = subject(text)
    name = its.implementation if its else ""
    if name in impls.PEERS:
        return {impls.PEERS[name].package} - {""}
    if name in impls.names():
        return set() if impls.module_of(name).startswith("impls.peers.") else {"impls"}
    return _packages(binding_in(text))


def faults_of(text: str) -> list[str]:
    """What keeps a script from being one for a bug report: too many lines, or modules that are not the implementation's."""
    allowed = {"torch", *sys.stdlib_module_names, *_own(text), *({"numpy"} if imports(text, [DATABASE]) else ())}
    lines = len(text.splitlines())
    return [*([f"{lines} lines"] if lines > MOST else []), *sorted(_packages(text) - allowed)]
