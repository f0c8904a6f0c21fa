"""What a step costs, and what in its regions does not bear to be run again; of an implementation, in a run of its own.

Bytes are those of storages that operators made in the step: after forward, and at most. On an accelerator they are the
allocator's. FLOPs are counted by the formulas of ``torch.utils.flop_counter``.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from reprise.model_check.comparison import difference
from reprise.model_check.reachable import Known, Snapshot, changed_between, filled_again, snapshot
from reprise.model_check.regions import Key, Region, RegionLog, RegionRun, Watch, current_run
from reprise.model_check.run import Checkpoint, Probe, Run, Setting, Tensors, copies, run


@dataclass(frozen=True)
class Costs:
    """Bytes after forward and at most, those of storages alone at most, and FLOPs, of one step; ``again_flops`` recompute."""

    kept_bytes: int
    peak_bytes: int
    storages_peak_bytes: int
    flops: int
    forward_flops: int
    again_flops: int


@dataclass
class Observations:
    """What was seen in the regions of a run; each maps a name to where it was seen."""

    python_random: dict[str, str] = field(default_factory=dict)
    numpy_random: dict[str, str] = field(default_factory=dict)
    training_flags: dict[str, str] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)
    changed_outside: dict[str, str] = field(default_factory=dict)
    after_forward_of: dict[Key, tuple[Snapshot, Snapshot]] = field(default_factory=dict)  # before and after it
    buffers_after_forward: Tensors = field(default_factory=dict)
    updated_in_backward: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    output_requires_grad: dict[Key, bool] = field(default_factory=dict)


class _StepMeter(TorchDispatchMode):
    """Storages that are alive and FLOPs, of the operators that run inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.is_paused = False
        self.alive = self.peak = self.kept = self.flops = self.forward_flops = self.again_flops = 0
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for tensor in (*model.parameters(), *model.buffers()):
            self.known[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        for storage in storages((args, kwargs)):
            self.known.setdefault(storage, 0)  # was there before the step
        result = func(*args, **kwargs)
        for storage in storages(result):
            if storage not in self.known:
                self.known[storage] = size = storage.nbytes()
                self.alive += size
                weakref.finalize(storage, self._freed, size)
        self.peak = max(self.peak, self.alive)
        if func._overloadpacket in flop_registry:
            flops = int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))
            self.flops += flops
            self.again_flops += flops if (one := current_run()) and one.number else 0
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile operators are not counted: they are of this package."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def _freed(self, size: int) -> None:
        self.alive -= size


def storages(tree: Any) -> Iterator[Any]:
    """The storages of the dense tensors in what an operator is given or returns: tensors, and containers of them."""
    if isinstance(tree, torch.Tensor):
        if tree.layout == torch.strided:
            yield tree.untyped_storage()
    elif isinstance(tree, tuple | list | dict):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from storages(one)


def measure(
    setting: Setting, checkpoint: Checkpoint | None, seen: Observations, *, only: frozenset[Key] | None = None, steps: int = 1
) -> tuple[Costs, Run]:
    """The costs of the first step, all regions or ``only`` these through ``checkpoint``. Raises what ``run`` does.

    What is seen in regions that are checkpointed is put down as it happens.
    """
    meters: list[_StepMeter] = []
    peaks: list[int] = []

    def mode(model: nn.Module) -> AbstractContextManager[Any]:
        meters.append(meter := _StepMeter(model))
        stack = ExitStack()
        stack.enter_context(meter)
        if (device := _accelerator(model)) is not None:
            module = torch.get_device_module(device)
            module.reset_peak_memory_stats(device)
            stack.callback(lambda: peaks.append(module.max_memory_allocated(device)))
        return stack

    def after_forward(model: nn.Module, log: RegionLog) -> None:
        meter, device = meters[-1], _accelerator(model)
        meter.kept, meter.forward_flops = meter.alive, meter.flops
        if device is not None:
            meter.kept = torch.get_device_module(device).memory_allocated(device)
        seen.regions, seen.output_requires_grad = tuple(log.regions.values()), dict(log.output_requires_grad)
        with meter.paused():
            seen.buffers_after_forward = copies(dict(model.named_buffers()))

    def watch(model: nn.Module) -> Watch | None:
        if checkpoint is None:
            return None
        watched = _Watched.of(model)
        return lambda one: _observed(seen, watched, one, meters[-1])

    result = run(setting, checkpoint, steps=steps, only=only, probe=Probe(mode, watch, after_forward))
    meter, before = meters[-1], seen.buffers_after_forward
    seen.updated_in_backward = tuple(
        name for name, value in result.buffers.items() if name in before and difference(name, before[name], value)
    )
    peak = peaks[-1] if peaks else meter.peak
    return Costs(meter.kept, peak, meter.peak, meter.flops, meter.forward_flops, meter.again_flops), result


def _accelerator(model: nn.Module) -> torch.device | None:
    return next((one.device for one in model.parameters() if one.device.type != "cpu"), None)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = "_backward_hooks", "_post_accumulate_grad_hooks"


@dataclass(frozen=True)
class _Watched:
    """A model's modules and parameters, looked up once: regions may run hundreds of times."""

    modules: Mapping[str, nn.Module]
    parameters: tuple[nn.Parameter, ...]
    known: Known

    @classmethod
    def of(cls, model: nn.Module) -> _Watched:
        return cls(dict(model.named_modules()), tuple(model.parameters()), Known.of(model))

    def training(self) -> list[bool]:
        """Whether each module is in train()."""
        return [module.training for module in self.modules.values()]

    def hooks(self, one: RegionRun) -> int:
        """How many hooks modules, parameters and the region's arguments have."""
        tensors = (*self.parameters, *(leaf for leaf in tree_leaves(one.arguments) if isinstance(leaf, torch.Tensor)))
        of_modules = sum(len(vars(module).get(name) or ()) for module in self.modules.values() for name in _HOOKS)
        return of_modules + sum(len(getattr(one, name, None) or ()) for one in tensors for name in _HOOKS_OF_TENSORS)


@contextmanager
def _observed(seen: Observations, watched: _Watched, one: RegionRun, meter: _StepMeter) -> Iterator[None]:
    """Compare what a region's run must leave alone before it and after it."""
    python, numpy = random.getstate(), _numpy_state()
    training, hooks = watched.training(), watched.hooks(one)
    with meter.paused():
        before = snapshot(watched.known, one)
    finished = False
    try:
        yield
        finished = True
    finally:
        name, line = one.region.name, one.region.line
        if random.getstate() != python:
            seen.python_random[name] = line
        if _numpy_state() != numpy:
            seen.numpy_random[name] = line
        for module, before_it, after_it in zip(watched.modules, training, watched.training(), strict=True):
            if before_it is not after_it:
                seen.training_flags[module] = line
        if watched.hooks(one) > hooks:
            seen.hooks[name] = line
        with meter.paused():
            _compare_reachable(seen, one, (before, snapshot(watched.known, one)), finished)


def _compare_reachable(seen: Observations, one: RegionRun, around: tuple[Snapshot, Snapshot], finished: bool) -> None:
    """Compare what a recomputation reaches with what forward did."""
    if one.number == 0:
        seen.after_forward_of[one.region.key] = around
    elif one.region.key in seen.after_forward_of:
        forward = seen.after_forward_of[one.region.key]
        filled = dict.fromkeys(filled_again(forward, around, finished=finished), one.region.line)
        seen.filled |= filled
        for path in changed_between(forward, around):
            if path not in filled:
                seen.changed_outside[path] = one.region.line


def _numpy_state() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()
    return (np.asarray(keys).tobytes(), *rest)
