"""Adapters that are not sound, each with what the smoke check says about it; and that sound ones pass."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import impls
from conformance.isolation.smoke_check import smoke
from conformance.judging import judge
from conformance.simulated_device.device import second
from impls import Implementation, signature_adapter
from impls.nested import checkpoint as nested


def checked(subject: Any, kind: impls.Kind = "checkpoint") -> Any:
    second("cpu")
    what = {"checkpoint": subject} if kind == "checkpoint" else {"provides": subject}
    return smoke(Implementation("yours", kind=kind, declared=False, **what), "cpu")


@pytest.mark.parametrize("name", impls.names())
def test_what_is_built_in_passes(name: str) -> None:
    second("cpu")
    assert smoke(impls.get(name), "cpu").fault == ""


def test_a_missing_capability_is_a_warning() -> None:
    second("cpu")
    assert [one.split(" raised ")[0] for one in smoke(impls.get("legacy"), "cpu").warnings] == [
        "checkpoint(function, x, 3)",
        "checkpoint(function, x, scale=y)",
    ]
    assert smoke(impls.get("nested"), "cpu").warnings == ()


def test_a_keyword_that_is_lost_is_a_warning() -> None:
    found = checked(dropping)
    assert found.fault == ""
    assert re.match(r"checkpoint\(function, x, scale=y\) returned another value", found.warnings[0])


def twice(function: Any, *args: Any) -> Any:
    function(*args)
    return function(*args)


def no_grad(function: Any, *args: Any) -> Any:
    torch.set_grad_enabled(False)
    return function(*args)


def dropping(function: Any, *args: Any, **kwargs: Any) -> Any:
    return nested(function, *args)


class Zero(torch.autograd.Function):
    """A gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.zeros_like(gradients[0])


def only_functions(function: Any, *args: Any) -> Any:
    if isinstance(function, torch.nn.Module):
        raise TypeError("no modules")
    return nested(function, *args)


def another_signature(strategy: str, function: Any, *args: Any) -> Any:
    if not isinstance(strategy, str):
        raise TypeError("strategy is no text")
    return nested(function, *args)


def keyword_needed(function: Any, *args: Any, use_reentrant: bool) -> Any:
    return nested(function, *args)


def function_last(x: Any, function: Any) -> Any:
    return nested(function, x)


def hanging(function: Any, *args: Any) -> Any:
    while True:
        pass


FAULTY = {
    "a decorator": (lambda function, *_: functools.partial(nested, function), "looks like a decorator; adapt it"),
    "one argument alone": (lambda function: functools.partial(nested, function), "looks like a decorator; adapt it"),
    "a wrapper": (lambda module, *_: torch.nn.Sequential(), r"returned a module \(Sequential\) .* wrapper of modules"),
    "an argument before": (another_signature, r"strategy is no text. .* functools.partial\(yours, argument\)"),
    "a keyword": (keyword_needed, r"functools.partial\(yours, use_reentrant=...\)"),
    "another order": (function_last, r"takes the function last; adapt it: .* yours\(\*args, function\)"),
    "no value": (
        lambda function, *args: None if function(*args) is not None else 0,
        "returned None: return what the function returns",
    ),
    "no call": (lambda function, *args: args[0].sin().exp(), "called the function 0 times in forward"),
    "two calls": (twice, "called the function 2 times in forward"),
    "a pair": (lambda function, *args: (function(*args),), "returned a tuple, the function a tensor"),
    "another value": (lambda function, *args: function(*args) * 2, "returned another value than the function does"),
    "other arguments": (lambda function, x, *rest: nested(function, x * 2, *rest), "pass arguments on"),
    "detached": (lambda function, *args: function(*args).detach(), "does not require grad, though"),
    "no gradient": (lambda function, *args: Zero.apply(function(*args)), "gave x no gradient"),
    "grad mode": (no_grad, "left grad mode off: put it back"),
    "an exit": (lambda function, *args: exit(3), "raised SystemExit: 3"),
    "no modules": (only_functions, r"checkpoint\(module, x\) raised TypeError: no modules"),
    "no end": (hanging, "gave no answer in 1 seconds"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_says_what_is_wrong_and_how_to_mend_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "SECONDS_PER_CASE", 1)
    checkpoint, said = FAULTY[name]
    found = checked(checkpoint).fault
    assert re.search(f"^yours cannot be judged: .*{said}", found, re.DOTALL), found
    assert torch.is_grad_enabled()


GRAPH = {name: getattr(torch.autograd.graph, name) for name in impls.GRAPH_NAMES}


def graph(**others: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**GRAPH, **others})


@pytest.mark.parametrize(
    ("provided", "said"),
    [
        (graph(saved_tensors_hooks=lambda pack, unpack: torch.enable_grad()), "pack was called 0 times, once is due"),
        (graph(save_on_cpu=lambda: None), r"save_on_cpu\(\) raised TypeError"),
        (graph(register_multi_grad_hook=lambda tensors, hook: None), "called the hook 0 times"),
    ],
)
def test_a_namespace_whose_names_do_something_else_is_told(provided: Any, said: str) -> None:
    found = checked(provided, "graph").fault
    assert re.search(said, found), found


@pytest.mark.parametrize(
    ("offload", "said"),
    [
        (lambda model: model, r"OffloadModel\(model, device\) raised TypeError"),
        (lambda model, device: 3, "returned a int: return the offloaded model"),
        (lambda model, device: lambda x: model(x).detach(), "is cut off from the graph"),
        (lambda model, device: lambda x: model(x) * 2, "returned another value than the model does"),
    ],
)
def test_a_class_that_is_called_otherwise_is_told(offload: Any, said: str) -> None:
    found = checked(offload, "offload").fault
    assert re.search(said, found), found


def test_helpers_make_a_checkpoint_of_a_decorator_and_of_a_wrapper() -> None:
    def wrap(module: torch.nn.Module) -> torch.nn.Module:
        assert isinstance(module, torch.nn.Module)
        return Wrapped(module)

    for adapted in (
        signature_adapter.decorator(lambda function: functools.partial(nested, function)),
        signature_adapter.wrapper_of_modules(wrap),
    ):
        found = checked(adapted)
        assert (found.fault, found.warnings) == ("", ())


class Wrapped(torch.nn.Module):
    """A module, checkpointed."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return nested(self.module, *args, **kwargs)
