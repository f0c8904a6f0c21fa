"""Which code a comparison measures: the roots of the fingerprints of contenders and of workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import impls
from benches.compare.contenders import Contender
from benches.models.workloads import KINDS
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources

# What makes contenders by name, and with which options.
OFFERED = tuple(f"benches.compare.contenders:{name}" for name in ("offered", "_built_in", "_peer"))
MEASURED = (
    "benches.compare.measurement:measure",
    "benches.compare.steps:test_step",
    "benches.compare.measurement:processor_seconds",
    "benches.compare.measurement:device_seconds",
    "benches.models.workloads:_made",
)


def of_contender(
    sources: Sources, contender: Contender, versions: Mapping[str, str], chosen: Sequence[str] = OFFERED
) -> dict[str, Any]:
    """The fingerprints of what a contender runs, and of what chooses its plan; ``chosen`` is what makes contenders by name."""
    own = [f"{one.__module__}:{one.__qualname__.partition('.')[0]}" for one in (contender.prepare, contender.plan)]
    names = [contender.implementation] if contender.implementation else []
    roots = [*dict.fromkeys(own), *map(impls.module_of, names)]
    return measured_code.of_roots(sources, roots, measured_code.packages(names, versions), chosen)


def of_workload(sources: Sources, name: str, measured: Sequence[str] = MEASURED) -> dict[str, Any]:
    """The fingerprints of what makes a workload, and of what measures on it."""
    own = f"benches.models.workloads:KINDS[{name}]" if name in KINDS else "benches.models.workloads:sweeps"
    return measured_code.of_roots(sources, [own, *measured], alone=["benches.models.workloads:workload"])


def of_all(sources: Sources, compared: Iterable[Contender], workloads: Iterable[str]) -> dict[str, Any]:
    """The fingerprints of a comparison, as they are stored."""
    versions = versions_of(compared := [*compared])
    return {
        "contender": {one.name: of_contender(sources, one, versions) for one in compared},
        "workload": {name: of_workload(sources, name) for name in workloads},
    }


def versions_of(compared: Iterable[Contender]) -> dict[str, str]:
    """The versions of the packages that contenders come from, where others ship them."""
    needed = {impls.PEERS[one.implementation].distribution for one in compared if one.implementation in impls.PEERS} - {""}
    return {name: metadata.version(name) for name in sorted(needed)}
