"""The simulated device under autograd: layers and optimisers learn what they learn on the CPU; moves are counted."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.simulated_device.device import Move, Moves, second

SIM = second("cpu")


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Linear(4, 4), numbers(3, 4)),
    "normalised": (lambda: nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Dropout(), nn.BatchNorm1d(4)), numbers(3, 4)),
    "embedding": (lambda: nn.Embedding(9, 4), torch.tensor([[1, 2], [3, 3]])),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.GroupNorm(2, 4)), numbers(2, 3, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3), numbers(2, 3, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16), numbers(3, 2, 8)),
}


def _gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    out = module(x)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_learn_as_on_the_cpu(name: str) -> None:
    make, x = LAYERS[name]
    torch.manual_seed(0)
    module = make()
    pairs = zip(_gradients(module, x), _gradients(copy.deepcopy(module).to(SIM), x.to(SIM)), strict=True)
    assert all(torch.equal(one, other.cpu()) and one.any() for one, other in pairs)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_learn_nearly_as_on_the_cpu(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = make(4, 5).double(), numbers(3, 2, 4, dtype=torch.double)
    pairs = zip(_gradients(module, x), _gradients(copy.deepcopy(module).to(SIM), x.to(SIM)), strict=True)
    assert all(torch.allclose(one, other.cpu(), rtol=1e-12) and one.any() for one, other in pairs)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_recurrent_layers_have_second_derivatives(make: Callable[..., nn.Module]) -> None:
    module = make(2, 2).double().to(SIM)
    x = numbers(2, 1, 2, dtype=torch.double).to(SIM).requires_grad_()
    first = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)[0]
    found = torch.autograd.grad(first.sum(), x)[0].cpu()
    module.cpu()
    y = x.detach().cpu().requires_grad_()
    first = torch.autograd.grad(module(y)[0].square().sum(), y, create_graph=True)[0]
    assert torch.allclose(found, torch.autograd.grad(first.sum(), y)[0])


OPTIMISERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    lambda p: torch.optim.Adam(p, foreach=False),
    lambda p: torch.optim.Adam(p, foreach=True),
    lambda p: torch.optim.AdamW(p),
]


@pytest.mark.parametrize("make", OPTIMISERS)
def test_optimisers_step_as_on_the_cpu(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    here = nn.Linear(4, 4)
    there = copy.deepcopy(here).to(SIM)
    for module, x in ((here, numbers(3, 4)), (there, numbers(3, 4).to(SIM))):
        optimiser = make(module.parameters())
        for _ in range(3):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), torch.tensor([0, 1, 2], device=x.device)).backward()
            optimiser.step()
    assert torch.equal(here.weight, there.weight.cpu())


def test_second_derivatives_pass_between_devices() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (first,) = torch.autograd.grad((x.to(SIM) ** 3).sum().cpu(), x, create_graph=True)
    first.sum().backward()
    assert (first.device.type, x.grad.tolist()) == ("cpu", [12, 18])  # type: ignore[union-attr]


def test_another_thread_can_run_backward() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    loss = (x.to(SIM) ** 2).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert x.grad is not None
    assert x.grad.tolist() == [4, 6]


def test_saved_tensors_can_be_moved_to_the_cpu() -> None:
    x = numbers(3, 4).to(SIM).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        loss = x.sin().exp().sum()
    loss.backward()
    y = numbers(3, 4).requires_grad_()
    y.sin().exp().sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    assert torch.equal(y.grad, x.grad.cpu())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_replays_random_numbers(use_reentrant: bool) -> None:
    gradients = []
    for around in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=use_reentrant)):
        x = numbers(3, 4).to(SIM).requires_grad_()
        torch.manual_seed(3)
        around(lambda x: nn.functional.dropout(x).sin(), x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_modes_around_do_not_see_what_the_cpu_does_for_the_device() -> None:
    x, y = torch.empty(3, 4, device=SIM), numbers(3, 4)
    with torch.device(SIM), Moves() as moves, torch.inference_mode():
        assert (torch.zeros(2).device.type, (x + x).device.type) == (SIM, SIM)
        x.copy_(y)
    assert moves.seen == [Move("cpu→sim", 48, (3, 4))]


def test_moves_are_seen_forward_and_backward() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    with Moves() as moves:
        x.to(SIM).sin().to("cpu", torch.float64).sum().backward()
    assert [(move.kind, move.bytes) for move in moves.seen] == [
        ("cpu→sim", 48),
        ("sim→cpu", 96),
        ("cpu→sim", 48),
        ("sim→cpu", 48),
    ]
    assert moves.totals == {"cpu→sim": 96, "sim→cpu": 144}


def test_what_stays_is_no_move() -> None:
    with Moves() as moves:
        torch.ones(2).to(torch.float64)
        torch.ones(2, device=SIM).clone().to(torch.float64).copy_(torch.ones(2, device=SIM))
        torch.ones(2).copy_(torch.zeros(2))
    assert moves.seen == []
