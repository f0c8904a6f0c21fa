"""How pytest-xdist shares the tests among its workers."""

from __future__ import annotations

from typing import Any

import pytest


def group(name: str) -> str:
    """The group of a test. One worker runs all tests of a group, one after the other.

    Implementations share the programs of a law, which each process draws once. Other tests of a file share fixtures. If their
    parameters begin with a name and a colon, as in ``[law: mutant]``, tests with the same name share its programs.
    """
    test, _, parameter = name.partition("[")
    if "laws/" in name:
        return test
    file, _, _ = name.partition("::")
    law, colon, _ = parameter.partition(": ")
    return f"{file}[{law}]" if colon and law.isidentifier() else file


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out one group after the other; xdist's own ``loadgroup`` has no effect under pytest 9.2 (pytest-xdist#1386)."""
    from xdist.scheduler import LoadScopeScheduling  # here, since xdist need not be installed

    made = LoadScopeScheduling(config, log)
    made._split_scope = group
    return made
