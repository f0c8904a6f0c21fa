"""The implementations that a soak judges, found and tried before it begins."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import impls
from conformance.runs import device_check
from conformance.runs.selection import subjects


@dataclass(frozen=True)
class Targets:
    """The values of ``--impl``, each with its name in rows, and warnings about those that declare nothing."""

    implementations: dict[str, str]
    warnings: tuple[str, ...]


def find_targets(*, impl: Sequence[str], like: str | None, device: str, profile: str) -> Targets:
    """The implementations that a soak's options name. Raises ValueError, with the option, for what a round could not judge.

    They are tried in a fork of this process: trying may start the device, which later forks of this process could not use.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(_find_targets, [*impl], like, device, profile).result()


def _find_targets(impl: list[str], like: str | None, device: str, profile: str) -> Targets:
    try:
        device_check.require(device)
    except ValueError as error:
        raise ValueError(f"--device {device}: {error}") from error
    given = argparse.Namespace(impl=impl, like=like, device=device, profile=profile)
    of_a_round = {"memory_limit": None, "in_process": False, "peers": False, "seed": 0, "keyword": ""}
    try:
        found = subjects(argparse.Namespace(**vars(given) | of_a_round), impl or impls.names())
        warnings = [warning for one in found for warning in one.smoke()]
        for one in found:
            one.close()
    finally:
        for left in multiprocessing.active_children():  # this process would wait for them when it ends
            left.kill()
    return Targets({one.setting.name: one.implementation.name for one in found} if impl else {}, tuple(warnings))
