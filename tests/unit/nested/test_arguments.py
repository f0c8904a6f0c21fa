"""The arguments that a recomputation gets: containers and dataclasses as they were, tensors as they are saved."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pytest
import torch

from impls.nested import checkpoint
from impls.nested.inputs import Inputs
from impls.tensors.containers import flatten_once

Pair = namedtuple("Pair", "left right")
T = TypeVar("T")


@dataclass
class Box:
    """A dataclass that pytree does not know."""

    value: Any
    others: Any


class Mixin:
    """A base that is no dataclass."""


@dataclass(slots=True)
class Slots:
    """A dataclass without a ``__dict__``."""

    value: Any


@dataclass(slots=True)
class MoreSlots(Slots):
    """One that inherits slots."""

    more: Any


@dataclass
class Mixed(Mixin, Slots):
    """One with slots and a ``__dict__``, and a base that is no dataclass."""


@dataclass
class Generically(Generic[T]):
    """One that is generic."""

    value: T


@dataclass(frozen=True)
class Frozen(Protocol):
    """One that cannot be changed in the usual way."""

    value: Any


class FrozenBox(Frozen):
    """An object with a Protocol for a base."""


@pytest.mark.parametrize("kind", [Box, Slots, MoreSlots, Mixed, Generically, FrozenBox])
@pytest.mark.parametrize("nested", [False, True])
def test_dataclasses_are_given_back_as_they_were(kind: Any, nested: bool) -> None:
    weight = torch.eye(3).mul(2).requires_grad_()
    x, seen, had = torch.ones(3, requires_grad=True), [], []

    def function(record: Any) -> torch.Tensor:
        seen.append(record)
        had.append(hasattr(record, "more") or hasattr(record, "hidden"))
        object.__setattr__(record, "more" if isinstance(record, MoreSlots) else "value", record.value)
        if hasattr(record, "__dict__"):
            vars(record)["hidden"] = 3
        for _ in range(2):
            object.__setattr__(record, "value", torch.tanh(record.value @ weight))
        return (record.value**2).sum()

    def outer(x: torch.Tensor) -> torch.Tensor:
        record = object.__new__(kind)
        object.__setattr__(record, "value", x * 1)
        return checkpoint(function, record) if checked else function(record)

    gradients = []
    for checked in (False, True):
        result = checkpoint(outer, x) if nested and checked else outer(x)
        gradients.append(torch.autograd.grad(result, (x, weight)))
    assert all(map(torch.equal, *gradients))
    assert all(type(one) is kind for one in seen)
    assert not any(had)


@dataclass
class Named:
    """A dataclass whose fields an Enum may have."""

    label: str


class Number(Named, enum.Enum):
    """Dataclasses that each are one object."""

    ONE = "one"


@dataclass
class Mapped(dict[str, Any]):
    """A dict that is a dataclass."""

    value: Any


@dataclass
class Model(torch.nn.Module):
    """A module that is a dataclass."""

    value: Any

    def __post_init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("one", [Number.ONE, Mapped(1), Model(1), Slots])
def test_what_is_more_than_its_attributes_is_no_container(one: Any) -> None:
    assert flatten_once(one) is None


def test_arguments_are_put_together_again() -> None:
    x, y = torch.ones(2, requires_grad=True) * 1, torch.zeros(2)
    args, kwargs = Inputs((x, Pair(y, [x, 3])), {"box": Box(x, {"deep": (y, None)})}).restore()[:2]
    assert isinstance(args[1], Pair)
    assert isinstance(kwargs["box"], Box)
    assert kwargs["box"].value is args[0] is args[1].right[0]
    assert kwargs["box"].others["deep"][0] is args[1].left
    assert args[0].grad_fn is x.grad_fn
    assert args[1].right[1] == 3
    assert kwargs["box"].others["deep"][1] is None


def test_containers_are_fresh() -> None:
    box, values = Box(torch.ones(2), None), [torch.zeros(2)]
    inputs = Inputs((box, values), {})
    values.append(torch.ones(1))
    box.others = "later"
    (fresh_box, fresh_values), _ = inputs.restore()[:2]
    assert len(fresh_values) == 1
    assert fresh_box.others is None
    fresh_values.clear()
    assert len(inputs.restore()[0][1]) == 1


def test_generators_are_found_at_any_depth() -> None:
    one, two, three = (torch.Generator() for _ in range(3))
    assert Inputs((one, [Box(None, (two,))]), {"source": {"deep": three}}).generators == [one, two, three]


@pytest.mark.parametrize("change", [0, 1, 2])
def test_the_index_of_a_changed_argument_is_found(change: int) -> None:
    tensors = [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2)]
    inputs = Inputs((tensors[0], [tensors[1]]), {"other": {"deep": tensors[2]}})
    assert inputs.first_changed() is None
    with torch.no_grad():
        tensors[change].view(1, 2).add_(1)
    assert inputs.first_changed() == change


def test_a_parameter_and_an_inference_tensor_come_back_as_they_are() -> None:
    with torch.inference_mode():
        constant = torch.ones(2)
    parameter = torch.nn.Parameter(torch.ones(2))
    (one, other), _ = Inputs((parameter, constant), {}).restore()[:2]
    assert one is parameter
    assert other is constant


def test_attributes_come_back_through_hooks() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    x.scale = 2  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        inputs = Inputs((x,), {})
    assert inputs.restore()[0][0] is x
    del x
    (restored,), _ = inputs.restore()[:2]
    assert restored.scale == 2


def test_releases_without_a_way_to_save_a_tensor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impls.tensors.packed.make_saved_tensor", None)
    packed: list[torch.Tensor] = []
    x = torch.ones(2, requires_grad=True) * 1

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        inputs = Inputs((x, x), {})
    (one, other), _ = inputs.restore()[:2]
    assert len(packed) == 1
    assert one is other
    assert one.grad_fn is x.grad_fn
    assert torch.equal(one, x)
