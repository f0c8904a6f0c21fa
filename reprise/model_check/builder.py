"""Loads a user's ``build``, and turns what it returns into a model and a loss."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from reprise.model_check import errors
from reprise.model_check.errors import INTERRUPTS, BuildFails, InvalidArgument, NoLoss, NotAccepted
from reprise.model_check.reachable.leaves import outside_leaves

ACCEPTED = (
    "accepted are (model, loss), where loss(model) computes a scalar tensor that requires grad, and (model, example_inputs), "
    "where the inputs are a tensor, a tuple, a list or a dict; model is a torch.nn.Module, made anew by each call of build"
)


@dataclass(frozen=True)
class Subject:
    """A model that was just built, and its loss; and leaves that are no parameters of the model, by the path to them."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]
    outside: Mapping[str, torch.Tensor]


def load_build(reference: str) -> Callable[[], Any]:
    """The callable at ``"pkg.mod:attr"``. Raises InvalidArgument that says which part failed."""
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise InvalidArgument(f"build is {reference!r}; it must be of the form pkg.mod:function")
    if module_name.endswith(".py"):
        raise InvalidArgument(f"build is {reference!r}; a module is named without .py, as in {module_name[:-3]}:{attribute}")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except INTERRUPTS:
        raise
    except BaseException as error:
        told = f"{errors.told(error)}{errors.place(error)}"
        raise InvalidArgument(f"build is {reference!r}, which cannot be imported: {told}") from error
    if not callable(value):
        raise InvalidArgument(f"build is {reference!r}, of type {type(value).__name__}; it must be a callable; {ACCEPTED}")
    return value


def build_subject(build: Callable[[], Any], device: torch.device | None) -> Subject:
    """What ``build()`` makes, on the device if one is given. Raises BuildFails, and NotAccepted for anything else."""
    if torch.is_inference_mode_enabled():
        raise NotAccepted("torch.inference_mode is on where the check is called, and leaves no gradient: call it outside")
    try:
        with device if device is not None else nullcontext():
            made = build()
    except (NotAccepted, *INTERRUPTS):
        raise
    except BaseException as error:
        raise BuildFails(error) from error
    _close(made)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise NotAccepted(f"build() returned {_described(made)}; {ACCEPTED}")
    model, second = made
    if device is not None and device.type == "meta":
        raise NotAccepted(f"device is {device.type!r}, whose tensors have no values to compare")
    if device is not None:
        model.to(device)
    if isinstance(second, torch.Tensor) and second.grad_fn is not None and second.dim() == 0:
        told = "a scalar with a graph, which seems to be a loss that was computed"
        raise NotAccepted(f"build() returned (model, {told}): return the function that computes it instead; {ACCEPTED}")
    if isinstance(second, torch.Tensor | tuple | list | Mapping):
        inputs = _moved(second, device)
        return Subject(model, lambda: mean_square(_called(model, inputs)), outside_leaves(model, inputs))
    if not callable(second):
        raise NotAccepted(f"build() returned (model, {_described(second)}); {ACCEPTED}")
    return Subject(model, lambda: _scalar(second(model)), outside_leaves(model, second))


def _close(made: Any) -> None:
    """Close a coroutine, which is not accepted: Python warns of one that nobody awaited."""
    if inspect.iscoroutine(made):
        made.close()


def _described(made: Any) -> str:
    if isinstance(made, tuple):
        return f"a tuple of ({', '.join(type(one).__name__ for one in made)})"
    return f"an object of type {type(made).__name__}"


def _moved(inputs: Any, device: torch.device | None) -> Any:
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) and device is not None else leaf, inputs)


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _scalar(value: Any) -> torch.Tensor:
    _close(value)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        shape = f" of shape {tuple(value.shape)} and {value.dtype}" if isinstance(value, torch.Tensor) else ""
        raise NoLoss(f"loss(model) returned {_described(value)}{shape}")
    _refuse_inference(value, "loss(model)")
    return value.reshape(())


def _refuse_inference(value: torch.Tensor, named: str) -> None:
    if value.is_inference():
        raise NoLoss(f"{named} was computed under torch.inference_mode, which leaves no gradient")


def mean_square(outputs: Any) -> torch.Tensor:
    """The sum of the mean squares of floating outputs; if any requires grad, of those that do. Raises NoLoss if none."""
    floating = [leaf for leaf in _tensors(outputs) if leaf.is_floating_point()]
    if not floating:
        raise NoLoss("model(example_inputs) returned no floating tensor")
    trained = [leaf for leaf in floating if leaf.requires_grad]
    if not trained:
        _refuse_inference(floating[0], "model(example_inputs)")
    return torch.stack([leaf.square().mean() for leaf in trained or floating]).sum()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(dict(value) if isinstance(value, Mapping) else value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from _tensors(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, one.name, None) for one in dataclasses.fields(leaf)])
