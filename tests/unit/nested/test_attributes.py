"""Class and attributes of what a region is passed: those of the call, and on an object that nobody else has."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import impls
import impls.offload


class Kind(torch.Tensor):
    """A subclass."""


class Hands(torch.Tensor):
    """Hands its attributes on to whatever is made of it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(value, Hands) and isinstance(args[0], Hands):
            vars(value).update(vars(args[0]))
        return value


class Slots(torch.Tensor):
    """Keeps an attribute in a slot, so that its objects are of another layout."""

    __slots__ = ("scale",)


class Plainly(torch.Tensor):
    """Its operators give plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def gradient(name: str, kind: type[torch.Tensor], graded: bool) -> tuple[torch.Tensor, set[str]]:
    """Of an inner region that reads an attribute of its argument; the gradient, and of what class the argument was."""
    p = torch.linspace(0.1, 1.4, 4, requires_grad=True)
    checkpoint, seen = impls.get(name).checkpoint, set()

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.add(type(x).__name__)
        return (x.as_subclass(torch.Tensor) * p * getattr(x, "scale", 1.0)).sin()

    def outer(h: torch.Tensor) -> torch.Tensor:
        x = (h if graded else h.detach()).cos().as_subclass(kind)
        x.scale = 3.0  # type: ignore[attr-defined]
        y: torch.Tensor = checkpoint(inner, x) if graded or name == "nested" else inner(x)
        return y * h

    checkpoint(outer, p).sum().backward()
    assert p.grad is not None
    return p.grad, seen


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("kind", [Kind, Hands, Slots, Plainly])
@pytest.mark.parametrize("name", ["nested", "legacy", "reentrant"])
def test_class_and_attributes_come_back(name: str, kind: type[torch.Tensor], graded: bool) -> None:
    expected, _ = gradient("plain", kind, graded)
    found, seen = gradient(name, kind, graded)
    torch.testing.assert_close(found, expected)
    assert seen == {kind.__name__}


def test_attributes_are_those_of_the_call() -> None:
    def gradients(name: str) -> torch.Tensor:
        p = torch.linspace(0.1, 1.4, 4, requires_grad=True)
        checkpoint = impls.get(name).checkpoint

        def outer(h: torch.Tensor) -> torch.Tensor:
            x, made = torch.ones(4), h
            for scale in (None, 2.0, 3.0):
                if scale:
                    x.scale = scale  # type: ignore[attr-defined]
                made = made * checkpoint(lambda a: (a * p * getattr(a, "scale", 1.0)).sin(), x)
            return made

        return torch.autograd.grad(checkpoint(outer, p).sum(), p)[0]

    assert torch.equal(gradients("nested"), gradients("plain"))


def test_attributes_that_lead_back_lead_to_the_same_objects() -> None:
    p, seen = torch.ones(2, requires_grad=True), []

    def inner(x: Any) -> torch.Tensor:
        seen.append((x.other.other is x, x.itself is x, x.other.label))
        y: torch.Tensor = x.sin()
        return y

    def outer(h: torch.Tensor) -> torch.Tensor:
        x: Any = h.cos()
        x.other, x.itself = h.detach().exp(), x
        x.other.other, x.other.label = x, "other"
        y: torch.Tensor = impls.get("nested").checkpoint(inner, x)
        return y

    impls.get("nested").checkpoint(outer, p).sum().backward()
    assert seen == [(True, True, "other")] * 2  # the outer region stops before it


@pytest.mark.parametrize("name", ["legacy", "reentrant"])
def test_an_argument_that_is_its_own_attribute_is_one_leaf(name: str) -> None:
    p = torch.linspace(0.1, 1.4, 4, requires_grad=True)
    x: Any = p.sin()
    x.itself = x
    impls.get(name).checkpoint(lambda a: a.cos() * a.itself, x).sum().backward()
    (expected,) = torch.autograd.grad((p.sin().cos() * p.sin()).sum(), p)
    torch.testing.assert_close(p.grad, expected)


def test_what_hooks_hand_back_stays_as_it_was() -> None:
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        kept.append(tensor.detach().as_subclass(torch.Tensor).clone())
        return len(kept) - 1

    p, x = torch.ones(2, requires_grad=True), torch.ones(2).as_subclass(Kind).mul_(1)
    x.scale = 3.0  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
        y = impls.get("nested").checkpoint(lambda a: (a.as_subclass(torch.Tensor) * p * a.scale).sin(), x)
    y.sum().backward()
    assert [(type(one), vars(one), one._version) for one in kept] == [(torch.Tensor, {}, 0)] * len(kept)


@pytest.mark.parametrize(("copied", "changed"), [(True, False), (False, False), (False, True)])
def test_attributes_have_the_versions_that_they_had(copied: bool, changed: bool) -> None:
    """Where hooks bring back copies, whose versions start anew; a change that hooks bring back is refused."""
    p, scale = torch.ones(2, requires_grad=True), torch.full((2,), 3.0).mul_(1)
    x: Any = torch.ones(2)
    x.scale = scale
    pack = torch.clone if copied else lambda tensor: tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = impls.get("nested").checkpoint(lambda a: (a * p * a.scale).sin(), x).sum()
    if changed:
        scale.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place") if changed else contextlib.nullcontext():
        y.backward()
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 3 * torch.full((2,), 3.0).cos())


class Scaled(torch.nn.Module):
    """Reads an attribute of what it is given, and hands on what has one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.2, 0.8, 4))
        self.seen: set[str] = set()

    def forward(self, x: Any) -> Any:
        self.seen.add(type(x).__name__)
        y: Any = (x.as_subclass(torch.Tensor) * self.weight * getattr(x, "scale", 1.0)).sin().as_subclass(type(x))
        y.scale = 2.0
        return y


@pytest.mark.parametrize("kind", [torch.Tensor, Kind, Slots, Plainly])
def test_slices_are_recomputed_with_attributes(kind: type[torch.Tensor]) -> None:
    found = []
    for offloaded in (False, True):
        layers = [Scaled(), Scaled()]
        x: Any = torch.ones(3, 4).as_subclass(kind)
        x.scale = 3.0
        model = impls.offload.OffloadModel(layers, "cpu", num_slices=2, checkpoint_activation=True)
        y = model(x) if offloaded else layers[1](layers[0](x))
        y.as_subclass(torch.Tensor).sum().backward()
        found.append([(layer.weight.grad, layer.seen) for layer in layers])
    assert str(found[0]) == str(found[1])
    assert found[0][0][1] == {kind.__name__}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("attribute", [False, True])
def test_a_dual_tensor_keeps_its_tangent(attribute: bool, copied: bool) -> None:
    """In forward-mode differentiation an argument of an inner region comes back with its tangent and its attributes."""

    def gradient(checkpoint: Any) -> Any:
        p, x, tangent = (torch.linspace(low, 1.4, 4, dtype=torch.float64) for low in (0.1, 0.2, 0.3))
        p.requires_grad_()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one)
        with torch.autograd.forward_ad.dual_level(), hooks if copied else contextlib.nullcontext():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            dual.mul_(2)  # a copy of it is of another version
            if attribute:
                dual.scale = 3.0
            inner = lambda one, p: (one * p).sin() * getattr(one, "scale", 1.0)  # noqa: E731
            y = checkpoint(lambda one, p: checkpoint(inner, one, p).cos(), dual, p)
            return torch.autograd.forward_ad.unpack_dual(torch.autograd.grad(y.sum(), p)[0])

    expected, seen = gradient(impls.get("plain").checkpoint), gradient(impls.get("nested").checkpoint)
    assert torch.equal(seen.primal, expected.primal)
    assert torch.equal(seen.tangent, expected.tangent)
