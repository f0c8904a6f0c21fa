"""Saved tensors on an accelerator: gradients are plain's, and pinned copies are in order without a host that waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.simulated_device.device import Moves, second
from impls.graph import save_on_cpu, saved_on, streams
from impls.nested import checkpoint

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads


@pytest.fixture(autouse=True)
def no_hazards() -> Iterator[None]:
    """No copy races with another, or with the memory it uses."""
    module = torch.get_device_module(SIM)
    module.forget_hazards()
    yield
    assert module.hazards() == ()


def _bits(tensor: torch.Tensor) -> list[int]:
    dense: Any = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.view(torch.uint8).flatten().tolist() if dense.dim() else dense.reshape(1).view(torch.uint8).tolist()


def _network() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.Dropout(),
        torch.nn.LayerNorm(8), torch.nn.Softmax(-1), torch.nn.Linear(8, 2),
    )  # fmt: skip
    return network.to(SIM), torch.randn(2, 1, 6, 6).to(SIM)


def _gradients(network: torch.nn.Module, x: torch.Tensor, context: Any, regions: bool = False) -> list[list[int]]:
    network.zero_grad()
    torch.manual_seed(1)
    with context:
        y = checkpoint(network, x) if regions else network(x)
        loss = y.square().sum()
    loss.backward()
    return [_bits(parameter.grad) for parameter in network.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("regions", [False, True])
def test_gradients_of_a_network_are_plain_bit_for_bit(pin: bool, regions: bool) -> None:
    network, x = _network()
    plain = _gradients(network, x, Moves())
    assert len(plain) == 8
    assert _gradients(network, x, save_on_cpu(pin, SIM), regions) == plain
    assert _gradients(network, x, saved_on("cpu", pin_memory=pin, min_bytes=100), regions) == plain


class _Blocking(TorchDispatchMode):
    """Notes copies between devices that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device and not (kwargs or {}).get("non_blocking"):
            waits = len(args) < 3 or not args[2]
            self.seen.extend([func] if waits else [])
        self.seen.extend([func] if func is torch.ops.aten._to_copy.default else [])
        return result


def test_pinned_copies_are_ordered_without_a_host_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = _network()
    waits: list[Any] = []
    module = torch.get_device_module(SIM)
    monkeypatch.setattr(module.Event, "query", lambda _: False)  # the simulated one makes it true by waiting
    for owner in (module.Event, module.Stream, module):
        monkeypatch.setattr(owner, "synchronize", lambda *args: waits.append(args))
    with _Blocking() as blocking:
        with save_on_cpu(True, SIM):
            loss = network(x).square().sum()
        loss.backward()
    assert waits == blocking.seen == []
    with _Blocking() as blocking, save_on_cpu(False, SIM):
        network(x)
    assert len(blocking.seen) > 3


def test_work_on_a_stream_of_the_users_own_is_waited_for() -> None:
    module = torch.get_device_module(SIM)
    x = torch.ones(3, requires_grad=True, device=SIM)
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        with save_on_cpu(True, SIM):
            y = (x * 2).exp().square().sum()
        (g,) = torch.autograd.grad(y, x)
    module.synchronize()
    assert g.tolist() == (4 * torch.full((3,), 2.0).exp() ** 2).tolist()


def test_a_graph_that_is_dropped_leaves_no_memory_once_its_copies_are_over() -> None:
    x = torch.ones(300, requires_grad=True, device=SIM)
    with save_on_cpu(True, SIM):
        y = x.exp().sin()
    del y
    torch.get_device_module(SIM).synchronize()
    streams.release_finished()
    assert streams._in_flight == []


def test_a_host_buffer_outlives_its_graph_until_the_copy_is_over() -> None:
    class Event:
        over = False

        def query(self) -> bool:
            return self.over

    event, buffer = Event(), torch.ones(3)
    streams.keep_until(event, buffer)
    streams.release_finished()
    assert any(kept is buffer for _, kept in streams._in_flight)
    event.over = True
    streams.release_finished()
    assert streams._in_flight == []


def test_saved_tensors_can_be_unpacked_again_and_differentiated() -> None:
    x = torch.ones(3, requires_grad=True, device=SIM)
    with save_on_cpu(True, SIM):
        y = (x * x * x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
    for _ in range(2):
        (gg,) = torch.autograd.grad(g.sum(), x, retain_graph=True)
        assert gg.tolist() == [6.0] * 3


def test_memory_is_pinned_for_the_named_accelerator_alone() -> None:
    context = save_on_cpu(True, "cuda")
    mover: Any = context.pack_hook.__self__  # type: ignore[attr-defined]
    moved = mover.pack(torch.ones(3).to(SIM))
    assert moved.events == ()
    assert len(save_on_cpu(True, SIM).pack_hook(torch.ones(3).to(SIM)).events) == 1
