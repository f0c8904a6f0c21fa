"""What implementations declare is about laws that exist, and says why."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import conformance
import impls
from conformance.law import LAWS

for path in (Path(conformance.__file__).parent / "laws").glob("test_*.py"):
    importlib.import_module(f"conformance.laws.{path.stem}")


def _is_there(peer: impls.Peer) -> bool:
    try:
        return bool(peer.load())
    except ValueError:
        return False


THERE = (*impls.names(), *(name for name, peer in impls.PEERS.items() if _is_there(peer)))


@pytest.mark.parametrize("name", THERE)
def test_known_limits_are_of_laws_that_exist(name: str) -> None:
    assert impls.get(name).known.keys() <= LAWS.keys()


@pytest.mark.parametrize("name", THERE)
def test_known_limits_have_reason_and_source(name: str) -> None:
    assert all(len(limit.reason.split()) > 2 and limit.source for limit in impls.get(name).known.values())


@pytest.mark.parametrize("name", THERE)
def test_a_known_verdict_is_not_the_claimed_one(name: str) -> None:
    implementation = impls.get(name)
    claimed = {law: "agrees" if LAWS[law].needs <= implementation.capabilities else "refuses" for law in implementation.known}
    assert [law for law, limit in implementation.known.items() if limit.verdict == claimed[law]] == []


def test_nested_has_no_known_limit() -> None:
    assert not impls.get("nested").known
