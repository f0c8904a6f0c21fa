"""What stands between autograd and native's hooks in C++, which are asked without the GIL."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from impls import nested
from impls.native import NativeUnavailableError, checkpoint
from impls.native.region import require_extension
from impls.torch_private import top_hooks


@pytest.fixture(autouse=True, scope="module")
def _extension() -> None:
    try:
        require_extension()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def _leaf() -> torch.Tensor:
    return torch.linspace(0.25, 1, 4).requires_grad_()


def test_a_saved_tensor_is_a_slot_for_python() -> None:
    y: Any = checkpoint(lambda x: x.sin().exp(), _leaf())
    first, second = y.grad_fn._raw_saved_result.data, y.grad_fn.next_functions[0][0]._raw_saved_self.data
    assert [type(one).__name__ for one in (first, second)] == ["Slot", "Slot"]
    assert (first.index, second.index) == (1, 0)
    assert first.region is second.region
    assert first.region.unpack(first).equal(y)


def test_a_slot_keeps_a_tensor_wanted_that_the_graph_has_cleared() -> None:
    x = _leaf()
    y: Any = checkpoint(lambda x: x.sin(), x)
    slot = y.grad_fn._raw_saved_self.data
    y.sum().backward()
    assert slot.region.unpack(slot).equal(x)


def test_hooks_that_are_called_from_python_do_the_same() -> None:
    packed: list[Any] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        hooks = top_hooks(True)
        assert hooks is not None
        packed.append(hooks[0](y))
        return y.exp()

    x = _leaf()
    y = checkpoint(function, x)
    slot = packed[0]
    assert slot.region.unpack(slot).equal(x.sin())
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(x.sin().exp() * x.cos())


def test_a_thread_of_torchscript_saves_in_the_region_around_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(_forking)
    x = _leaf()
    checkpoint(scripted, x).sum().backward()
    found = x.grad
    x.grad = None
    scripted(x).sum().backward()
    assert found is not None
    assert x.grad is not None
    assert found.equal(x.grad)


def _forking(x: torch.Tensor) -> torch.Tensor:
    future = torch.jit.fork(torch.sin, x)
    y = x.cos()
    return torch.jit.wait(future) * y


def test_hooks_of_the_user_are_asked_where_no_region_is() -> None:
    checkpoint(lambda x: x.sin(), _leaf()).sum().backward()
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    x = _leaf()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one * 2):
        y = x.square()
    y.sum().backward()
    assert [one is x for one in seen] == [True]
    assert x.grad is not None
    assert x.grad.equal(4 * x)


def test_anomaly_mode_still_tells_where_forward_was() -> None:
    checkpoint(lambda x: x.sin(), _leaf()).sum().backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
            (_leaf() * float("nan")).sqrt().sum().backward()
    assert any("Traceback of forward call" in str(one.message) for one in told)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_second_normal_number_of_a_pair_is_replayed(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.randn(3, dtype=dtype).sum()).sin()

    def run(implementation: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        before = torch.randn((), dtype=dtype)  # the generator keeps the other one of its pair
        x = _leaf()
        y = implementation(function, x)
        between = torch.randn(3, dtype=dtype)
        y.sum().backward()
        assert x.grad is not None
        return [before, y.detach(), between, x.grad, torch.randn((), dtype=dtype), torch.get_rng_state()]

    expected = run(lambda function, x: function(x))
    for implementation in (checkpoint, nested.checkpoint):
        assert all(one.equal(other) for one, other in zip(run(implementation), expected, strict=True))


def test_a_generator_state_is_that_which_torch_gives() -> None:
    torch.manual_seed(5)
    torch.randn(())
    state, slots = torch.get_rng_state(), list[Any]()

    def function(x: torch.Tensor) -> torch.Tensor:
        hooks = top_hooks(True)
        assert hooks is not None
        slots.append(hooks[0](x))
        return x.sin()

    checkpoint(function, _leaf())
    ((generator, found),) = slots[0].region.states
    assert generator is torch.default_generator
    assert found.equal(state)


def test_an_argument_whose_slots_are_cleared_may_get_other_data() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(w.square().sum(), w)  # its graph is gone then, and with it what it saved
        return (x.sin() * gradient).exp()

    x, w = _leaf(), _leaf()
    y = checkpoint(function, x, w)
    w.data = w.data.clone()
    y.sum().backward()
    assert x.grad is not None
    expected = _leaf()
    function(expected, w).sum().backward()
    assert expected.grad is not None
    assert x.grad.equal(expected.grad)
