"""What a complete run judges: every law for every implementation of its kind. And which packages these come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

import torch

import impls
from conformance.judging.law import LAWS, all_laws
from conformance.rows.results_file import Row
from impls import Implementation


def all_held(chosen: Sequence[Implementation], device: str, rows: Iterable[Row]) -> bool:
    """Whether there is a row for every law that can be judged on the device, and each of these implementations."""
    laws = [law for law in all_laws().values() if not law.lacks(device)]
    due = {(law.name, one.name) for law in laws for one in chosen if one.kind == law.kind}
    return {(row["law"], row["impl"]) for row in rows} == due


def not_judged(chosen: Iterable[Implementation], device: str) -> dict[str, str]:
    """Laws about this device type and these implementations that cannot be judged here, each with what is missing."""
    all_laws()
    kind, kinds = torch.device(device).type, {one.kind for one in chosen}
    about = [law for law in LAWS.values() if kind in law.devices and law.kind in kinds]
    return {law.name: law.lacks(device) for law in about if law.lacks(device)}


def distributions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that these implementations come from, where they are peers."""
    needed = {impls.PEERS[name].distribution for name in names if name in impls.PEERS} - {""}
    return {name: metadata.version(name) for name in sorted(needed)}
