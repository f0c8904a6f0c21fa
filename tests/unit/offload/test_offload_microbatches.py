"""Microbatches: inputs split, outputs joined, each part recomputed with its own random numbers."""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from impls.offload import OffloadModel

Pair = namedtuple("Pair", "one two")


class Returning(nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.make(*args, **kwargs)


def _split(make: Any, parts: int = 2) -> OffloadModel:
    return OffloadModel([Returning(make)], "cpu", num_slices=1, checkpoint_activation=True, num_microbatches=parts)


@pytest.mark.parametrize(("rows", "parts"), [(4, 2), (5, 2), (5, 3), (3, 3)])
def test_each_part_is_what_the_plain_model_makes_of_it(rows: int, parts: int) -> None:
    plain, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(rows, 3)
    expected = torch.cat([plain(part) for part in torch.tensor_split(x, parts)])
    expected.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in plain.parameters() if parameter.grad is not None]
    plain.zero_grad()
    actual = OffloadModel(plain, "cpu", checkpoint_activation=True, num_microbatches=parts)(x)
    actual.square().sum().backward()
    assert actual.shape == (rows, 1)
    torch.testing.assert_close(actual, expected)  # parts may be at other addresses, for which there are other kernels
    torch.testing.assert_close([parameter.grad for parameter in plain.parameters()], grads)


def test_each_part_is_recomputed_with_its_own_mask() -> None:
    layers = [nn.Dropout(0.5), nn.Dropout(0.5), nn.Dropout(0.5)]
    x = torch.ones(9, 64, requires_grad=True)
    one, other = (OffloadModel(layers, "cpu", checkpoint_activation=True, num_microbatches=4)(x) for _ in range(2))
    state = torch.get_rng_state()
    torch.rand(3)
    for y in (one, other):
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y)  # a mask is its own gradient where the input is one
    torch.set_rng_state(state)
    assert not torch.equal(one[0], one[-1])
    assert not torch.equal(one, other)


def test_containers_keep_their_structure() -> None:
    def make(x: torch.Tensor, scale: float, more: Any) -> Any:
        return Pair(x * scale, {"a": [more["b"] > 0, None], "c": ("text", 3)})

    x = torch.randn(5, 2)
    y = _split(make)(x, 2.0, more={"b": x})
    assert type(y) is Pair
    assert torch.equal(y.one, x * 2)
    assert torch.equal(y.two["a"][0], x > 0)
    assert y.two["c"] == ("text", 3)


def test_a_tensor_that_is_given_or_returned_twice_stays_one() -> None:
    def make(x: torch.Tensor, y: torch.Tensor) -> Any:
        assert x is y
        return x, x

    x = torch.randn(4, 2)
    one, other = _split(make)(x, x)
    assert one is other


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([torch.ones(2, 1)], "num_microbatches is 3; the inputs have 2 rows"),
        ([torch.ones(3, 1), torch.ones(4, 1)], r"\[\(3, 1\), \(4, 1\)\].*num_microbatches=3"),
        ([torch.ones(3, 1), torch.ones(())], "same number of rows"),
        ([], "same number of rows"),
    ],
)
def test_inputs_that_cannot_be_split_are_refused(tensors: list[torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _split(lambda *args: args[0], 3)(*tensors)


class _Twice:
    calls = 0

    def __call__(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return x, self.calls


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.mean(), "without dimensions"),
        (_Twice(), "are 1 and 2"),
        (lambda x: [x] * int(x[0, 0] + 1), "differ in structure"),
        (lambda x: (x, object()), "must be equal"),
    ],
)
def test_outputs_that_cannot_be_joined_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _split(make)(torch.arange(4.0).view(4, 1))


@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}])
def test_batch_norm_is_warned_of_where_it_sees_parts(options: dict[str, bool]) -> None:
    layers = [nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2, **options))]
    model = OffloadModel(layers, "cpu", num_slices=2, checkpoint_activation=True, num_microbatches=2)
    with pytest.warns(UserWarning, match=r"1\.0 is a BatchNorm1d") as caught:
        model(torch.randn(6, 2))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error" if not options else "ignore")
        model.eval()(torch.randn(6, 2))
        OffloadModel(layers, "cpu", num_slices=2).train()(torch.randn(6, 2))


def test_a_gradient_in_forward_may_go_through_batch_norm() -> None:
    class Penalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.linear(x)).tanh()
            (grad,) = torch.autograd.grad(y.square().sum(), self.linear.weight, create_graph=True)
            return y + x @ grad

    plain = Penalized().double()
    model = OffloadModel([copy.deepcopy(plain)], "cpu", num_slices=1, checkpoint_activation=True, num_microbatches=2)
    x = torch.randn(6, 2, dtype=torch.float64)
    torch.cat([plain(part) for part in x.chunk(2)]).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of statistics of each microbatch
        model(x).sum().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
