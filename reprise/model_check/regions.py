"""Regions of a model: found where it calls PyTorch's checkpoint, or named, and redirected to an implementation.

While a model runs, the code of ``torch.utils.checkpoint.checkpoint`` is replaced, so that it does not matter how the
model imported or bound the function. The implementation's own calls reach the original, in forward and in backward, and so do
those of other threads.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Self

import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

import impls
from reprise import torch_private
from reprise.model_check.names.globs import NoRegions, matching
from reprise.model_check.names.region_names import Key as Key
from reprise.model_check.names.region_names import RegionNames

RunOf = tuple[Key, int]  # a region, and which of its runs; 0 is forward
REENTRANT = "torch-reentrant"  # the implementation that a call with use_reentrant=True asks for


def _with_replaceable_code(function: Any) -> Any:
    """The function in PyTorch's checkpoint, or in a partial of it that the user has put in its place.

    Raises ImportError for a closure, whose code none but that of another such closure can replace, and what is no function.
    """
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if not isinstance(function, FunctionType) or function.__closure__:
        kind = "a closure" if isinstance(function, FunctionType) else f"of type {type(function).__name__}"
        raise ImportError(
            f"torch.utils.checkpoint.checkpoint of torch {torch.__version__} cannot be redirected: it is {kind}. If it was "
            "replaced, import reprise before"
        )
    return function


_TARGET: Any = _with_replaceable_code(torch.utils.checkpoint.checkpoint)
OPTIONS = inspect.signature(_TARGET).parameters  # of PyTorch's checkpoint, with their defaults
_ORIGINAL = FunctionType(_TARGET.__code__, _TARGET.__globals__, _TARGET.__name__, _TARGET.__defaults__, _TARGET.__closure__)
_ORIGINAL.__kwdefaults__ = _TARGET.__kwdefaults__
# Paths are as frames have them: not resolved, so that a clone may be reached through a link.
_HERE = f"{Path(__file__).parent}{os.sep}"
_RUNS = str(Path(__file__).with_name("run.py"))  # which calls the model: what is around that is not the model's code
IMPLEMENTATIONS, *_OTHERS = (  # with os.sep, so that torchvision is not torch
    f"{one}{os.sep}" for one in (Path(impls.__file__).parent, Path(torch.__file__).parent, Path(__file__).parents[1])
)
INTERNAL = (IMPLEMENTATIONS, *_OTHERS, functools.__file__)  # beginnings of paths


@dataclass(frozen=True)
class Region:
    """A call of checkpoint: its place, the name of what it runs, and the user's line that calls it."""

    key: Key
    name: str
    line: str
    inputs_require_grad: bool


@dataclass(frozen=True)
class RegionRun:
    """One run of a region's function; number 0 is forward, others are recomputations."""

    region: Region
    number: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_forward: bool
    places: Iterator[int] = field(default_factory=lambda: iter(range(sys.maxsize)))  # of the calls inside


@dataclass(frozen=True)
class Passed:
    """What a checkpoint is called with for a region, besides its function: how many arguments, and the names of others."""

    region: Region
    arguments: int
    keywords: tuple[str, ...]  # options of PyTorch's checkpoint that the model gives included

    def __str__(self) -> str:
        counted = f"{self.arguments} further argument{'s' * (self.arguments != 1)}"
        return f"(function, {counted}{''.join(f', {name}=...' for name in self.keywords)})"


Watch = Callable[[RegionRun], AbstractContextManager[Any]]


class _State(threading.local):
    run: RegionRun | None = None  # innermost on this thread
    graph_task = -1  # the backward in which that run began; -1 if in none
    in_implementation = False


_state = _State()
_active: list[RegionLog] = []  # the innermost is last; all threads, as backward may run on others


class RegionLog:
    """The regions of one step, and how often each ran."""

    def __init__(self, model: nn.Module, checkpoint: Callable[..., Any] | None, *, only: frozenset[Key] | None) -> None:
        self.checkpoint, self.only = checkpoint, only
        self.watch: Watch | None = None
        self.thread = threading.get_ident()  # the one that runs the step
        self.names = RegionNames(model)
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the regions of the step before."""
        self.regions: dict[Key, Region] = {}
        self.output_requires_grad: dict[Key, tuple[str, ...]] = {}
        self.runs: Counter[Key] = Counter()
        self.calls = 0
        self.reentrant_calls = 0  # those of the model's own that ask for use_reentrant=True
        self.called_modules: set[str] = set()  # of those that match a glob
        self.names.begin_step()
        self.passed: dict[tuple[int, tuple[str, ...]], Passed] = {}  # the first of those with as many arguments of these names
        self.places = iter(range(sys.maxsize))

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        name: str = "",
    ) -> Any:
        """Run a region's function through the implementation, or plainly if there is none or the region is left out."""
        parent = _state.run
        key = (*parent.region.key, next(parent.places)) if parent else (next(self.places),)
        line = user_line()
        region = Region(key, name or self.names.of(function, key, line), line, requires_grad((args, kwargs)))
        in_forward = parent is None or parent.in_forward
        given = {name: value for name, value in options.items() if value != OPTIONS_DEFAULTS[name]}
        if in_forward:
            self.calls += 1
            self.regions[key] = region
            shape = len(args), (*given, *kwargs)
            self.passed.setdefault(shape, Passed(region, *shape))
        checkpointed = self.checkpoint is not None and (self.only is None or key in self.only)

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.run_function(region, function, (args, kwargs), in_forward=in_forward)

        run.__name__ = run.__qualname__ = region.name  # so that errors of implementations name the region
        if checkpointed:
            assert self.checkpoint is not None
            with _Implementation(True):
                value = self.checkpoint(run, *args, **given, **kwargs)
        else:
            with options.get("context_fn", _no_contexts)()[0]:  # the model's own: it may change what forward computes
                value = run(*args, **kwargs)
        if in_forward:
            self.output_requires_grad[key] = outputs_that_require_grad(value)
        return value

    def run_function(
        self, region: Region, function: Callable[..., Any], arguments: tuple[Any, ...], *, in_forward: bool
    ) -> Any:
        """Run a region's function, in forward or again; in a traceback, what is below this is called by the model."""
        number = self.runs[region.key]
        self.runs[region.key] += 1
        run = RegionRun(region, number, function, arguments, in_forward and number == 0)
        with _Running(run), _Implementation(False), self.watch(run) if self.watch else nullcontext():
            args, kwargs = arguments
            return function(*args, **kwargs)

    @property
    def recomputations(self) -> int:
        """How often a region's function ran besides the calls of forward."""
        return sum(self.runs.values()) - self.calls


OPTIONS_DEFAULTS: Mapping[str, Any] = {
    **{name: one.default for name, one in OPTIONS.items() if one.kind is inspect.Parameter.KEYWORD_ONLY},
    "preserve_rng_state": True,
}
_TAKEN = frozenset({*OPTIONS_DEFAULTS, "function"})  # keywords that a checkpoint does not pass on
UNKNOWN = "unknown"  # a line where no frame is the user's, as of a model that consists of PyTorch's modules


def _no_contexts() -> tuple[AbstractContextManager[None], None]:
    return nullcontext(), None


def current_run() -> RegionRun | None:
    """The run of a region that is under way on this thread."""
    return _state.run


def requires_grad(tree: Any) -> bool:
    """Whether any tensor in a tree requires grad."""
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(tree))


def outputs_that_require_grad(value: Any) -> tuple[str, ...]:
    """The tensors in what a region returns that require grad, such as ``output[1][0]``."""
    leaves, _ = tree_flatten_with_path(value)
    return tuple(f"output{keystr(path)}" for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad)


class _Running:
    """A context in which a region's function runs."""

    def __init__(self, run: RegionRun) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.before = _state.run, _state.graph_task
        _state.run, _state.graph_task = self.run, torch_private.current_graph_task_id()

    def __exit__(self, *_: object) -> None:
        _state.run, _state.graph_task = self.before


class _Implementation:
    """A context in which an implementation's own code runs, or the model's again; no generator, as ``PutBack`` says."""

    def __init__(self, inside: bool) -> None:
        self.inside = inside

    def __enter__(self) -> None:
        self.before, _state.in_implementation = _state.in_implementation, self.inside

    def __exit__(self, *_: object) -> None:
        _state.in_implementation = self.before


def dispatch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What PyTorch's checkpoint does while redirected: run a region, or the original if an implementation calls it.

    What a backward calls that began after the innermost region's run, or in no region, counts as the implementation's, and so
    does what another thread calls than the step's, unless it is in a region's run.
    """
    is_elsewhere = _state.run is None and bool(_active) and _active[-1].thread != threading.get_ident()
    if not _active or _state.in_implementation or is_elsewhere or torch_private.current_graph_task_id() != _state.graph_task:
        return _ORIGINAL(*args, **kwargs)
    function, *rest = (kwargs.pop("function"), *args) if "function" in kwargs else args
    options = {name: kwargs.pop(name) for name in OPTIONS_DEFAULTS if name in kwargs}
    if options.pop("use_reentrant", None):  # the implementation decides this
        _active[-1].reentrant_calls += 1
    return _active[-1].call(function, tuple(rest), kwargs, options)


def _redirected(*args: Any, **kwargs: Any) -> Any:
    from reprise.model_check.regions import dispatch  # this code runs with the globals of another module

    return dispatch(args, kwargs)


def restoration(model: nn.Module) -> Callable[[], None]:
    """What undoes all that ``redirect`` changes."""
    code, active, state = _TARGET.__code__, [*_active], dict(vars(_state))
    forwards = [(module, vars(module).get("forward")) for module in model.modules()]

    def restore() -> None:
        _TARGET.__code__ = code
        _active[:] = active
        vars(_state).clear()
        vars(_state).update(state)
        for module, own in forwards:
            if vars(module).get("forward") is not own:
                vars(module).pop("forward")
                vars(module).update({} if own is None else {"forward": own})

    return restore


def redirect(
    model: nn.Module,
    checkpoint: Callable[..., Any] | None,
    *,
    globs: tuple[str, ...] = (),
    only: frozenset[Key] | None = None,
) -> RegionLog:
    """Have the model's regions run through ``checkpoint``, or plainly if it is None, until ``restoration`` undoes that."""
    log = RegionLog(model, checkpoint, only=only)
    modules = dict(model.named_modules())
    for name in matching(model, globs):
        module = modules[name]
        try:
            module.forward = log.names.add_forward(_RegionForward(log, name, module.forward), name)
        except Exception as error:
            told = f"regions: forward of {name} ({type(module).__name__}) cannot be replaced: {error}"
            raise NoRegions(f"{told}; let the model call PyTorch's checkpoint there") from error
    _active.append(log)
    _TARGET.__code__ = _redirected.__code__
    return log


class _RegionForward(functools.partial[Any]):
    """A module's forward as a region. To code that looks at it, it is the method that it was: its function and signature."""

    def __new__(cls, log: RegionLog, name: str, forward: Callable[..., Any]) -> Self:
        made = super().__new__(cls, _wrapped_forward, log, name, forward)
        functools.update_wrapper(made, forward)
        vars(made).update({one: getattr(forward, one) for one in ("__func__", "__self__") if hasattr(forward, one)})
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The forward of a copy of the module, which is no region."""
        return copy.deepcopy(self.args[-1], memo)


def _wrapped_forward(log: RegionLog, name: str, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a region's forward. Keywords of its own that are also options of checkpoint, such as debug, are none of these."""
    log.called_modules.add(name)
    if taken := {keyword: kwargs.pop(keyword) for keyword in _TAKEN & kwargs.keys()}:
        forward = functools.partial(forward, **taken)
    return log.call(forward, args, kwargs, {}, name)


def frames(*, of_region: bool = False) -> Iterator[FrameType]:
    """The frames of this thread within a step, innermost first, without those of this package.

    ``of_region``: those alone of the function of the region that is running, if one is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _RUNS:
        if of_region and frame.f_code is RegionLog.run_function.__code__:
            return
        if not frame.f_code.co_filename.startswith(_HERE):
            yield frame
        frame = frame.f_back


def user_line() -> str:
    """The user's source line that is being executed, ``file:line``; in a region that runs PyTorch's code alone, its call's."""
    frame = next((one for one in frames(of_region=True) if not one.f_code.co_filename.startswith(INTERNAL)), None)
    if frame is not None:
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return _state.run.region.line if _state.run is not None else UNKNOWN
