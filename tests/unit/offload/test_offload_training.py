"""OffloadModel computes what the plain model computes, to the last bit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from impls import nested
from impls.offload import OffloadModel

Tensors = list[torch.Tensor]
MODES = list(itertools.product((1, 3, 7), (False, True)))


class First(nn.Module):
    """The first of several values, with one of them changed in place."""

    def forward(self, values: tuple[torch.Tensor, Any]) -> torch.Tensor:
        return (values[0] + 0.1).relu_()


def _model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(9, 8),
        nn.Dropout(0.3),
        nn.LSTM(8, 8, batch_first=True),
        First(),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.Linear(8, 1),
    )


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # everything here is small
    yield
    torch.set_num_threads(before)


def _equal(one: Tensors, other: Tensors) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _both(drive: Callable[[nn.Module], Tensors], slices: int, checkpoint: bool, build: Any = _model) -> bool:
    """Whether the plain model and the offloaded one give the same."""
    results = []
    for wrap in (lambda m: m, lambda m: OffloadModel(m, "cpu", num_slices=slices, checkpoint_activation=checkpoint)):
        model = wrap(build())
        torch.manual_seed(1)
        results.append([*drive(model), *model.state_dict().values(), torch.rand(2)])
    return _equal(*results)


def _grads(model: nn.Module) -> Tensors:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _letters() -> torch.Tensor:
    return torch.randint(9, (3, 4))


def _train(model: nn.Module) -> Tensors:
    optimizer, seen = torch.optim.Adam(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(_letters()).square().sum()
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), torch.rand(1), *_grads(model)]
    return seen


def _twice_differentiated(model: nn.Module) -> Tensors:
    parameters = list(model.parameters())
    first = torch.autograd.grad(model(_letters()).sin().sum(), parameters, create_graph=True)
    torch.stack([grad.square().sum() for grad in first]).sum().backward()
    return [grad.detach() for grad in first] + _grads(model)


def _several_forwards(model: nn.Module) -> Tensors:
    one, other = model(_letters()), model(_letters())
    one.square().sum().backward(retain_graph=True)
    other.sin().sum().backward()
    one.sum().backward()
    return _grads(model)


def _some(model: nn.Module) -> Tensors:
    parameters, y = list(model.parameters()), model(_letters()).square().sum()
    seen = list(torch.autograd.grad(y, parameters[-3:], retain_graph=True))
    y.backward(inputs=parameters[:2], retain_graph=True)
    return [*seen, *_grads(model), *torch.autograd.grad(y, parameters)]


def _evaluated(model: nn.Module) -> Tensors:
    seen = []
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            seen.append(model.eval()(_letters()).clone())
    model.train()(_letters()).sum().backward()
    return [tensor.detach() for tensor in seen] + _grads(model)


def _under_hooks(model: nn.Module) -> Tensors:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y = model(_letters())
    y.square().sum().backward()
    return _grads(model)


def _under_autocast(model: nn.Module) -> Tensors:
    with torch.autocast("cpu", torch.bfloat16):
        y = model(_letters())
    y.float().square().sum().backward()
    return _grads(model)


DRIVES = [_train, _twice_differentiated, _several_forwards, _some, _evaluated, _under_hooks]


@pytest.mark.parametrize(("slices", "checkpoint"), MODES)
@pytest.mark.parametrize("drive", DRIVES)
def test_what_plain_computes_is_computed(drive: Callable[[nn.Module], Tensors], slices: int, checkpoint: bool) -> None:
    assert _both(drive, slices, checkpoint)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("slices", [1, 3, 5])
def test_what_plain_computes_under_autocast_is_computed(slices: int, checkpoint: bool) -> None:
    def without_lstm() -> nn.Sequential:  # of which oneDNN has none in bfloat16 for processors without AVX-512
        return nn.Sequential(*(one for one in _model() if not isinstance(one, nn.LSTM | First)))

    assert _both(_under_autocast, slices, checkpoint, without_lstm)


@pytest.mark.parametrize(("slices", "checkpoint"), MODES)
def test_a_model_may_be_a_region_of_another_checkpoint(slices: int, checkpoint: bool) -> None:
    def drive(model: nn.Module) -> Tensors:
        nested.checkpoint(model, torch.randn(3, 4)).square().sum().backward()
        return _grads(model)

    assert _both(drive, min(slices, 4), checkpoint, _mlp)


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 4))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_input_gets_its_gradient_and_is_changed_as_by_plain(checkpoint: bool) -> None:
    seen: list[torch.Tensor] = []

    def drive(model: nn.Module) -> Tensors:
        x = torch.randn(3, 4, requires_grad=True)
        y = x * 2
        model(y).square().sum().backward()
        seen.append(y.detach())
        assert x.grad is not None
        return [x.grad, y.detach()]

    assert _both(drive, 2, checkpoint, lambda: nn.Sequential(nn.ReLU(inplace=True), *_mlp()))
    assert (seen[1] >= 0).all()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_slice_changed_in_place_may_be_saved_by_the_next(checkpoint: bool) -> None:
    def drive(model: nn.Module) -> Tensors:
        model(torch.randn(3, 4)).square().sum().backward()
        return _grads(model)

    assert _both(drive, 2, checkpoint, lambda: _seeded(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)))


def _seeded(*modules: nn.Module) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return nn.Sequential(*modules)


class _Mixing(nn.Module):
    def forward(self, *tensors: torch.Tensor, scale: float = 1.0, more: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        return tensors[0] + tensors[1], {"scale": scale, "more": more["deep"][0]}


class _Mixed(nn.Linear):
    def forward(self, input: Any) -> torch.Tensor:
        return super().forward(input[0] * input[1]["more"]) * input[1]["scale"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_first_module_gets_all_arguments(checkpoint: bool) -> None:
    mixing, mixed = _Mixing(), _Mixed(4, 4)
    x, deep = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(mixed(mixing(x, x, scale=0.5, more={"deep": [deep]})).sum(), [x, deep, mixed.weight])
    model = OffloadModel([mixing, mixed], "cpu", num_slices=2, checkpoint_activation=checkpoint)
    y = model(x, x, scale=0.5, more={"deep": [deep]}).sum()
    assert _equal(list(torch.autograd.grad(y, [x, deep, mixed.weight])), list(expected))


def _thrice(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return (inputs[0] * 3,)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_hooks_on_modules_and_parameters_have_their_effect(checkpoint: bool) -> None:
    def drive(model: nn.Module) -> Tensors:
        calls: list[str] = []
        children = list(model.children())
        children[0].register_forward_hook(lambda module, args, output: output * 2)
        children[3].register_full_backward_hook(_thrice)
        parameters = list(model.parameters())
        parameters[0].register_hook(lambda grad: grad * 5)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
        model(torch.randn(3, 4)).sum().backward()
        assert len(calls) == len(parameters)
        return _grads(model)

    assert _both(drive, 3, checkpoint, _mlp)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_parameter_of_two_slices_gets_one_gradient(checkpoint: bool) -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    def drive(model: nn.Module) -> Tensors:
        model(torch.randn(3, 4)).square().sum().backward()
        return _grads(model)

    assert _both(drive, 3, checkpoint, build)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_frozen_module_and_one_that_is_not_used_get_no_gradient(checkpoint: bool) -> None:
    class Idle(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input + 1

    frozen, idle = nn.Linear(4, 4).requires_grad_(False), Idle(4, 4)
    model = OffloadModel([nn.Linear(4, 4), frozen, idle], "cpu", checkpoint_activation=checkpoint)
    model(torch.randn(3, 4)).sum().backward()
    assert [parameter.grad is None for parameter in model.parameters()] == [False, False, True, True, True, True]


class Slope(nn.Linear):
    """Returns how a function of its weight rises, in any grad mode."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = super().forward(input).sin().sum()
            return torch.autograd.grad(y, self.weight, create_graph=True)[0] + input


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_module_may_run_backward_inside(checkpoint: bool, grad: bool) -> None:
    def drive(model: nn.Module) -> Tensors:
        with torch.set_grad_enabled(grad):
            y = model(torch.randn(4, 4))
        if grad:
            y.square().sum().backward()
        return [y.detach(), *_grads(model)]

    assert _both(drive, 3, checkpoint, lambda: _seeded(nn.Linear(4, 4), Slope(4, 4), nn.Tanh()))


def test_another_thread_may_go_through_the_input_meanwhile() -> None:
    x = torch.ones(1, 2, requires_grad=True)
    h = x * 2

    class Waiting(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=lambda: h.sum().backward(retain_graph=True))
            thread.start()
            thread.join()
            return super().forward(input)

    y = OffloadModel([Waiting(2, 2)], "cpu", num_slices=1, checkpoint_activation=True)(h)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((1, 2), 2.0))
    assert y.requires_grad
