"""Memory of the simulated device: copies that come too early, and memory that is freed too early, bring garbage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conformance.simulated_device.device import second

SIM = second("cpu")
sim: Any = torch.get_device_module(SIM)
X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _nothing_queued() -> Iterator[None]:
    sim.forget_hazards()
    yield
    sim.forget_hazards()


@pytest.fixture
def side() -> Any:
    return sim.Stream()


def garbage(tensor: torch.Tensor) -> bool:
    """Whether all is garbage; looking does not make anybody wait."""
    raw = tensor if tensor.device.type == "cpu" else (tensor + 0).cpu()
    return bool(raw.isnan().all())


def arrived(tensor: torch.Tensor, values: torch.Tensor = X) -> bool:
    return torch.equal(tensor if tensor.device.type == "cpu" else (tensor + 0).cpu(), values)


def loaded(stream: Any, source: torch.Tensor = X) -> torch.Tensor:
    """A copy to the device that waits on a stream."""
    with sim.stream(stream):
        return source.to(SIM, non_blocking=True)


def test_a_change_before_the_copy_out_had_its_turn_shows(side: Any) -> None:
    x = X.to(SIM)
    with sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    x.mul_(10)
    side.synchronize()
    assert arrived(host, X * 10)


@pytest.mark.parametrize("waited", [False, True])
def test_a_copy_out_has_to_wait_for_the_computation(waited: bool, side: Any) -> None:
    x = X.to(SIM) * 2
    if waited:
        side.wait_stream(sim.current_stream())
    with sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    side.synchronize()
    assert arrived(host, X * 2) if waited else garbage(host)
    assert len(sim.hazards()) == (0 if waited else 1)


@pytest.mark.parametrize("waited", [False, True])
def test_a_copy_in_has_to_wait_for_memory_of_the_default_stream(waited: bool, side: Any) -> None:
    X.to(SIM).sum()
    x = torch.empty(3, device=SIM)
    if waited:
        side.wait_event(sim.current_stream().record_event())
    with sim.stream(side):
        x.copy_(X, non_blocking=True)
    side.synchronize()
    assert arrived(x) if waited else garbage(x)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_source_freed_before_its_copy_needs_record_stream(recorded: bool, side: Any) -> None:
    x = X.to(SIM) * 2
    side.wait_stream(sim.current_stream())
    with sim.stream(side):
        host = x.view(3).to("cpu", non_blocking=True)
    if recorded:
        x.record_stream(side)
    del x
    side.synchronize()
    assert arrived(host, X * 2) if recorded else garbage(host)
    assert ["record_stream" in text for text in sim.hazards()] == ([] if recorded else [True])


def test_a_source_freed_after_its_copy_needs_nothing(side: Any) -> None:
    x = X.to(SIM)
    with sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    side.synchronize()
    del x
    assert arrived(host)
    assert sim.hazards() == ()


@pytest.mark.parametrize("safe", ["", "recorded", "waited", "synchronised"])
def test_memory_of_a_side_stream_freed_while_in_use_needs_record_stream(safe: str, side: Any) -> None:
    x = loaded(side)
    side.record_event().wait()
    x.sum()
    if safe == "recorded":
        x.record_stream(sim.current_stream())
    del x
    if safe == "waited":
        side.wait_stream(sim.current_stream())
    if safe == "synchronised":
        sim.synchronize()
    y = loaded(side)  # may get the memory of x, which the sum may still read
    side.synchronize()
    assert arrived(y) if safe else garbage(y)


def test_a_host_tensor_may_die_before_its_copy(side: Any) -> None:
    x = X.to(SIM)
    with sim.stream(side):
        x.to("cpu", non_blocking=True)
    x.to("cpu", non_blocking=True)
    sim.synchronize()
    assert arrived(x)


def test_a_copy_that_cannot_be_is_refused_when_issued(side: Any) -> None:
    x = torch.zeros(2, device=SIM)
    with sim.stream(side), pytest.raises(RuntimeError, match="expanded size"):
        x.copy_(X, non_blocking=True)
    side.synchronize()
    assert arrived(x, torch.zeros(2))
