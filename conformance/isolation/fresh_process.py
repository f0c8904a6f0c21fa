"""Runs a program in a new process, in which no device has been started yet, so that first uses can be observed."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import impls
from conformance.judging.judge import Case, Observation, execute, plainly
from conformance.judging.verdicts import Crashes
from impls import Kind


@dataclass(frozen=True)
class _Text:
    """A program of which only the text was sent."""

    source: str


def in_a_fresh_process(case: Case) -> None:
    """Run a case's program under plain and under its implementation, each in a new process, for the law to compare.

    The process finds the implementation by its name. Raises the verdict of an error that plain does not raise, and Crashes if
    the process ends. Leaves stay in the process, so gradients that an error leaves are not checked.
    """
    case.plain = _observed("", case.kind, case.program.source, case.device, ())
    try:
        seen = _observed(case.implementation.name, case.kind, case.program.source, case.device, tuple(case.options.items()))
    except BrokenProcessPool as ended:
        raise Crashes(f"the process ended: {ended}") from ended
    case.recomputed |= seen.calls.total() > case.plain.calls.total()
    if seen.error is not None and case.plain.error is None:
        raise case.verdict(seen)
    case.seen = seen


@functools.lru_cache(maxsize=64)
def _observed(name: str, kind: Kind, source: str, device: str, options: tuple[tuple[str, Any], ...]) -> Observation:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pickle.loads(pool.submit(_observe, name, kind, source, device, options).result())


def _observe(name: str, kind: Kind, source: str, device: str, options: tuple[tuple[str, Any], ...]) -> bytes:
    """What one run shows, as bytes; an error that cannot be sent becomes a RuntimeError with its text."""
    if name:
        subject = impls.find(name, kind).subject
        seen = execute(_Text(source), functools.partial(subject, **dict(options)) if options else subject, device, kind=kind)
    else:
        seen = plainly(_Text(source), device, kind)
    seen.leaves = ()
    try:
        return pickle.dumps(seen)
    except Exception:  # noqa: BLE001 - whatever an exception of somebody else's brings along
        seen.error = RuntimeError(f"{type(seen.error).__name__}: {seen.error}")
        return pickle.dumps(seen)
