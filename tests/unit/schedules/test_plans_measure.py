"""Measured stages are what the layers were made to cost, and a plan made from them keeps within its budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from impls.schedules import Infeasible, Plan, Stage, checkpoint_sequential, interpret, kept, least_memory, measure, plan_for
from tests.support.plan_chains import UNIT_BYTES, Layer, Peak, Seed, chains, no_collector, run

SIZES = ("output", "saved", "gradient", "keeping_extra", "passing_extra", "backward_extra")


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))


def model(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Linear(8, width), *(block(width) for _ in range(3)), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 4)]
    return nn.Sequential(*parts)


@settings(max_examples=25, deadline=None)
@given(chains())
def test_measured_sizes_are_those_that_the_layers_were_made_with(chain: tuple[Stage, ...]) -> None:
    found: list[tuple[Stage, ...]] = []

    def execute(layers: list[Layer], x: torch.Tensor) -> torch.Tensor:
        found.append(measure(layers, x))
        return checkpoint_sequential(layers, kept(0, len(layers)), x)

    run(chain, execute)
    for stage, measured in zip(chain, found[0], strict=True):
        assert measured.needs_input == stage.needs_input
        for name in SIZES:
            assert getattr(measured, name) // UNIT_BYTES == getattr(stage, name), name  # sums are scalars below a unit
        assert measured.stops_early == stage.stops_early
        assert measured.needs_output == stage.needs_output


def test_a_measurement_leaves_model_generators_and_gradients_as_they_were() -> None:
    net, x = model(), torch.randn(16, 8)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    chain = measure(net, x, repeats=2)
    assert all(stage.forward > 0 and stage.backward > 0 for stage in chain)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def sizes(stage: Stage) -> Stage:
    return dataclasses.replace(stage, forward=0, backward=0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_on_fake_tensors_sizes_are_the_same_and_times_are_flops(requires_grad: bool) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4), nn.Tanh())

    real = measure(net(), torch.randn(16, 8, requires_grad=requires_grad))
    with FakeTensorMode():
        fake = measure(net(), torch.randn(16, 8, requires_grad=requires_grad))
    assert [sizes(stage) for stage in real] == [sizes(stage) for stage in fake]
    products = 2 * 16 * 8 * 32, 2 * 16 * 32 * 4
    assert [stage.forward for stage in fake] == [products[0], 0, products[1], 0]
    assert [stage.backward for stage in fake] == [products[0] * (1 + requires_grad), 0, 2 * products[1], 0]


def test_on_meta_tensors_nothing_is_computed() -> None:
    net = nn.Sequential(nn.Linear(4096, 4096, device="meta"), nn.ReLU())
    linear, relu = measure(net, torch.empty(10**6, 4096, device="meta"))
    assert linear.output == relu.output == 4096 * 10**6 * 4
    assert linear.forward == 2 * 10**6 * 4096**2


def test_what_the_output_keeps_alive_is_told_from_what_backward_reads() -> None:
    x = torch.ones(256, requires_grad=True)
    sine, tanh, shift, view = measure([torch.sin, torch.tanh, lambda x: x + 1, lambda x: x.view(16, 16)], x)
    assert (sine.saved, sine.needs_output, sine.stops_early) == (1024, False, True)
    assert (tanh.saved, tanh.needs_output, tanh.stops_early) == (1024, True, False)
    assert (shift.saved, shift.needs_output, shift.stops_early) == (1024, False, False)
    assert (view.output, view.saved, view.needs_output) == (1024, 1024, False)
    assert [stage.needs_input for stage in (sine, tanh, shift, view)] == [True, False, False, False]


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "ReLU": lambda: [nn.Linear(32, 32), nn.ReLU()],
    "dropout": lambda: [nn.Linear(32, 32), nn.Dropout(0.3), nn.GELU()],
    "batch norm": lambda: [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh()],
    "softmax": lambda: [nn.Linear(32, 32), nn.Softmax(-1)],
}


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_input_that_no_backward_reads_is_not_counted(layers: str, dtype: torch.dtype) -> None:
    net = nn.Sequential(*(layer for _ in range(4) for layer in LAYERS[layers]())).to(dtype)
    x = torch.randn(256, 32, dtype=dtype)
    everything = kept(0, len(net))
    peak, _ = trained(net, everything, x)
    assert peak == interpret(everything, measure(net, x)).peak
    assert plan_for(net, x, peak) == everything
    for budget in (peak - 1, 2 * peak // 3):
        assert trained(net, plan_for(net, x, budget), x)[0] <= budget


def trained(net: nn.Sequential, plan: Plan, x: torch.Tensor) -> tuple[int, list[torch.Tensor]]:
    """The chain's peak in bytes, with gradients there before, and the gradients."""

    class Bytes(Peak):
        def units(self) -> int:
            return sum(made.bytes for made in self.living())

    torch.manual_seed(1)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tensors = [x, *net.parameters(), *(p.grad for p in net.parameters() if p.grad is not None), *net.buffers()]
    with no_collector(), Bytes(*tensors) as meter:
        assert isinstance(meter, Bytes)
        loss = Seed.apply(checkpoint_sequential(net, plan, x))
        loss.backward()
    chain_alone = meter.peak - 2 * loss.nbytes  # the loss and its gradient are there until the end
    return chain_alone, [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("percent", [0, 10, 30, 60, 100])
def test_a_model_trains_within_the_budget_that_it_was_planned_for(percent: int) -> None:
    net, x = model(), torch.randn(256, 8)
    chain = measure(net, x)
    everything = kept(0, len(chain))
    least, most = interpret(least_memory(chain), chain).peak, interpret(everything, chain).peak
    budget = least + (most - least) * percent // 100
    plain_peak, plain = trained(net, everything, x)
    plain = [gradient.clone() for gradient in plain]
    peak, gradients = trained(net, plan_for(net, x, budget), x)
    assert peak <= budget
    assert plain_peak > budget or percent == 100
    assert all(torch.equal(one, other) for one, other in zip(gradients, plain, strict=True))


def test_a_budget_that_cannot_be_met_says_the_least_that_can() -> None:
    net, x = model(), torch.randn(64, 8)
    with pytest.raises(Infeasible, match=r"budget_bytes is 100; .* needs is \d+ bytes, and it needs \d+ without") as raised:
        plan_for(net, x, 100)
    least = int(str(raised.value).split("needs is ")[1].split(" ")[0])
    with pytest.raises(ValueError, match=f"budget_bytes is {least - 1}"):
        plan_for(net, x, least - 1)
    assert interpret(plan_for(net, x, least), measure(net, x)).peak == least


def test_a_stage_that_changes_its_input_is_refused_and_the_example_is_unchanged() -> None:
    x = torch.linspace(-1, 1, 8)
    for requires_grad in (False, True):
        example = x.clone().requires_grad_(requires_grad)
        with pytest.raises(ValueError, match=r"functions\[0\] changes its input in place"):
            measure([nn.ReLU(inplace=True)], example)
        assert torch.equal(example.detach(), x)
    with pytest.raises(ValueError, match=r"functions\[1\] changes its input in place"):
        measure(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), x)


def test_real_parameters_on_a_fake_example_are_refused() -> None:
    linear = nn.Linear(8, 8)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(TypeError, match=r"functions\[0\] has a weight that is real"),
    ):
        measure([linear], torch.empty(2, 8))


@pytest.mark.parametrize(("of_module", "of_example"), [("meta", "cpu"), ("cpu", "meta")])
def test_a_module_on_another_device_than_the_example_is_refused(of_module: str, of_example: str) -> None:
    kinds = {"cpu": "real", "meta": "meta"}
    with pytest.raises(
        TypeError, match=rf"functions\[0\] has a weight that is {kinds[of_module]}, and example is {kinds[of_example]}"
    ):
        measure([nn.Linear(8, 8, device=of_module)], torch.empty(2, 8, device=of_example))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: measure(torch.sin, x), "functions is of type builtin"),
        (lambda x: measure([torch.sin, 1], x), r"functions\[1\] is 1"),
        (lambda x: measure([torch.sin], x, repeats=1.0), "repeats is 1.0"),  # type: ignore[arg-type]
        (lambda x: plan_for(nn.Linear(2, 2), x, 100), "model is of type Linear"),
        (lambda x: plan_for([torch.sin], x, 1e9), "budget_bytes is 1000000000.0"),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_type_are_named(call: Callable[[torch.Tensor], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(torch.ones(2))


def test_a_chain_without_gradients_is_measured_too() -> None:
    (stage,) = measure([torch.sin], torch.ones(256))
    assert (stage.output, stage.saved, stage.gradient, stage.backward_extra) == (1024, 1024, 0, 0)
