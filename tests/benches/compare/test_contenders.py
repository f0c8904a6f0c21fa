"""Which contenders there are: by name, of what is installed, and what is said of those that cannot be had."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from benches.compare.contenders import contenders


def test_peers_that_cannot_be_had_are_named() -> None:
    found, missing = contenders("cpu")
    names = {one.name for one in found}
    assert {
        "plain",
        "nested",
        "nested-full",
        "native",
        "torch-reentrant",
        "torch-selective",
        "graph-save_on_cpu",
        "chen-sqrt",
    } <= names
    assert not names & {one.name for one in missing}
    assert "megatron-core" in {one.name for one in missing}
    assert all(one.reason for one in missing)


def test_a_named_contender_is_all_that_is_had_beside_plain_and_plans() -> None:
    found, missing = contenders("cpu", ["0.5"], ["nested", "plain", "nested"])
    assert [one.name for one in found] == ["plain", "nested", "planned-0.5"]
    assert not missing


def none(function: Callable[..., Any], *args: Any) -> None:
    function(*args)


def test_what_a_distribution_brings_is_compared_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {"mine": "impls.nested:checkpoint", "tools": "impls.graph:IMPLEMENTATION", "wrong": f"{__name__}:none"}
    monkeypatch.setattr("impls.installed", lambda: brought)
    found, _ = contenders("cpu", names=["mine"])
    assert [(one.name, one.family) for one in found] == [("plain", "plain"), ("mine", "yours")]
    for name, told in {
        "tools": "impl is 'tools', which is of kind 'graph'; what is compared is of kind 'checkpoint'",
        "wrong": "cannot be judged: checkpoint(function, x) returned None: return what the function returns",
        "nobody": "impl is 'nobody'; it must be one of .*chen-sqrt, mine, tools, wrong, or pkg.mod:attr",
    }.items():
        with pytest.raises(ValueError, match=re.escape(told) if ".*" not in told else told):
            contenders("cpu", names=[name])
