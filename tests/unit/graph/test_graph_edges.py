"""Edges, version counters, the public names, and the log of executed nodes."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import impls.graph
from impls.graph import GradientEdge, Node, get_gradient_edge, increment_version, log, logged_backward
from impls.graph.backward_log import _FirstBackward


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


class _Fails(_Double):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise ZeroDivisionError


def test_every_public_name_is_there() -> None:
    assert set(impls.graph.__all__) <= set(dir(impls.graph))
    assert impls.graph.IMPLEMENTATION.provides is impls.graph
    assert Node is torch.autograd.graph.Node
    assert isinstance(torch.ones(1, requires_grad=True).sin().grad_fn, Node)


@pytest.mark.parametrize("make", [lambda x: x, torch.sin, _Double.apply, lambda x: x.unbind()[1]])
def test_an_edge_stands_for_its_tensor(make: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    t = make(x)
    y = (t * 3).sum()
    (expected,) = torch.autograd.grad(y, t, retain_graph=True)
    edge = get_gradient_edge(t)
    assert isinstance(edge, GradientEdge)
    assert torch.autograd.grad(y, edge)[0].equal(expected)


@pytest.mark.parametrize("make", [torch.sin, _Double.apply])
def test_an_edge_keeps_the_graph_below_it_but_not_the_tensor(make: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    t = make(make(x))
    edge, gone = get_gradient_edge(t), weakref.ref(t)
    expected = torch.autograd.grad(t.sum(), x, retain_graph=True)[0]
    del t
    gc.collect()
    assert gone() is None
    assert torch.autograd.grad(edge, x, torch.ones(2))[0].equal(expected)


def test_an_edge_of_a_leaf_is_where_its_gradient_accumulates() -> None:
    x = torch.ones(2, requires_grad=True)
    torch.autograd.backward(get_gradient_edge(x), torch.ones(2))
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]


def test_what_has_no_edge_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        get_gradient_edge(torch.ones(2))
    with pytest.raises(TypeError, match="tensor is a int"):
        get_gradient_edge(3)  # type: ignore[arg-type]


def test_versions_of_one_tensor_and_of_several_go_up() -> None:
    a, b = torch.ones(2), torch.ones(2)
    increment_version(a)
    increment_version([a, b])
    increment_version(each for each in (b,))
    assert (a._version, b._version) == (2, 2)


def test_a_wrong_argument_changes_no_version() -> None:
    a = torch.ones(2)
    for wrong, message in (([a, 3], r"tensor\[1\] is a int"), (3, "tensor is a int")):
        with pytest.raises(TypeError, match=message):
            increment_version(wrong)  # type: ignore[arg-type]
    assert a._version == 0


def test_inference_tensors_are_passed_over() -> None:
    a = torch.ones(2)
    with torch.inference_mode():
        b = torch.ones(2)
    increment_version((b, a))
    assert a._version == 1


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was logged, as text, at level DEBUG."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    with caplog.at_level(logging.DEBUG, logger="impls.graph"):
        yield found
    log.removeHandler(handler)


def test_each_node_of_the_first_backward_is_logged_before_it_runs(lines: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    y = (x.sin() * x).sum()
    with logged_backward(y):
        x.register_hook(lambda _: lines.append("the gradient of x"))
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
    y.backward()
    names = [line.split(",")[0].removeprefix("executing ") for line in lines]
    assert names[:5] == ["SumBackward0", "MulBackward0", "SinBackward0", "the gradient of x", "torch::autograd::AccumulateGrad"]
    assert names[5:] == ["the gradient of x"] * 2
    assert "float32[]" in lines[0]
    assert "float32[2]" in lines[1]


def test_only_what_is_executed_is_logged(lines: list[str]) -> None:
    x, z = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = (x.sin() * z.cos()).sum()
    with logged_backward(y):
        y.backward(inputs=[x])
    assert not any("Cos" in line for line in lines)
    assert len(lines) == 4


def test_missing_gradients_and_edges_are_logged(lines: list[str]) -> None:
    a, b = torch.ones(2, 2, requires_grad=True).unbind()
    with logged_backward(get_gradient_edge(a), b):
        a.sum().backward()
    assert lines[0] == "executing UnbindBackward0, grad_outputs: float32[2], None"


def test_nothing_stays_attached_after_an_error_in_backward(lines: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    y = (_Fails.apply(x.sin()) * 2).sum()
    with pytest.raises(ZeroDivisionError), logged_backward(y):
        y.backward(retain_graph=True)
    assert len(lines) == 3
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert len(lines) == 3


def test_hooks_do_not_outlive_the_context(lines: list[str]) -> None:
    y = torch.ones(2, requires_grad=True).sin().sum()
    with logged_backward(y):
        assert any(type(each) is _FirstBackward for each in gc.get_objects())
    gc.collect()
    assert not any(type(each) is _FirstBackward for each in gc.get_objects())
    y.backward()
    assert lines == []


def test_the_backward_after_a_failed_one_is_not_logged(lines: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    y, z = _Fails.apply(x), x.cos()
    with logged_backward(y, z):
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        z.sum().backward()
    assert len(lines) == 1


def test_nothing_is_attached_when_the_level_is_off(caplog: pytest.LogCaptureFixture) -> None:
    y = torch.ones(2, requires_grad=True).sin().sum()
    caplog.set_level(logging.INFO, logger="impls.graph")
    with logged_backward(y):
        caplog.set_level(logging.DEBUG, logger="impls.graph")
        y.backward()
    assert caplog.records == []


def test_what_cannot_be_logged_is_refused() -> None:
    with pytest.raises(TypeError, match=r"outputs\[1\] is a int"), logged_backward(torch.ones(1, requires_grad=True), 3):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match=r"outputs\[0\] does not require grad"), logged_backward(torch.ones(1)):
        pass
