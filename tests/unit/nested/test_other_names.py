"""Where a function finds a container again: every kind of name is followed, and none keeps the container alive."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from impls.nested import checkpoint
from impls.tensors import other_names
from impls.tensors.other_names import GONE, find_other_name

_module = ModuleType("somewhere")
_shared: Any = None


class Slots:
    """An object without a ``__dict__``, one of whose slots is empty."""

    __slots__ = ("cache", "unset")
    cache: Any


class Owner(nn.Module):
    """A module that has a container as an attribute."""

    shared: Any = None

    def __init__(self, cache: Any = None) -> None:
        super().__init__()
        self.cache = cache

    def run(self) -> Any:
        return self.cache


def _closure(cache: Any) -> Any:
    return lambda: (lambda: cache)()


def _default(cache: Any) -> Any:
    def function(*, given: Any = cache) -> Any:
        return given

    return function


def _slots(cache: Any) -> Any:
    slots = Slots()
    slots.cache = cache
    return slots


def _global(cache: Any) -> Any:
    global _shared
    _shared = cache
    return lambda: _read_global()


def _read_global() -> Any:
    return _shared


def _of_module(cache: Any) -> Any:
    _module.cache = cache  # type: ignore[attr-defined]
    return lambda: _module.cache


def _of_class(cache: Any) -> Any:
    return type("Sub", (Owner,), {"shared": cache})().run


NAMES: dict[str, Callable[[Any], Any]] = {
    "method": lambda cache: Owner(cache).run,
    "partial": lambda cache: partial(print, {"deep": [cache]}),
    "module in a module": lambda cache: nn.Sequential(nn.Tanh(), Owner(cache)),
    "namespace": lambda cache: SimpleNamespace(cache=(cache,)),
    "closure": _closure,
    "default": _default,
    "slots": _slots,
    "global": _global,
    "of a module": _of_module,
    "of a class": _of_class,
}


@pytest.mark.parametrize("make", NAMES.values(), ids=NAMES)
def test_a_container_is_found_by_any_name(make: Callable[[Any], Any]) -> None:
    cache: list[Any] = []
    name = find_other_name((make(cache),), cache)
    assert name is not None
    assert name.find() is cache


def test_what_is_nowhere_else_is_not_found() -> None:
    assert find_other_name((Owner([]).run, {"a": []}), []) is None


def test_a_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_names, "LIMIT", 10)
    cache: list[Any] = []
    assert find_other_name(([[] for _ in range(10)], Owner(cache)), cache) is None


def test_a_name_keeps_no_container() -> None:
    owner, cache = Owner(), deque[int]()
    owner.cache, alive = cache, weakref.ref(cache)
    name = find_other_name((owner.run,), cache)
    assert name is not None
    owner.cache = None
    del cache
    assert alive() is None
    assert name.find() is GONE


def _fill_and_read(owner: Owner, h: torch.Tensor, given: list[Any]) -> torch.Tensor:
    before = len(owner.cache)
    given.append(h.sin())
    return owner.cache[before].exp() * owner.cache[-1]


def _gradient(call: Callable[..., torch.Tensor], rebind: bool, **options: Any) -> tuple[torch.Tensor, list[Any]]:
    p, owner = torch.ones(2, requires_grad=True), Owner([])
    ys = []
    for factor in (1, 2, 3):
        ys.append(call(partial(_fill_and_read, owner), p * factor, owner.cache, **options))
        owner.cache = [] if rebind else owner.cache
    left = [*owner.cache]
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    assert all(one is other for one, other in zip(owner.cache, left, strict=True))
    assert p.grad is not None
    return p.grad, left


@pytest.mark.parametrize("preserve_rng_state", [True, False])
@pytest.mark.parametrize("rebind", [True, False])
def test_a_container_of_two_names_holds_what_it_held_and_is_left_as_it_was(rebind: bool, preserve_rng_state: bool) -> None:
    expected, _ = _gradient(lambda function, *args: function(*args), rebind)
    gradient, left = _gradient(checkpoint, rebind, preserve_rng_state=preserve_rng_state)
    assert torch.equal(gradient, expected)
    assert len(left) == (0 if rebind else 3)


def test_two_containers_stay_two_if_their_names_lead_to_one() -> None:
    p = torch.ones(2, requires_grad=True)
    owner = SimpleNamespace(some=[], others=[])

    def function(h: torch.Tensor, some: list[Any], others: list[Any], owner: Any) -> torch.Tensor:
        some.append(h.sin())
        others.append(h.exp())
        return some[0] * others[0]

    y = checkpoint(function, p, owner.some, owner.others, owner)
    owner.some = owner.others
    y.sum().backward()
    x = p.detach().requires_grad_()
    (x.sin() * x.exp()).sum().backward()
    assert torch.equal(p.grad, x.grad)  # type: ignore[arg-type]
