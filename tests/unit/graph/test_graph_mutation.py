"""What allow_mutation_on_saved_tensors clones, what it leaves alone, and what it refuses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.graph import allow_mutation_on_saved_tensors, increment_version, save_on_cpu

_VALUES = (0.5, 1.0, 2.0, 3.0)


def _leaf() -> torch.Tensor:
    return torch.tensor(_VALUES, requires_grad=True)


def _squares(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x * 1
    return a, a * a


_CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda a: a.mul_(5),
    "by an item": lambda a: a.__setitem__(0, 7.0),
    "by a mask": lambda a: a.__setitem__(a > 1, 7.0),
    "through a view": lambda a: a[1:].zero_(),
    "through a view of a view": lambda a: a.view(2, 2)[1].t()[1:].zero_(),
    "through an alias": lambda a: a.detach().zero_(),
    "through data": lambda a: a.data.zero_(),
    "by copy_": lambda a: a.copy_(torch.zeros(4)),
    "by out": lambda a: torch.add(torch.ones(4), 1, out=a),
    "by the first of two outs": lambda a: torch.sort(torch.ones(4), out=(a, torch.empty(4, dtype=torch.long))),
    "by the second of two outs": lambda a: torch.frexp(torch.ones(4), out=(a, torch.empty(4, dtype=torch.int32))),
    "in a list": lambda a: torch._foreach_mul_([torch.ones(1), a], 3.0),
    "by two lists": lambda a: torch._foreach_copy_([a], [torch.zeros(4)]),
    "by its gradient's optimizer": lambda a: _step(a),
    "by index_add_": lambda a: a.index_add_(0, torch.tensor([1]), torch.ones(1)),
    "by a random fill": lambda a: a.normal_(),
    "by out, made larger": lambda a: _outgrow(a),
}


def _step(a: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(a.detach())
    parameter.grad = torch.ones(4)
    torch.optim.Adam([parameter], lr=1.0).step()


def _outgrow(a: torch.Tensor) -> None:
    torch.add(torch.ones(4), 1, out=a.detach()[:0])


@pytest.mark.parametrize("how", _CHANGES)
def test_backward_sees_the_value_at_save_time_when_it_was_changed(how: str) -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a, y = _squares(x)
        before = a.detach().clone()
        with torch.no_grad():
            _CHANGES[how](a)
        assert not a.equal(before)
        assert len(context.cloned) == 1
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(2 * torch.tensor(_VALUES))


def test_a_tensor_that_is_changed_twice_is_cloned_once() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a, _y = _squares(x)
        for _ in range(2):
            a.detach().mul_(2)
        assert (len(context.cloned), len(context.original)) == (1, 0)


def test_each_version_that_was_saved_is_cloned() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a = x * 1
        total = (a * a).sum()
        a.detach().mul_(2)
        total = total + (a * a).sum()
        a.detach().mul_(2)
        assert len(context.cloned) == 2
        total.backward()
    assert x.grad is not None
    assert x.grad.equal(6 * torch.tensor(_VALUES))


def test_views_with_other_offsets_are_found_by_their_storage() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a = x * 1
        y = a[2:] * a[2:]
        a.detach().mul_(2)
        assert len(context.cloned) == 1
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 4, 6]


@pytest.mark.parametrize("change", [lambda a: a[:2].zero_(), lambda a: torch.add(torch.ones(2), 1, out=a[:2])])
def test_bytes_beside_those_that_are_changed_are_not_cloned(change: Callable[[torch.Tensor], Any]) -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a = x * 1
        y = a[2:] * a[2:]
        change(a.detach())
        assert (len(context.cloned), len(context.original)) == (0, 1)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 4, 6]


def test_what_was_not_saved_is_not_cloned() -> None:
    with allow_mutation_on_saved_tensors() as context:
        _, y = _squares(_leaf())
        torch.ones(4).mul_(2)
        y.detach().mul_(2)
        assert len(context.cloned) == 0


def test_what_only_freed_graphs_saved_is_not_cloned() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        a, y = _squares(x)
        y.sum().backward()
        a.detach().mul_(2)
        assert (len(context.cloned), len(context.original), len(context.readers)) == (0, 0, 0)


@pytest.mark.parametrize("function", [torch.exp, torch.sin])
def test_originals_are_released_with_the_graph(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with allow_mutation_on_saved_tensors() as context:
        a = _leaf() * 1
        y = function(a)
        memory = [StorageWeakRef(tensor.untyped_storage()) for tensor in (a, y)]
        del a, y
        gc.collect()
        assert all(each.expired() for each in memory)
        assert (len(context.original), len(context.readers)) == (0, 0)


@pytest.mark.parametrize(("change", "arguments"), [("resize_", (100,)), ("t_", ()), ("set_", (torch.zeros(2),))])
def test_another_shape_or_storage_clones_nothing_and_changes_no_gradient(change: str, arguments: tuple[Any, ...]) -> None:
    x, factor = torch.ones(1, 4, requires_grad=True), torch.tensor([_VALUES])
    with allow_mutation_on_saved_tensors() as context:
        y = x * factor
        getattr(factor, change)(*arguments)
        assert len(context.cloned) == 0
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(torch.tensor([_VALUES]))


def test_a_clone_has_the_strides_of_what_was_saved() -> None:
    with allow_mutation_on_saved_tensors() as context:
        a = (torch.ones(2, 6, requires_grad=True) * 1)[:, ::2].t()
        y = a * a
        a.detach().mul_(2)
        (clone,) = context.cloned.values()
        assert clone.stride() == (2, 6)
        assert y.grad_fn is not None


def test_running_statistics_of_batch_norm_count_as_changed() -> None:
    norm = torch.nn.BatchNorm1d(2)
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    expected = torch.autograd.grad(norm.eval()(x).square().sum(), x)[0]
    with allow_mutation_on_saved_tensors():
        y = norm.eval()(x)
        norm.train()(x.detach() * 7)
        assert torch.autograd.grad(y.square().sum(), x)[0].equal(expected)


def test_running_statistics_that_are_only_read_are_not_cloned() -> None:
    norm = torch.nn.BatchNorm1d(2).eval()
    with allow_mutation_on_saved_tensors() as context:
        y = norm(torch.ones(2, 2, requires_grad=True))
        norm(torch.ones(2, 2))
        assert len(context.cloned) == 0
        assert y.grad_fn is not None


def test_gradients_that_autograd_adds_up_in_place_may_be_saved() -> None:
    x, w = _leaf(), _leaf()
    x.grad = torch.ones(4)
    with allow_mutation_on_saved_tensors():
        y = w * x.grad
        (x * 2).sum().backward()
        y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1] * 4
    assert x.grad.tolist() == [3] * 4


def test_double_backward_sees_values_at_save_time() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors():
        a = x * 1
        (g,) = torch.autograd.grad((a * a * a).sum(), x, create_graph=True)
        a.detach().mul_(9)
        (gg,) = torch.autograd.grad(g.sum(), x)
    assert gg.equal(6 * torch.tensor(_VALUES))


def test_a_context_inside_another_is_refused_and_leaves_it_in_force() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors():
        with pytest.raises(RuntimeError, match="cannot be nested"), allow_mutation_on_saved_tensors():
            pass
        a, y = _squares(x)
        a.detach().mul_(2)
        y.sum().backward()
    assert x.grad is not None


def test_backward_outside_says_what_to_do() -> None:
    with allow_mutation_on_saved_tensors():
        _, y = _squares(_leaf())
    with pytest.raises(RuntimeError, match="inside the same `with` block"):
        y.sum().backward()
    with allow_mutation_on_saved_tensors(), pytest.raises(RuntimeError, match="inside the same `with` block"):
        y.sum().backward()


def test_nothing_is_left_after_an_error_inside() -> None:
    held = []
    with suppress(ZeroDivisionError), allow_mutation_on_saved_tensors() as context:
        held.append(_squares(_leaf()))
        raise ZeroDivisionError
    assert (len(context.original), len(context.cloned), len(context.readers)) == (0, 0, 0)
    with allow_mutation_on_saved_tensors():
        pass
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_a_context_on_another_thread_is_on_its_own() -> None:
    x, inside = _leaf(), []

    def other() -> None:
        with allow_mutation_on_saved_tensors() as context:
            a, y = _squares(_leaf())
            a.detach().mul_(2)
            inside.append(len(context.cloned))
            y.sum().backward()

    with allow_mutation_on_saved_tensors() as context:
        a, y = _squares(x)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert (inside, len(context.cloned)) == ([1], 0)
        a.detach().mul_(2)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(2 * torch.tensor(_VALUES))


@pytest.mark.parametrize("unseen", ["thread", "kernel"])
def test_a_change_that_the_context_cannot_see_is_refused(unseen: str) -> None:
    with allow_mutation_on_saved_tensors():
        a, y = _squares(_leaf())
        if unseen == "thread":
            thread = threading.Thread(target=a.detach().mul_, args=(2,))
            thread.start()
            thread.join()
        else:
            increment_version(a)
        with pytest.raises(RuntimeError, match="where the context does not see it"):
            y.sum().backward()


def test_what_is_saved_after_a_change_that_was_not_seen_is_good() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors():
        a, _y = _squares(x)
        increment_version(a)
        (a * a).sum().backward()
    assert x.grad is not None


def test_other_hooks_inside_are_left_alone() -> None:
    x = _leaf()
    with allow_mutation_on_saved_tensors() as context:
        with save_on_cpu():
            a, y = _squares(x)
        a.detach().mul_(2)
        assert len(context.cloned) == 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
