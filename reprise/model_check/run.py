"""One run of a newly built model: a first step whose results are copied, and further steps of SGD."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from reprise.model_check import errors
from reprise.model_check.builder import ACCEPTED, Subject, build_subject
from reprise.model_check.errors import BUILD_ERRORS, INTERRUPTS, Ended, NoLoss, NotAccepted, NotCopied, PlainFails
from reprise.model_check.names.globs import NoRegions, is_in_scripted, largest_modules, matching, uncalled
from reprise.model_check.process_state import (
    PutBack,
    PutBackAgain,
    Stacks,
    preserved,
    process_state,
    random_streams,
    seed_all,
)
from reprise.model_check.regions import (
    Key,
    Passed,
    Region,
    RegionLog,
    Watch,
    redirect,
    restoration,
)
from reprise.model_check.tensors.tensor_difference import is_equal

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
    """What observes one step: a mode around it, a context around each region's run, and a call after forward."""

    mode: Callable[[nn.Module], AbstractContextManager[Any]]
    watch: Callable[[nn.Module], Watch | None]
    after_forward: Callable[[nn.Module, RegionLog], None]
    compared: Callable[[Tensors], None] = lambda _: None  # is told which leaves besides the model's parameters are compared
    step: int = 1


@dataclass(frozen=True)
class StepEnd:
    """What a step left after backward, as copies on the CPU."""

    gradients: Tensors
    buffers: Tensors
    random: Mapping[str, str]
    training: Mapping[str, bool]
    process: Mapping[str, str]

    @classmethod
    def of(cls, subject: Subject, before: Stacks) -> StepEnd:
        """What there is now, ``before`` being PyTorch's stacks before the first step."""
        model = subject.model
        return cls(
            gradients=copies({name: one.grad for name, one in (*model.named_parameters(), *subject.outside.items())}),
            buffers=copies(dict(model.named_buffers())),
            random=random_streams(),
            training={name: module.training for name, module in model.named_modules()},
            process=process_state(before),
        )


@dataclass(frozen=True)
class FirstStep(StepEnd):
    """What the first step of a run left; ``recomputations`` counts further runs of regions' functions."""

    regions: tuple[Region, ...]
    output_requires_grad: Mapping[Key, tuple[str, ...]]  # names of outputs
    calls: int
    recomputations: int
    reentrant_calls: int  # of the model's own that ask for use_reentrant=True
    uncalled: Mapping[str, tuple[str, ...]]  # by glob, matching modules that the step does not call
    passed: tuple[Passed, ...]  # what regions are called with, each number of arguments and names once


@dataclass(frozen=True)
class Run(FirstStep):
    """What a run left: its first step, what each of the ``later`` steps left, losses, and ``parameters`` after the last step.

    ``seconds`` are those of steps without a probe; ``sources``, the files of the model's code; ``devices``, where its
    parameters are.
    """

    later: tuple[StepEnd, ...]
    losses: tuple[torch.Tensor, ...]
    seconds: tuple[float, ...]
    parameters: Tensors
    initial: Tensors
    sources: frozenset[str]
    devices: tuple[str, ...]


@dataclass
class _Progress:
    """Where a run is: the part of which step, such as ``backward of step 2``; "" outside of the model's code."""

    part: str = ""

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """The part is this one inside, and stays so if an error ends it."""
        self.part = part
        yield
        self.part = ""


def copies(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Copies of these tensors on the CPU, in the same layout; entries that are None or not initialized are left out."""
    return {name: _copy(name, one) for name, one in tensors.items() if one is not None and not is_lazy(one)}


def _copy(name: str, tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.detach().to("cpu", copy=True)
    except Exception as error:
        told = f"{name} ({type(tensor).__name__}, {tensor.layout}, on {tensor.device}) cannot be copied, so the model cannot be"
        raise NotCopied(f"{told} checked: {errors.told(error)}") from error


def run(
    setting: Setting,
    checkpoint: Checkpoint | None,
    *,
    steps: int | None = None,
    only: frozenset[Key] | None = None,
    probe: Probe | None = None,
) -> Run:
    """Build the model and run ``steps``, with regions run by ``checkpoint`` or plainly; the process is left as it was.

    Raises BUILD_ERRORS. For other errors it raises PlainFails in a plain run, else the error itself, or Ended for
    one that is no Exception.
    """
    progress = _Progress()
    try:
        return _run(setting, checkpoint, setting.steps if steps is None else steps, only, probe, progress)
    except (*BUILD_ERRORS, *INTERRUPTS):
        raise
    except (NoLoss, NotCopied) as error:
        if checkpoint is not None:
            raise
        raise NotAccepted(f"{error}; {ACCEPTED}" if isinstance(error, NoLoss) else str(error)) from error
    except BaseException as error:
        if checkpoint is None:
            raise PlainFails(error, progress.part, watched=probe is not None) from error
        if isinstance(error, Exception):
            raise
        raise Ended(error) from None


def _run(
    setting: Setting, checkpoint: Checkpoint | None, steps: int, only: frozenset[Key] | None, probe: Probe | None, at: _Progress
) -> Run:
    with preserved(), preserved(), torch.enable_grad():  # twice, as an interrupt may come when the end of one begins
        seed_all(setting.seed)
        subject = build_subject(setting.build, setting.device)
        model = subject.model
        initial = copies(tensors := {**dict(model.named_parameters()), **dict(model.named_buffers())})
        trainable = [one for one in model.parameters() if one.requires_grad]
        if not trainable:
            raise NotAccepted("no parameter of the model requires grad: there is no gradient to compare")
        stacks = Stacks.now()
        optimizer = torch.optim.SGD(trainable, lr=LEARNING_RATE)
        losses, seconds, later = list[torch.Tensor](), list[float](), list[StepEnd]()
        first: FirstStep | None = None
        watch = probe.watch(model) if probe else None
        if probe:
            probe.compared(subject.outside)
        restored, put_back = restoration(model), _putting_back(model, tensors, initial, subject.outside)
        with PutBackAgain(restored), PutBackAgain(put_back), PutBack(put_back), PutBack(restored):
            log = redirect(model, checkpoint, globs=setting.globs, only=only)
            for number in range(1, steps + 1):
                optimizer.zero_grad()
                _clear_gradients(subject.outside)
                observer = probe if probe and number == probe.step else None
                log.watch = watch if observer else None
                loss, time_taken = _step(subject, log, observer, at, number)
                losses.append(loss.detach().to("cpu", copy=True))
                seconds += [time_taken] if observer is None else []
                if first is None:
                    first = _first_step(subject, log, setting.globs, stacks)
                else:
                    later.append(StepEnd.of(subject, stacks))
                del loss
                with at.during(f"SGD's update of step {number}"):
                    optimizer.step()
            assert first is not None
            return Run(
                **vars(first),
                later=tuple(later),
                losses=tuple(losses),
                seconds=tuple(seconds),
                parameters=copies(dict(model.named_parameters())),
                initial=initial,
                sources=errors.sources(model, setting.build),
                devices=tuple(sorted({str(one.device) for one in model.parameters()})),
            )


def _putting_back(model: nn.Module, tensors: Tensors, values: Tensors, outside: Tensors) -> Callable[[], None]:
    """What restores tensors, gradients and train() flags: built models may share modules and leaves that the user keeps."""
    training = {module: module.training for module in model.modules()}
    own = [vars(module).get(name) for module in training for name in ("_parameters", "_buffers")]  # None in scripted ones
    registered = [(one, dict(one)) for one in own if one is not None]
    gradients = [(one, one.grad) for one in (*tensors.values(), *outside.values()) if one.is_leaf]

    def put_back() -> None:
        for one, before in registered:
            if [*map(id, one.values())] != [*map(id, before.values())]:  # forward has put another tensor in its place
                one.clear()
                one.update(before)
        with torch.no_grad():
            for name, value in values.items():
                one = tensors[name]
                if one.layout == torch.strided and not is_equal(one, value.to(one.device)):
                    one.copy_(value)
        for leaf, gradient in gradients:
            leaf.grad = gradient
        for module, flag in training.items():
            if module.training != flag:
                module.training = flag

    return put_back


def _clear_gradients(leaves: Tensors) -> None:
    for one in leaves.values():
        one.grad = None


def _step(
    subject: Subject, log: RegionLog, probe: Probe | None, progress: _Progress, number: int
) -> tuple[torch.Tensor, float]:
    """Run forward and backward. Returns the loss, and the seconds."""
    log.begin_step()
    with probe.mode(subject.model) if probe else nullcontext():
        start = now(subject.model)
        with progress.during(f"forward of step {number}"):
            loss = subject.loss()
        if probe:
            probe.after_forward(subject.model, log)
        if not loss.requires_grad and log.checkpoint is None:
            raise NotAccepted("loss(model) does not require grad: there is no gradient to compare")
        with progress.during(f"backward of step {number}"):
            loss.backward()
        seconds = now(subject.model) - start
    return loss, seconds


def _first_step(subject: Subject, log: RegionLog, globs: tuple[str, ...], stacks: Stacks) -> FirstStep:
    if not log.regions:
        raise NoRegions(_no_regions(subject.model, globs))
    return FirstStep(
        **vars(StepEnd.of(subject, stacks)),
        regions=tuple(log.regions.values()),
        output_requires_grad=dict(log.output_requires_grad),
        calls=log.calls,
        recomputations=log.recomputations,
        reentrant_calls=log.reentrant_calls,
        uncalled=uncalled(subject.model, globs, log.called_modules),
        passed=tuple(log.passed.values()),
    )


def now(model: nn.Module) -> float:
    """The time in seconds, after the model's device has finished its work."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and device.type == accelerator.type:
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _no_regions(model: nn.Module, globs: tuple[str, ...]) -> str:
    if globs:
        told = f"no module that matches {', '.join(map(repr, globs))} was called by its forward; "
        if inside := [name for name in matching(model, globs) if is_in_scripted(model, name)]:
            told += f"TorchScript runs {inside[0]} within a traced or scripted module, and no call of Python's; "
        return told + largest_modules(model)
    told = "no region found: the model does not call torch.utils.checkpoint.checkpoint. Switch its checkpointing on in build "
    named = "(transformers: model.gradient_checkpointing_enable() and train()), or name modules, as with --regions 'layers.*'; "
    return told + named + largest_modules(model)
