"""Device types are inferred and generators' states saved, for whatever accelerator torch has a module for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from impls import reentrant
from impls.state.devices import DefaultDeviceType, get_device_states, infer_device_type, set_device_states


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a device that this machine need not have."""

    def __new__(cls, device: str) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(cls, (2,), device=torch.device(device))

    @classmethod
    def __torch_dispatch__(cls, *args: Any) -> Any:
        raise AssertionError("nothing computes with it")


class Machine:
    """The device module of a type with several devices, the states of whose generators are numbers."""

    def __init__(self, *states: int) -> None:
        self.states, self.current = [torch.tensor(state) for state in states], 0

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def get_rng_state(self) -> torch.Tensor:
        return self.states[self.current]

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.states[self.current] = state


@pytest.fixture(autouse=True)
def default_type() -> Iterator[None]:
    before = DefaultDeviceType._chosen
    yield
    DefaultDeviceType._chosen = before


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(10, 11, 12)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: made)
    return made


def test_the_default_type_is_the_accelerator_until_another_is_chosen() -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=False)
    assert DefaultDeviceType.get_device_type() == ("cuda" if accelerator is None else accelerator.type)
    DefaultDeviceType.set_device_type("xpu")
    assert reentrant.DefaultDeviceType.get_device_type() == "xpu"
    assert infer_device_type(torch.ones(1), 3) == "xpu"


@pytest.mark.parametrize(("device", "error"), [("toaster", ValueError), ("cuda:1", ValueError), (None, TypeError)])
def test_what_is_no_device_type_is_refused(device: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="device is"):
        DefaultDeviceType.set_device_type(device)


def test_the_type_is_inferred_from_tensors_at_any_depth() -> None:
    assert infer_device_type(torch.ones(1), {"x": [SimpleNamespace(), (Elsewhere("xpu:1"),)]}) == "xpu"
    assert infer_device_type(torch.ones(1, device="meta")) == DefaultDeviceType.get_device_type()


@pytest.mark.parametrize(("default", "kind"), [("mps", "xpu"), ("cuda", "cuda")])
def test_several_types_are_warned_of(default: str, kind: str) -> None:
    DefaultDeviceType.set_device_type(default)
    with pytest.warns(UserWarning, match="several types, xpu, cuda"):
        assert infer_device_type(Elsewhere("xpu:0"), Elsewhere("cuda:0")) == kind
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infer_device_type(Elsewhere("xpu:0"), torch.ones(1), Elsewhere("xpu:1"))


def test_the_state_of_every_device_among_the_arguments_is_saved(machine: Machine) -> None:
    devices, states = get_device_states(Elsewhere("xpu:2"), torch.ones(1), [Elsewhere("xpu:0"), Elsewhere("xpu:2")])
    assert devices == [0, 2]
    assert [state.item() for state in states] == [10, 12]
    assert get_device_states(torch.ones(1)) == ([], [])


def test_states_are_set_where_they_were_taken(machine: Machine) -> None:
    set_device_states([0, 2], [torch.tensor(1), torch.tensor(2)], device_type="xpu")
    assert [state.item() for state in machine.states] == [1, 11, 2]
    with pytest.raises(ValueError, match="states has 0 entries"):
        set_device_states([0], [])


@pytest.mark.parametrize("error", [None, ValueError])
def test_device_streams_are_replayed_and_put_back(machine: Machine, error: type[Exception] | None) -> None:
    seen = []

    def function(h: torch.Tensor, other: Any) -> torch.Tensor:
        seen.append([state.item() for state in machine.states])
        machine.states[1] = machine.states[1] + 5
        if error is not None and len(seen) == 2:
            raise error
        return h.sin()

    y = reentrant.checkpoint(function, torch.ones(2, requires_grad=True), [Elsewhere("xpu:1")])
    machine.states = [torch.tensor(state) for state in (20, 21, 22)]
    try:
        y.sum().backward()
    except ValueError:
        assert error is ValueError
    assert seen == [[10, 11, 12], [20, 11, 22]]
    assert [state.item() for state in machine.states] == [20, 21, 22]
