"""What legacy and reentrant share by being a single node with a backward of its own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from impls import legacy, reentrant
from impls.leaf_arguments import detach_variable
from impls.single_node import recomputation_context

Checkpoint = Callable[..., Any]
both = pytest.mark.parametrize("checkpoint", [legacy.checkpoint, reentrant.checkpoint])


def grad(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def leaf() -> torch.Tensor:
    return torch.arange(1.0, 4.0).requires_grad_()


@contextmanager
def collected(tensors: Any) -> Iterator[None]:
    with saved_tensors_hooks(lambda tensor: tensors.append(tensor) or tensor, lambda tensor: tensor):
        yield


@both
@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("request_gradients", "said"),
    [
        (lambda x, y: torch.autograd.grad(y, x), r"torch.autograd.grad\(\)"),
        (lambda x, y: y.backward(inputs=[x]), r"backward\(inputs=...\)"),
        (lambda x, y: y.backward(create_graph=True), "create_graph=True"),
    ],
)
def test_a_partial_backward_is_refused(checkpoint: Checkpoint, request_gradients: Any, said: str) -> None:
    x = leaf()
    y = checkpoint(lambda h: checkpoint(torch.sin, h).exp(), x).sum()
    with pytest.raises(RuntimeError, match=said):
        request_gradients(x, y)
    assert x.grad is None


@both
def test_a_refused_backward_can_be_done_right(checkpoint: Checkpoint) -> None:
    x = leaf()
    y = checkpoint(torch.exp, x).sum()
    with pytest.raises(RuntimeError):
        torch.autograd.grad(y, x, retain_graph=True)
    y.backward()
    assert torch.equal(grad(x), x.detach().exp())


@both
def test_a_function_that_changes_its_argument_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(RuntimeError, match="changed its argument 1 in place"):
        checkpoint(lambda a, b: a * b.mul_(2), leaf(), torch.ones(3))


@both
def test_an_argument_may_be_changed_where_nothing_is_recomputed(checkpoint: Checkpoint) -> None:
    with torch.no_grad():
        assert checkpoint(lambda a: a.mul_(2), leaf()).tolist() == [2.0, 4.0, 6.0]


@both
@pytest.mark.parametrize("hooks", [nullcontext, save_on_cpu, lambda: collected([])])
def test_an_argument_changed_before_backward_is_refused(hooks: Any, checkpoint: Checkpoint) -> None:
    factor = torch.ones(3)
    with hooks():
        y = checkpoint(lambda a, b: (a * b).sin(), leaf(), factor)
    factor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@both
def test_only_outputs_without_grad_reached_by_backward_is_an_error(checkpoint: Checkpoint) -> None:
    _, y = checkpoint(lambda x: (x.sin(), x.detach()), leaf())
    with pytest.raises(RuntimeError, match="none requires grad"):
        y.sum().backward()


@both
def test_another_number_of_values_in_recomputation_is_an_error(checkpoint: Checkpoint) -> None:
    values = [1, 2]
    y, *_ = checkpoint(lambda x: (x.sin(),) * values.pop(), leaf())
    with pytest.raises(RuntimeError, match="2 values in forward, but 1"):
        y.sum().backward()


@both
def test_what_leads_to_an_unused_output_alone_gets_no_gradient(checkpoint: Checkpoint) -> None:
    x, unused, weight = leaf(), leaf(), leaf()
    y, _ = checkpoint(lambda a, b: (a.sin(), b * weight * torch.inf), x, unused)
    y.sum().backward()
    assert torch.equal(grad(x), x.detach().cos())
    assert unused.grad is None
    assert weight.grad is None


@both
def test_a_tensor_passed_twice_is_one_tensor_in_both_runs(checkpoint: Checkpoint) -> None:
    x = leaf()
    same: Any = []
    saved: list[torch.Tensor] = []
    with collected(saved):
        y = checkpoint(lambda a, b: same.append(a is b) or a * b, x, x)
    y.sum().backward()
    assert same == [True, True]
    assert len(saved) == 1
    assert torch.equal(grad(x), 2 * x.detach())


@both
def test_hooks_around_backward_see_nothing_of_the_recomputation(checkpoint: Checkpoint) -> None:
    saved: list[torch.Tensor] = []
    y = checkpoint(lambda h: h.sin().exp(), leaf()).sum()
    with collected(saved):
        y.backward()
        assert saved == []
        leaf().sin()
    assert len(saved) == 1


def test_hooks_set_aside_come_back() -> None:
    saved: list[torch.Tensor] = []
    with collected([]), collected(saved):
        with recomputation_context():
            leaf().sin()
        assert saved == []
        leaf().sin()
    assert len(saved) == 1


@both
def test_backward_in_inference_mode_gives_the_gradients(checkpoint: Checkpoint) -> None:
    x = leaf()
    y = checkpoint(lambda h: h.sin(), x * 1).sum()
    with torch.inference_mode():
        y.backward()
    assert torch.equal(grad(x), x.detach().cos())


@both
def test_a_parameter_that_is_returned_stays_a_leaf(checkpoint: Checkpoint) -> None:
    x, weight = leaf(), leaf()
    y, returned = checkpoint(lambda h: (h.sin(), weight), x)
    (y * returned).sum().backward()
    assert weight.is_leaf
    assert torch.equal(grad(weight), x.detach().sin())


@both
def test_an_argument_without_grad_is_returned_without_grad(checkpoint: Checkpoint) -> None:
    mask = torch.ones(3)
    y, returned, boolean = checkpoint(lambda h, m: (h * m, m, h > 1), leaf(), mask)
    assert [y.requires_grad, returned.requires_grad, boolean.requires_grad] == [True, False, False]
    assert not mask.requires_grad


@both
def test_backward_inside_the_function_is_allowed(checkpoint: Checkpoint) -> None:
    def force(h: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            position = h.detach().requires_grad_()
            checkpoint(lambda p: p.sin() * p, position).sum().backward()
        return h * grad(position)

    x = leaf()
    checkpoint(force, x).sum().backward()
    assert torch.allclose(grad(x), x.detach().cos() * x.detach() + x.detach().sin())


@both
def test_an_error_in_recomputation_leaves_nothing_behind(checkpoint: Checkpoint) -> None:
    failing = [False]

    def function(h: torch.Tensor) -> torch.Tensor:
        y = h.sin()
        if failing[0]:
            raise KeyboardInterrupt("stop")
        return y.exp()

    x, before = leaf(), torch.get_rng_state()
    saved: list[torch.Tensor] = []
    y = checkpoint(function, x).sum()
    failing[0] = True
    with collected(saved):
        with pytest.raises(KeyboardInterrupt):
            y.backward(retain_graph=True)
        leaf().sin()
    failing[0] = False
    y.backward()
    assert len(saved) == 1
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(grad(x), torch.cos(x.detach()) * torch.exp(torch.sin(x.detach())))


@both
def test_dropping_the_output_frees_the_function_without_the_garbage_collector(checkpoint: Checkpoint) -> None:
    class Function:
        def __call__(self, h: torch.Tensor) -> torch.Tensor:
            return h.sin()

    function = Function()
    alive = weakref.ref(function)
    gc.disable()
    try:
        y = checkpoint(function, leaf())
        y.sum().backward()
        del function, y
        assert alive() is None
    finally:
        gc.enable()


def test_detached_inputs_are_leaves_that_require_grad_as_before() -> None:
    x, c = leaf() * 1, torch.ones(3)
    a, b, again, text = detach_variable((x, c, x, "text"))
    assert [a.is_leaf, a.requires_grad, b.requires_grad, again is a, text] == [True, True, False, True, "text"]
    with pytest.raises(TypeError, match="inputs is a list"):
        detach_variable([x])  # type: ignore[arg-type]


def test_a_parameter_stays_one_and_attributes_are_taken_along() -> None:
    parameter: Any = torch.nn.Parameter(leaf())
    tensor: Any = leaf() * 1
    parameter.scale, tensor.scale = 2, 3
    one, other = detach_variable((parameter, tensor))
    assert [type(one), one.scale, one.requires_grad] == [torch.nn.Parameter, 2, True]
    assert [type(other), other.scale, other.requires_grad] == [torch.Tensor, 3, True]


@both
def test_a_lazy_module_is_initialised_by_its_first_call(checkpoint: Checkpoint) -> None:
    x, module = leaf(), torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Tanh())
    y = checkpoint(module, x)
    y.sum().backward()
    expected = torch.autograd.grad(module(x).sum(), x)[0]
    assert torch.equal(grad(x), expected)
