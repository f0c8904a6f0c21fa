"""What Python code raises in a backward of the simulated device comes out of that backward, and nothing of it stays.

Without the guard of ``conformance.simulated_device.backward_errors`` the first of these tests ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import impls
from conformance.simulated_device import backward_errors
from conformance.simulated_device.device import second

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads


class Told(Exception):
    """An error of somebody's own."""


def _raise(*_: object) -> Any:
    raise Told


def _unpacking(p: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, _raise):
        return p.sin()


def _hooked(register: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(p: torch.Tensor) -> torch.Tensor:
        y = p.sin()
        register(p, y)
        return y

    return make


def _node(result: torch.Tensor) -> Any:
    assert result.grad_fn is not None
    return result.grad_fn


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an unpack hook": _unpacking,
    "a hook of a tensor": _hooked(lambda p, y: y.register_hook(_raise)),
    "a hook before a node": _hooked(lambda p, y: _node(y).register_prehook(_raise)),
    "a hook after a node": _hooked(lambda p, y: _node(y).register_hook(_raise)),
    "a hook of a leaf's gradient": _hooked(lambda p, y: p.register_post_accumulate_grad_hook(_raise)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("threads", [True, False], ids=["on the device's thread", "on the caller's thread"])
def test_an_error_comes_out_of_its_backward(place: str, threads: bool) -> None:
    p = torch.ones(2, device=SIM, requires_grad=True)
    with torch.autograd.set_multithreading_enabled(threads), pytest.raises(Told):
        PLACES[place](p).sum().backward()
    assert backward_errors._taken == []
    q = torch.ones(2, device=SIM, requires_grad=True)
    q.sin().sum().backward()
    assert q.grad is not None
    assert torch.equal(q.grad.cpu(), torch.ones(2).cos())


def _product_in_another_dtype(name: str, again: torch.dtype) -> None:
    p, calls = torch.ones(2, 2, device=SIM, requires_grad=True), list[None]()

    def function(h: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        dtype = torch.float32 if len(calls) == 1 else again
        return (h.to(dtype) @ p.to(dtype)).sin()

    impls.get(name).checkpoint(function, p * 1).float().sum().backward()


@pytest.mark.parametrize("name", ["nested", "torch-nonreentrant"])
def test_a_recomputation_in_another_dtype_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"differs from forward|different metadata") as caught:
        _product_in_another_dtype(name, torch.bfloat16)
    assert type(caught.value).__name__ == "CheckpointError"


def test_an_error_in_a_backward_inside_another_comes_out_of_both() -> None:
    def function(h: torch.Tensor) -> torch.Tensor:
        return _hooked(lambda _, y: y.register_hook(_raise) if y.requires_grad else None)(h) * 2

    y = impls.get("reentrant").checkpoint(function, torch.ones(2, device=SIM, requires_grad=True))
    with pytest.raises(Told):
        y.sum().backward()
    assert backward_errors._taken == []


def test_a_system_error_of_somebody_is_itself() -> None:
    y = torch.ones(2, device=SIM, requires_grad=True).sin().sum()
    y.register_hook(lambda grad: (_ for _ in ()).throw(SystemError("own")))
    with pytest.raises(SystemError, match="own"):
        y.backward()
