"""What a soak is asked to judge, tried before it begins: the device, each implementation, and by whose claims."""

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
class Asked:
    """The names given to ``--impl``, each with its name in rows, and warnings about those that declare nothing."""

    implementations: dict[str, str]
    warnings: tuple[str, ...]


def asked(*, impl: Sequence[str], like: str | None, device: str, profile: str) -> Asked:
    """What the options of a soak ask for. Raises ValueError, which names the option, for what a round could not judge.

    It is found out in a copy of this process, in which a device may be started: copies that are made later could not use it.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(_asked, [*impl], like, device, profile).result()


def _asked(impl: list[str], like: str | None, device: str, profile: str) -> Asked:
    try:
        device_check.require(device)
    except ValueError as error:
        raise ValueError(f"--device {device}: {error}") from error
    given = argparse.Namespace(impl=impl, like=like, device=device, profile=profile)
    of_a_round = {"memory_limit": None, "in_process": False, "peers": False, "seed": 0}
    try:
        found = subjects(argparse.Namespace(**vars(given) | of_a_round), impl or impls.names())
        warnings = [warning for one in found for warning in one.smoke()]
        for one in found:
            one.close()
    finally:
        for left in multiprocessing.active_children():  # at its end this process would wait for them
            left.kill()
    return Asked({one.setting.name: one.implementation.name for one in found} if impl else {}, tuple(warnings))
