"""What is native's own: slots, versions and recomputations in C++."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from impls import nested
from impls.native import CheckpointError, NativeUnavailableError, checkpoint
from impls.native.region import require_extension
from impls.state.process_lock import PROCESS_LOCK
from impls.state.restoration import current_restoration
from impls.torch_private import top_hooks


@pytest.fixture(autouse=True, scope="module")
def _extension() -> None:
    try:
        require_extension()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def _leaf(*shape: int) -> torch.Tensor:
    return torch.linspace(0.25, 1, 4).reshape(shape or (4,)).requires_grad_()


def _chain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().tanh()


def _gradient(run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = _leaf()
    run(x).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("outer", [checkpoint, nested.checkpoint, lambda *args: torch_checkpoint(*args, use_reentrant=False)])
@pytest.mark.parametrize("inner", [checkpoint, nested.checkpoint, lambda *args: torch_checkpoint(*args, use_reentrant=False)])
def test_regions_nest_in_those_of_others(outer: Callable[..., Any], inner: Callable[..., Any]) -> None:
    expected = _gradient(lambda x: _chain(_chain(x).cos()))
    assert _gradient(lambda x: outer(lambda y: inner(_chain, inner(_chain, y).cos()), x)).equal(expected)


def test_a_change_to_a_sparse_tensor_that_is_gone_is_seen() -> None:
    holder = [torch.eye(2).to_sparse()]
    y = checkpoint(lambda x: torch.sparse.mm(holder[0], x), _leaf(2, 2))
    alias = holder.pop().detach()
    holder.append(torch.eye(2).to_sparse())
    alias.mul_(2)
    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        y.sum().backward()


@pytest.mark.parametrize("same", [True, False])
def test_an_argument_that_got_other_data_is_compared(same: bool) -> None:
    x = _leaf()
    y = checkpoint(torch.sin, x)
    expected = x.detach().cos()
    x.data = x.detach().clone() if same else torch.ones(4)
    if same:
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.equal(expected)
    else:
        with pytest.raises(CheckpointError, match="has other values: it was replaced since"):
            y.sum().backward()


def test_a_weight_that_was_replaced_is_seen() -> None:
    weights = {"one": torch.full((4,), 2.0, requires_grad=True)}
    y = checkpoint(lambda x: x * weights["one"], _leaf())
    weights["one"] = torch.full((4,), 3.0, requires_grad=True)
    with pytest.raises(CheckpointError, match="has other values: it was replaced since"):
        y.sum().backward()


def test_what_the_graph_has_cleared_is_not_recomputed() -> None:
    reached: list[str] = []

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x.sin()
        reached.append("first")
        second = x.cos().exp()
        reached.append("second")
        return first, second

    first, second = checkpoint(function, _leaf())
    second.sum().backward()
    del second
    reached.clear()
    first.sum().backward()
    assert reached == []  # the sine's input is there at once


def test_a_cycle_through_the_function_is_collected() -> None:
    class Owner:
        error: Exception | None = None

    def call(owner: Owner) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            raise ValueError(owner)

        try:
            checkpoint(function, _leaf())
        except ValueError as error:
            owner.error = error  # whose traceback leads to the region, and that to the function

    owner = Owner()
    alive = weakref.ref(owner)
    call(owner)
    del owner
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_recomputation_leaves_everything_as_it_was(error: type[BaseException]) -> None:
    runs: list[None] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(None)
        if len(runs) == 2:
            raise error("in the recomputation")
        return torch.nn.functional.dropout(x).sin()

    y = checkpoint(function, _leaf())
    state = torch.get_rng_state()
    with pytest.raises(error, match="in the recomputation"):
        y.sum().backward()
    assert torch.get_rng_state().equal(state)
    assert top_hooks(True) is None
    assert not PROCESS_LOCK.holders
    assert current_restoration() is None
    assert torch.is_grad_enabled()


def test_dropout_is_replayed_and_the_ambient_stream_goes_on() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = checkpoint(lambda h: torch.nn.functional.dropout(h.exp()), x)
    state = torch.get_rng_state()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(y.detach())
    assert torch.get_rng_state().equal(state)


def test_modes_that_a_stopped_function_has_set_are_put_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_enabled("cpu", True)
        y = x.sin()
        torch.set_autocast_enabled("cpu", False)
        return y

    checkpoint(function, _leaf()).sum().backward()
    assert not torch.is_autocast_enabled("cpu")


def test_a_backward_inside_a_region_reads_what_is_there() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        (inner,) = torch.autograd.grad(_chain(x).sum(), x, create_graph=True)
        return inner * x

    assert _gradient(lambda x: checkpoint(function, x)).equal(_gradient(function))


def test_a_retained_graph_is_recomputed_for_each_backward() -> None:
    x, runs = _leaf(), list[None]()

    def function(h: torch.Tensor) -> torch.Tensor:
        runs.append(None)
        return _chain(h)

    y = checkpoint(function, x).sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert first.equal(second)
    assert len(runs) == 3


def test_hooks_that_are_not_allowed_are_refused() -> None:
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"),
        pytest.raises(RuntimeError, match="no hooks here"),
    ):
        checkpoint(torch.sin, _leaf())


def test_what_is_decorated_is_no_nested_one() -> None:
    one, other = checkpoint()(len), nested.checkpoint()(len)
    assert one != other
    assert _gradient(checkpoint()(_chain)).equal(_gradient(_chain))


def test_an_input_that_forward_has_changed_is_let_go() -> None:
    x = _leaf() * 1
    alive = weakref.ref(x)
    checkpoint(lambda h: h.sin_(), x)
    del x
    gc.collect()
    assert alive() is None


def test_ten_thousand_regions_in_a_row_are_freed() -> None:
    x = torch.zeros(1, requires_grad=True)
    y = x
    for _ in range(10_000):
        y = checkpoint(torch.sin, y, preserve_rng_state=False)
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 1
    del y


def test_the_interpreter_ends_with_graphs_alive() -> None:
    script = (
        "import torch; from impls.native import checkpoint\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "y = checkpoint(lambda h: h.sin().exp(), x); z = checkpoint(torch.sin, y)\n"
        "torch.autograd.grad(z.sum(), x, retain_graph=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recomputed_tensor_that_is_kept_can_be_differentiated_while_its_regions_graph_is_there() -> None:
    kept: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.sin().exp())
        return kept[-1].cos()

    x = _leaf()
    y = checkpoint(function, x).sum()
    y.backward(retain_graph=True)
    (gradient,) = torch.autograd.grad(kept[1].sum(), x)
    assert gradient.equal(x.detach().cos() * x.detach().sin().exp())
    del y, kept[0]
    with pytest.raises(CheckpointError, match="retain_graph=True"):
        torch.autograd.grad(kept.pop().sum(), x)
