"""How OffloadModel cuts a model, what it keeps of it, and what it refuses."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from impls.offload import OffloadModel, slices


def _linears(count: int = 3) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


def test_the_example_of_the_literature_is_cut_as_there() -> None:
    assert slices([260, 20, 20, 40], 3) == ((0,), (1, 2, 3), ())


@pytest.mark.parametrize(
    ("counts", "number", "expected"),
    [
        ([5, 5, 5, 5], 2, ((0, 1), (2, 3))),
        ([5, 5, 5], 2, ((0,), (1, 2))),
        ([0, 9, 1], 2, ((0, 1), (2,))),
        ([0, 0], 2, ((0, 1), ())),
        ([1, 1, 10], 1, ((0, 1, 2),)),
        ([3, 3, 3], 3, ((0,), (1,), (2,))),
    ],
)
def test_a_slice_ends_before_a_module_that_exceeds_its_share(counts: list[int], number: int, expected: Any) -> None:
    assert slices(counts, number) == expected


def test_no_slices_are_refused() -> None:
    with pytest.raises(ValueError, match="num_slices is 0"):
        slices([1], 0)


def test_names_and_parameters_are_those_of_the_model() -> None:
    model = nn.Sequential()
    model.add_module("one", nn.Linear(2, 3))
    model.add_module("norm", nn.BatchNorm1d(3))
    parameters, keys = list(model.parameters()), list(model.state_dict())
    offloaded = OffloadModel(model, "cpu", num_slices=2)
    assert list(offloaded.state_dict()) == keys
    assert all(one is other for one, other in zip(offloaded.parameters(), parameters, strict=True))


@pytest.mark.parametrize("container", [list, tuple, nn.ModuleList])
def test_modules_of_a_list_are_named_as_in_a_sequential(container: Any) -> None:
    modules = _linears()
    assert list(OffloadModel(container(modules), "cpu").state_dict()) == list(nn.Sequential(*modules).state_dict())


def test_a_state_dict_goes_through_a_file() -> None:
    one, other, file = OffloadModel(_linears(), "cpu"), OffloadModel(_linears(), "cpu"), io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    x = torch.randn(1, 2)
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_copy_and_a_pickled_model_are_models_of_their_own(checkpoint: bool) -> None:
    model, file = OffloadModel(_linears(), "cpu", checkpoint_activation=checkpoint), io.BytesIO()
    x = torch.randn(1, 2)
    expected = model(x)
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other(x).sum().backward()
        assert torch.equal(other(x), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_module_that_is_replaced_takes_part() -> None:
    model, other = OffloadModel(_linears(), "cpu"), nn.Linear(2, 2)
    model.add_module("1", other)
    model(torch.randn(1, 2)).sum().backward()
    assert other.weight.grad is not None


def test_a_module_that_is_added_is_refused() -> None:
    model = OffloadModel(_linears(), "cpu")
    model.add_module("more", nn.Tanh())
    with pytest.raises(RuntimeError, match="more"):
        model(torch.randn(1, 2))


class _Own(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input


def _with_a_hook() -> nn.Sequential:
    model = nn.Sequential(*_linears())
    model.register_forward_hook(lambda module, args, output: None)
    return model


def _with_a_parameter() -> nn.Sequential:
    model = nn.Sequential(*_linears())
    model.register_parameter("extra", nn.Parameter(torch.ones(1)))
    return model


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (nn.Linear(2, 2), TypeError, "model is of type Linear"),
        (_Own(nn.Tanh()), TypeError, r"_Own with a forward\(\) of its own"),
        ([], ValueError, "model is empty"),
        ([torch.tanh], TypeError, "module '0' of model"),
        ([nn.LazyLinear(2)], ValueError, "has no shape yet"),
        (_with_a_hook(), ValueError, "hooks of its own"),
        (_with_a_parameter(), ValueError, "extra"),
    ],
)
def test_a_model_that_is_no_chain_is_refused(model: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        OffloadModel(model, "cpu", num_slices=1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_slices": 0}, ValueError, "num_slices is 0; it must be between 1 and the number of modules, 3"),
        ({"num_slices": 4}, ValueError, "num_slices is 4"),
        ({"num_slices": 1.5}, TypeError, "num_slices is 1.5"),
        ({"num_microbatches": 0, "checkpoint_activation": True}, ValueError, "num_microbatches is 0"),
        ({"num_microbatches": True, "checkpoint_activation": True}, TypeError, "num_microbatches is True"),
        ({"num_microbatches": 2}, ValueError, "needs checkpoint_activation=True"),
        ({"checkpoint_activation": 1}, TypeError, "checkpoint_activation is 1"),
        ({"offload_device": "meta"}, ValueError, "offload_device is 'meta'"),
        ({"offload_device": 3}, TypeError, "offload_device is 3"),
        ({"offload_device": "nothing"}, ValueError, "offload_device is 'nothing'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    modules = _linears()
    with pytest.raises(error, match=words):
        OffloadModel(modules, "cpu", **options)
    assert all(parameter.device.type == "cpu" for module in modules for parameter in module.parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_scripted_module_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases of torch advise against it
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="module '1' of model is a RecursiveScriptModule"):
        OffloadModel([nn.Tanh(), scripted], "cpu", num_slices=1)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="device is 'cuda', where no tensor can be made"):
        OffloadModel(_linears(), "cuda")


def test_a_module_in_two_slices_is_refused_also_inside_others() -> None:
    inner = nn.Linear(2, 2)
    for model in ([inner, nn.Linear(2, 2), inner], [nn.Sequential(inner), nn.Linear(2, 2), nn.Sequential(nn.Tanh(), inner)]):
        with pytest.raises(ValueError, match=r"one Linear as '0.* in slice 0 and as '2.* in slice 2"):
            OffloadModel(model, "cpu")


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("wrap", [nn.Identity, nn.Sequential])
def test_a_module_twice_in_one_slice_is_taken(wrap: Any, checkpoint: bool) -> None:
    inner, x = nn.Linear(2, 2), torch.randn(3, 2)
    last = nn.Sequential(inner) if wrap is nn.Sequential else inner
    expected = torch.autograd.grad(last(inner(x).tanh()).sum(), inner.weight)[0]
    weight = inner.weight
    model = OffloadModel([inner, nn.Tanh(), last], "cpu", num_slices=1, checkpoint_activation=checkpoint)
    model(x).sum().backward()
    assert inner.weight is weight
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)


def test_a_buffer_of_two_modules_that_one_assigns_is_an_error() -> None:
    class Counting(nn.Module):
        calls: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return x

    layers = [Counting(), Counting()]
    for layer in layers:
        layer.register_buffer("calls", torch.zeros(()))
    layers[1].calls = layers[0].calls
    with pytest.raises(RuntimeError, match="is one with"):
        OffloadModel(layers, "cpu", num_slices=1)(torch.randn(1))
