"""What may be left out of a run that is published."""

from __future__ import annotations

import pytest
import torch

from conformance.rows import torch_releases
from conformance.runs.selection import missing_when_published


@pytest.fixture(params=["pinned", "another"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which release of torch is installed: the pinned one, or another."""
    version = torch_releases.pinned() if request.param == "pinned" else "2.99.0"
    monkeypatch.setattr(torch, "__version__", f"{version}+cpu")
    return str(request.param)


def test_native_may_be_missing_with_another_release_of_torch(release: str) -> None:
    expected = "native left out, as told above" if release == "pinned" else ""
    assert missing_when_published({"native": "no compiler"}, "cpu") == expected


def test_a_peer_may_be_missing_where_it_does_not_run(release: str) -> None:
    assert missing_when_published({"fairscale-offload": "no device"}, "cpu") == ""
    assert (
        missing_when_published(dict.fromkeys(("fairscale", "torch-remat"), "not installed"), "cpu")
        == "fairscale and torch-remat left out, as told above"
    )
