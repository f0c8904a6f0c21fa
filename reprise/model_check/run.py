"""One run of a model built anew: a step that is recorded, and steps of SGD after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reprise.model_check.builder import build_subject
from reprise.model_check.process_state import preserved, random_streams, seed_all
from reprise.model_check.regions import Key, Region, Watch, largest_modules, redirected

Checkpoint = Callable[..., Any]
Tensors = Mapping[str, torch.Tensor]
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Setting:
    """What all runs of a check have in common."""

    build: Callable[[], Any]
    globs: tuple[str, ...] = ()
    device: torch.device | None = None
    seed: int = 0
    steps: int = 2


@dataclass(frozen=True)
class Probe:
    """What looks on in a run: a mode around the steps, something around each region's run, and a call after forward."""

    mode: Callable[[nn.Module], AbstractContextManager[Any]]
    watch: Callable[[nn.Module], Watch | None]
    after_forward: Callable[[nn.Module], None]


@dataclass(frozen=True)
class Run:
    """What a run left; tensors are copies on the CPU.

    ``gradients``, ``buffers``, ``random`` and ``training`` are those after the first step, ``parameters`` and
    ``last_buffers`` those after the last, ``losses`` of each step.
    """

    losses: tuple[torch.Tensor, ...]
    gradients: Tensors
    trainable: tuple[str, ...]
    buffers: Tensors
    random: Mapping[str, str]
    training: Mapping[str, bool]
    parameters: Tensors
    last_buffers: Tensors
    initial: Tensors
    seconds: float
    regions: tuple[Region, ...]
    output_requires_grad: Mapping[Key, bool]
    calls: int
    recomputations: int


class NoRegions(ValueError):
    """The model has no region."""


def copies(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, in the same layout; without what is None."""
    return {name: one.detach().to("cpu", copy=True) for name, one in tensors.items() if one is not None}


def run(
    setting: Setting,
    checkpoint: Checkpoint | None,
    *,
    steps: int | None = None,
    only: frozenset[Key] | None = None,
    probe: Probe | None = None,
) -> Run:
    """Build the model and run ``steps``, regions through ``checkpoint`` or plainly; the process is left as it was.

    Raises TypeError and ValueError for what ``build`` returned, NoRegions, and what the model and the implementation raise.
    """
    with preserved(), torch.enable_grad():
        seed_all(setting.seed)
        subject = build_subject(setting.build, setting.device)
        model = subject.model
        initial = copies({**dict(model.named_parameters()), **dict(model.named_buffers())})
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=LEARNING_RATE)
        watch = probe.watch(model) if probe else None
        losses: list[torch.Tensor] = []
        with redirected(model, checkpoint, globs=setting.globs, only=only, watch=watch) as log:
            for step in range(setting.steps if steps is None else steps):
                log.begin_step()
                optimizer.zero_grad()
                with probe.mode(model) if probe else nullcontext():
                    start = _now(model)
                    loss = subject.loss()
                    if probe:
                        probe.after_forward(model)
                    if not loss.requires_grad and step == 0 and checkpoint is None:
                        raise TypeError("loss(model) does not require grad: there is no gradient to compare")
                    loss.backward()
                    seconds = _now(model) - start
                losses.append(loss.detach().to("cpu", copy=True))
                del loss
                if step == 0:
                    first = _first_step(model), seconds, log.calls, log.recomputations
                    regions, flags = tuple(log.regions.values()), dict(log.output_requires_grad)
                    if not regions:
                        raise NoRegions(_no_regions(model, setting.globs))
                optimizer.step()
        (gradients, buffers, random, training), seconds, calls, recomputations = first
        return Run(
            losses=tuple(losses),
            gradients=gradients,
            trainable=tuple(name for name, one in model.named_parameters() if one.requires_grad),
            buffers=buffers,
            random=random,
            training=training,
            parameters=copies(dict(model.named_parameters())),
            last_buffers=copies(dict(model.named_buffers())),
            initial=initial,
            seconds=seconds,
            regions=regions,
            output_requires_grad=flags,
            calls=calls,
            recomputations=recomputations,
        )


def _first_step(model: nn.Module) -> tuple[Tensors, Tensors, Mapping[str, str], Mapping[str, bool]]:
    gradients = copies({name: one.grad for name, one in model.named_parameters()})
    training = {name: module.training for name, module in model.named_modules()}
    return gradients, copies(dict(model.named_buffers())), random_streams(), training


def _now(model: nn.Module) -> float:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter()


def _no_regions(model: nn.Module, globs: tuple[str, ...]) -> str:
    if globs:
        return f"no module that matches {', '.join(map(repr, globs))} was called by its forward; {largest_modules(model)}"
    told = "no region found: the model does not call torch.utils.checkpoint.checkpoint. Switch its checkpointing on in build "
    named = "(transformers: model.gradient_checkpointing_enable() and train()), or name modules, as with --regions 'layers.*'; "
    return told + named + largest_modules(model)
