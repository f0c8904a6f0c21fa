"""Copies between the devices overlap with computation, and nothing is read before it is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from conformance.simulated_device.device import second
from impls.offload import OffloadModel
from impls.offload.transfers import Route

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads
OPTIONS: list[dict[str, Any]] = [
    {},
    {"checkpoint_activation": True},
    {"checkpoint_activation": True, "num_microbatches": 3},
]


def _layers() -> list[nn.Module]:
    torch.manual_seed(0)
    pairs = ((3, 5), (5, 4), (4, 6), (6, 2))
    return [nn.Sequential(nn.Linear(one, other), nn.Tanh(), nn.Dropout(0.2)) for one, other in pairs]


def _fail(*_: Any) -> None:
    raise ValueError("on purpose")


def _trained(model: nn.Module, place: str) -> list[torch.Tensor]:
    optimizer, results = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        y = model(torch.randn(6, 3).to(place))
        y.square().sum().backward()
        optimizer.step()
        results.append(y.detach().cpu())
    return [*results, *(value.clone() for value in model.state_dict().values())]


@pytest.mark.parametrize("options", OPTIONS[:2])
@pytest.mark.parametrize("slices", [1, 2, 5])
def test_copies_on_side_streams_do_not_race(options: dict[str, Any], slices: int) -> None:
    def layers() -> list[nn.Module]:
        return [*_layers(), nn.BatchNorm1d(2)]

    torch.get_device_module(SIM).forget_hazards()
    expected = _trained(nn.Sequential(*layers()), "cpu")
    actual = _trained(OffloadModel(layers(), SIM, num_slices=slices, **options), SIM)
    assert all(torch.equal(one, other) for one, other in zip(expected, actual, strict=True))
    assert torch.get_device_module(SIM).hazards() == ()


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_on_its_way_when_an_error_comes_is_waited_for(options: dict[str, Any]) -> None:
    torch.get_device_module(SIM).forget_hazards()
    layers = _layers()
    layers[1].register_forward_hook(_fail)
    with pytest.raises(ValueError, match="on purpose"):
        OffloadModel(layers, SIM, num_slices=4, **options)(torch.randn(6, 3))
    assert torch.get_device_module(SIM).hazards() == ()


def test_a_load_that_nobody_uses_is_waited_for() -> None:
    torch.get_device_module(SIM).forget_hazards()
    arrival = Route(torch.device(SIM, 0), torch.device("cpu")).load({"weight": torch.ones(3)})
    del arrival
    assert torch.get_device_module(SIM).hazards() == ()


@pytest.mark.parametrize("place", ["cpu", SIM])
@pytest.mark.parametrize("options", OPTIONS[:2])
def test_statistics_that_two_slices_share_are_seen_by_the_second(options: dict[str, Any], place: str) -> None:
    def layers() -> list[nn.Module]:
        torch.manual_seed(0)
        first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        second.running_mean, second.running_var = first.running_mean, first.running_var  # of which no version tells
        return [first, nn.Linear(3, 3), second]

    expected = _trained(nn.Sequential(*layers()), "cpu")
    actual = _trained(OffloadModel(layers(), place, num_slices=3, **options), place)
    assert all(torch.equal(one, other) for one, other in zip(expected, actual, strict=True))


class _Steering(nn.Linear):
    """Multiplies by the gradient of a function of its weight."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        inner = input.detach().requires_grad_()
        with torch.enable_grad():
            return input * torch.autograd.grad(super().forward(inner).sum(), inner)[0]


def test_a_backward_inside_a_slice_that_another_thread_would_recompute_is_refused() -> None:
    layer = _Steering(2, 2)
    expected = layer(torch.ones(3, 2))
    assert torch.equal(OffloadModel([layer], SIM, num_slices=1)(torch.ones(3, 2)).cpu(), expected)
    model = OffloadModel([layer], SIM, num_slices=1, checkpoint_activation=True)
    with pytest.raises(RuntimeError, match="runs backward in forward"):
        model(torch.ones(3, 2))


def test_buffers_are_there_as_soon_as_forward_is_over() -> None:
    plain, model = nn.BatchNorm1d(3), OffloadModel([nn.BatchNorm1d(3)], SIM, num_slices=1)
    x = torch.randn(6, 3)
    with torch.no_grad():
        plain(x)
        model(x.to(SIM))
    assert all(torch.equal(one, other) for one, other in zip(plain.buffers(), model.buffers(), strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_parameters_may_change_as_soon_as_forward_is_over(options: dict[str, Any]) -> None:
    model, x = OffloadModel(_layers(), SIM, num_slices=4, **options).eval(), torch.randn(6, 3)
    with torch.no_grad():
        expected = nn.Sequential(*_layers()).eval()(x)
        y = model(x.to(SIM))
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(y.cpu(), expected)


def test_gradients_and_parameters_stay_on_the_offload_device() -> None:
    model = OffloadModel(_layers(), SIM)
    model(torch.randn(6, 3)).sum().backward()
    devices = [
        (parameter.device.type, parameter.grad.device.type) for parameter in model.parameters() if parameter.grad is not None
    ]
    assert devices == [("cpu", "cpu")] * 8


def test_a_model_comes_from_another_device_with_its_parameters() -> None:
    layers = [nn.Linear(3, 3).to(SIM)]
    parameters = list(layers[0].parameters())
    model = OffloadModel(layers, SIM, num_slices=1)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert {parameter.device.type for parameter in parameters} == {"cpu"}
