"""Slots of nested: which changes to a tensor that is gone are seen, and what a recomputed graph keeps."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.nested import CheckpointError, checkpoint


def _leaf() -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=True)


def test_a_change_to_an_output_that_is_gone_is_seen() -> None:
    y = checkpoint(torch.exp, _leaf())
    with torch.no_grad():
        y.mul_(2)
    z = y.sum()
    del y
    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        z.backward()


def test_a_replaced_tensor_that_was_changed_before_is_seen() -> None:
    holder = [torch.ones(2, 2)]
    y = checkpoint(lambda x: x * holder[0], _leaf())
    holder[0].mul_(2)
    holder[0] = torch.ones(2, 2)
    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        y.sum().backward()


def test_a_change_to_the_base_of_a_view_that_is_gone_is_seen() -> None:
    holder = [torch.ones(2, 2)]
    y = checkpoint(lambda x: x * holder[0][0], _leaf())
    holder[0].mul_(2)
    holder[0] = torch.ones(2, 2)
    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        y.sum().backward()


def test_a_change_inside_after_the_last_operator_that_saves_is_seen() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        with torch.no_grad():
            y.mul_(2)
        return y + 1

    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        checkpoint(function, _leaf()).sum().backward()


def test_a_change_through_a_detached_alias_of_a_tensor_that_is_gone_is_seen() -> None:
    holder = [torch.ones(2, 2)]
    y = checkpoint(lambda x: x * holder[0].detach(), _leaf())
    holder[0].mul_(2)
    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        y.sum().backward()


def test_a_change_while_forward_runs_is_seen_by_a_backward_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        with torch.no_grad():
            y.mul_(2)
        return torch.autograd.grad(y.sum(), x)[0] * x

    with pytest.raises(CheckpointError, match="changed in place after it was saved"):
        checkpoint(function, _leaf())


def _leaking() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[torch.Tensor]]:
    leaked: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().exp()
        leaked.append(y)
        return y.cos()

    return function, leaked


def test_a_recomputed_tensor_that_leaks_can_be_differentiated_while_its_regions_graph_is_there() -> None:
    function, leaked = _leaking()
    x = _leaf()
    y = checkpoint(function, x).sum()
    y.backward(retain_graph=True)
    (gradient,) = torch.autograd.grad(leaked[1].sum(), x)
    assert gradient.equal(x.detach().cos() * x.detach().sin().exp())
    del y, leaked[0]
    with pytest.raises(CheckpointError, match="retain_graph=True"):
        torch.autograd.grad(leaked.pop().sum(), x)


def test_a_recomputed_tensor_that_leaks_keeps_no_other() -> None:
    def alive() -> int:
        gc.collect()
        return len([one for one in gc.get_objects() if type(one) is torch.Tensor and one.is_floating_point() and one.numel()])

    function, leaked = _leaking()
    checkpoint(lambda x: function(x.tanh() * 2), _leaf()).sum().backward()
    del leaked[0]
    before = alive()
    leaked.clear()
    assert alive() == before - 2  # with the leaf, which its graph leads to


@pytest.mark.parametrize("kwargs", [{}, {"scale": 2.0}, {"scale": torch.ones(2, 2)}])
def test_arguments_without_containers_come_back_in_order(kwargs: dict[str, Any]) -> None:
    seen: list[tuple[object, ...]] = []

    def function(x: torch.Tensor, power: int, scale: object = 1) -> torch.Tensor:
        seen.append((x.shape, power, scale if isinstance(scale, float | int) else "tensor"))
        return (x**power * scale).sin()  # type: ignore[operator]

    checkpoint(function, _leaf(), 3, **kwargs).sum().backward()
    assert seen[0] == seen[1]


def test_an_input_that_the_function_changed_before_it_raised_is_let_go() -> None:
    def function(x: torch.Tensor) -> None:
        x.sin_()
        raise ValueError("after the change")

    x = _leaf() * 1
    alive = weakref.ref(x)
    with pytest.raises(ValueError, match="after the change"):
        checkpoint(function, x)
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("ends", [False, True])
def test_forward_may_go_on_while_another_thread_recomputes(early_stop: bool, ends: bool) -> None:
    """Forward saves more, and ends, after the recomputation has looked what there is and before it runs."""
    looked, saved = threading.Event(), threading.Event()
    gradients: list[torch.Tensor] = []
    threads: list[threading.Thread] = []
    x = _leaf()

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() in threads:
            looked.set()
            assert saved.wait(60)
        return packed

    def function(value: torch.Tensor) -> torch.Tensor:
        first = value.sin()
        forward = not threads
        if forward:
            threads.append(threading.Thread(target=lambda: gradients.extend(torch.autograd.grad(first.sum(), x))))
            threads[0].start()
            assert looked.wait(60)
        last = value.exp().cos()
        if forward and not ends:
            saved.set()
            threads[0].join()
        return last

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        checkpoint(function, x, early_stop=early_stop, preserve_rng_state=False)
    saved.set()
    threads[0].join()
    assert gradients[0].equal(x.detach().cos())


def test_a_result_that_only_a_closure_read_is_freed_with_the_closure() -> None:
    x = torch.ones(2, requires_grad=True)
    results = [x * 2]
    storage = StorageWeakRef(results[0].untyped_storage())
    y = checkpoint(lambda h: (h * results[0]).sin() if results else h.sin(), x)
    results.clear()
    gc.collect()
    assert storage.expired()
    assert y.requires_grad
