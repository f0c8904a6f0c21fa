"""What a run judges, and how."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.judging.law import PROFILES
from conformance.runs.selection import subjects


@pytest.mark.parametrize(
    ("impl", "keyword", "shrinks"),
    [([], "", True), (["plain"], "", False), (["plain"], "dropout", True), ([], "dropout", True)],
)
def test_declared_limits_are_shrunk_where_somebody_reads_them(impl: list[str], keyword: str, shrinks: bool) -> None:
    options = SimpleNamespace(
        impl=impl, like=None, peers=False, device="cpu", profile="default", seed=0, in_process=False, memory_limit=None,
        keyword=keyword,
    )  # fmt: skip
    (found,) = subjects(options, impl or ["plain"])
    assert found.setting.profile.shrink_declared is shrinks
    assert found.setting.profile.cases == PROFILES["default"].cases
    assert "profile default, seed 0" in found.declaration([])
