"""What impls.graph's pairs of hooks keep of autograd's promises."""

from __future__ import annotations

import gc
import threading
from collections import namedtuple
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from impls.nested import checkpoint

Pair = namedtuple("Pair", "tensor other")


def _identity(value: Any) -> Any:
    return value


def _noted(where: list[Any], value: Any, result: Any = None) -> Any:
    """Note the value; gives it back, or the result if there is one."""
    where.append(value)
    return value if result is None else result


_KEEPING: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "itself": (_identity, _identity),
    "an alias": (lambda t: t.detach(), _identity),
    "its data": (lambda t: t.data, _identity),
    "a view": (lambda t: t.view(-1), lambda v: v.view(3)),
    "a tuple": (lambda t: (1, (t,)), lambda v: v[1][0]),
    "a named tuple": (lambda t: Pair(t, 1), lambda v: v.tensor),
}


def _expired(function: Callable[[torch.Tensor], torch.Tensor], pack: Any, unpack: Any) -> bool:
    with saved_tensors_hooks(pack, unpack):
        y = function(torch.ones(3, requires_grad=True))
    memory = StorageWeakRef(y.untyped_storage())
    del y
    gc.collect()
    return memory.expired()


@pytest.mark.parametrize("kept", _KEEPING)
@pytest.mark.parametrize("function", [torch.exp, torch.tanh, lambda x: x.exp().sqrt()])
def test_a_result_that_is_kept_does_not_own_itself(function: Any, kept: str) -> None:
    assert _expired(function, *_KEEPING[kept])


@pytest.mark.parametrize("kept", _KEEPING)
def test_a_changed_tensor_is_refused_where_no_copy_was_made(kept: str) -> None:
    a = torch.ones(3, requires_grad=True) * 1
    with saved_tensors_hooks(*_KEEPING[kept]):
        y = a * a
    a.detach()[1:].mul_(5)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version 1; expected version 0"):
        y.sum().backward()


@pytest.mark.parametrize("kept", _KEEPING)
def test_an_unchanged_tensor_gives_plain_gradients(kept: str) -> None:
    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(*_KEEPING[kept]):
        y = (x * 2).exp().square()
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x)
    x2 = torch.ones(3, requires_grad=True)
    (plain,) = torch.autograd.grad((x2 * 2).exp().square().sum(), x2, create_graph=True)
    assert g.equal(plain)
    assert gg.equal(torch.autograd.grad(plain.sum(), x2)[0])


def test_a_change_after_a_copy_was_packed_is_harmless() -> None:
    x = torch.ones(3, requires_grad=True)
    a = x * 1
    with saved_tensors_hooks(torch.Tensor.clone, _identity):
        y = a * a
    a.detach().mul_(5)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_a_copy_that_is_made_at_unpack_comes_too_late() -> None:
    a = torch.ones(3, requires_grad=True) * 1
    with saved_tensors_hooks(_identity, torch.Tensor.clone):
        y = a * a
    a.detach().mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("kept", [(_identity, _identity), (lambda t: [t], lambda v: v[0])])
def test_a_changed_sparse_tensor_is_refused(kept: Any) -> None:
    s = torch.eye(3).to_sparse()  # a change gives it new memory
    with saved_tensors_hooks(*kept):
        y = torch.sparse.mm(s, torch.ones(3, 3, requires_grad=True))
    s.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_unpack_gets_the_very_object_while_it_is_alive() -> None:
    packed: list[Any] = []
    unpacked: list[Any] = []
    with saved_tensors_hooks(lambda t: _noted(packed, t), lambda t: _noted(unpacked, t)):
        y = torch.ones(3, requires_grad=True).exp()
    y.sum().backward()
    assert unpacked[0] is packed[0] is y


def test_unpack_gets_an_alias_without_a_graph_once_the_object_is_gone() -> None:
    unpacked: list[Any] = []
    with saved_tensors_hooks(_identity, lambda t: _noted(unpacked, t)):
        y = torch.ones(3, requires_grad=True).exp().sum()
    y.backward()
    assert unpacked[0].grad_fn is None
    assert unpacked[0].equal(torch.ones(3).exp())


@pytest.mark.parametrize("value", [7, None, [1], object()])
def test_unpack_gets_what_pack_returned(value: Any) -> None:
    seen: list[Any] = []
    with saved_tensors_hooks(lambda _: value, lambda v: _noted(seen, v, torch.ones(3))):
        y = torch.ones(3, requires_grad=True).sin()
    y.sum().backward()
    assert seen[0] is value


def test_a_struct_that_is_no_ordinary_tuple_comes_back_as_it_is() -> None:
    seen: list[Any] = []
    with saved_tensors_hooks(lambda t: torch.return_types.max((t * 1, t)), lambda v: _noted(seen, v, torch.ones(3))):
        y = (torch.ones(3, requires_grad=True) * 1).sin()
    y.sum().backward()
    assert type(seen[0]) is torch.return_types.max


def test_the_innermost_pair_wins() -> None:
    asked: list[str] = []
    with (
        saved_tensors_hooks(lambda t: _noted(asked, "outer", t), _identity),
        saved_tensors_hooks(lambda t: _noted(asked, "inner", t), _identity),
    ):
        torch.ones(3, requires_grad=True).sin()
    assert asked == ["inner"]


def test_one_object_can_be_entered_inside_itself_and_again() -> None:
    asked: list[torch.Tensor] = []
    hooks = saved_tensors_hooks(lambda t: _noted(asked, t), _identity)
    x = torch.ones(3, requires_grad=True)
    with hooks:
        with hooks:
            x.sin()
        x.sin()
    x.sin()
    with hooks:
        x.sin()
    assert len(asked) == 3
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_contexts_may_be_left_in_any_order() -> None:
    asked: list[str] = []
    one = saved_tensors_hooks(lambda t: _noted(asked, "one", t), _identity)
    two = saved_tensors_hooks(lambda t: _noted(asked, "two", t), _identity)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    torch.ones(3, requires_grad=True).sin()
    two.__exit__(None, None, None)
    torch.ones(3, requires_grad=True).sin()
    assert asked == ["two"]


def test_leaving_what_was_not_entered_is_refused_and_takes_nothing_off() -> None:
    with saved_tensors_hooks(_identity, _identity):
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        with pytest.raises(RuntimeError, match="has not entered"):
            saved_tensors_hooks(_identity, _identity).__exit__(None, None, None)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) == top


def test_an_error_inside_or_in_pack_restores_what_was_there() -> None:
    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), saved_tensors_hooks(fail, _identity):
        torch.ones(3, requires_grad=True).sin()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_another_thread_is_not_affected() -> None:
    asked: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda t: _noted(asked, t), _identity):
        thread = threading.Thread(target=lambda: torch.ones(3, requires_grad=True).sin())
        thread.start()
        thread.join()
    assert asked == []


def test_a_pack_hook_that_changes_its_argument_is_refused() -> None:
    with (
        pytest.raises(RuntimeError, match="pack hook is modifying its input"),
        saved_tensors_hooks(lambda t: t.add_(1), _identity),
    ):
        (torch.ones(3, requires_grad=True) * 1).sin()


def test_an_unpack_hook_that_returns_no_tensor_is_refused() -> None:
    with saved_tensors_hooks(_identity, lambda _: 3):  # type: ignore[arg-type,return-value]
        y = torch.ones(3, requires_grad=True).sin()
    with pytest.raises(TypeError, match="Tensor"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["pack_hook", "unpack_hook"])
def test_a_hook_that_is_not_callable_is_refused(name: str) -> None:
    hooks: dict[str, Any] = {"pack_hook": _identity, "unpack_hook": _identity, name: 3}
    with pytest.raises(TypeError, match=rf"^{name} is 3"):
        saved_tensors_hooks(**hooks)
    good = saved_tensors_hooks(_identity, torch.Tensor.detach)
    assert (good.pack_hook, good.unpack_hook) == (_identity, torch.Tensor.detach)


def test_regions_of_nested_checkpoint_work_inside_and_outside() -> None:
    x, plain = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        with saved_tensors_hooks(_identity, _identity):
            return checkpoint(torch.exp, x.sin()).cos()

    with saved_tensors_hooks(_identity, _identity):
        y = checkpoint(function, x)
    y.sum().backward()
    plain.sin().exp().cos().sum().backward()
    assert x.grad is not None
    assert plain.grad is not None
    assert x.grad.equal(plain.grad)


def test_disabling_nests_and_restores_the_message() -> None:
    hooks = saved_tensors_hooks(_identity, _identity)
    with disable_saved_tensors_hooks("outer"):
        with suppress(ZeroDivisionError), disable_saved_tensors_hooks("inner"):
            with pytest.raises(RuntimeError, match="inner"), hooks:
                pass
            raise ZeroDivisionError
        with pytest.raises(RuntimeError, match="outer"), hooks:
            pass
    with hooks:
        pass


def test_disabling_is_refused_while_hooks_are_active_and_changes_nothing() -> None:
    with saved_tensors_hooks(_identity, _identity):
        with pytest.raises(RuntimeError, match="not here"), disable_saved_tensors_hooks("not here"):
            pass
        with saved_tensors_hooks(_identity, _identity):
            pass


def test_a_message_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="error_message is 3"), disable_saved_tensors_hooks(3):  # type: ignore[arg-type]
        pass
