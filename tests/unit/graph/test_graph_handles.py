"""What can be done with the handle of register_multi_grad_hook, and which arguments are refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from impls.graph import register_multi_grad_hook

Grads = list[list[bool]]


def _there(log: Grads) -> Any:
    return lambda grads: log.append([grad is not None for grad in grads])


def _leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


def test_a_removed_hook_is_not_called_even_in_the_middle_of_a_backward() -> None:
    x = _leaf()
    log: Grads = []
    y = x * 2
    apart = x * 3
    with register_multi_grad_hook((x, y, apart), _there(log)) as handle:
        del apart
        y.register_hook(lambda _: handle.remove())
        y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert log == []


def test_the_end_of_the_context_removes_the_hook() -> None:
    x = _leaf()
    log: Grads = []
    with register_multi_grad_hook((x,), _there(log)):
        (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert len(log) == 1


@pytest.mark.parametrize("copied", [lambda handle: pickle.loads(pickle.dumps(handle)), copy.deepcopy])
def test_a_handle_that_was_pickled_or_deeply_copied_removes_nothing(copied: Any) -> None:
    x = _leaf()
    log: Grads = []
    handle = register_multi_grad_hook((x,), _there(log))
    copied(handle).remove()
    (x * 2).sum().backward()
    assert len(log) == 1


def test_a_copied_handle_removes_the_same_hooks() -> None:
    x = _leaf()
    log: Grads = []
    copy.copy(register_multi_grad_hook((x,), _there(log))).remove()
    (x * 2).sum().backward()
    assert log == []


@pytest.mark.parametrize(
    ("tensors", "fn", "mode", "error", "message"),
    [
        ((torch.ones(1),), print, "all", ValueError, "none of the 1 requires grad"),
        ((), print, "any", ValueError, "none of the 0 requires grad"),
        ((torch.ones(1, requires_grad=True), 3), print, "all", TypeError, r"tensors\[1\] is a int"),
        (torch.ones(1, requires_grad=True), print, "all", TypeError, "tensors is a Tensor"),
        ((torch.ones(1, requires_grad=True),), 3, "all", TypeError, "fn is 3"),
        ((torch.ones(1, requires_grad=True),), print, "some", ValueError, "mode is 'some'"),
    ],
)
def test_a_wrong_argument_is_named(tensors: Any, fn: Any, mode: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        register_multi_grad_hook(tensors, fn, mode=mode)
