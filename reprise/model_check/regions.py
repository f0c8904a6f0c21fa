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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Self

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

import impls
from reprise.model_check.process_state import finish

Key = tuple[int, ...]  # the place of a call among those of its parent, after the parent's own key
RunOf = tuple[Key, int]  # a region, and which of its runs; 0 is forward
REENTRANT = "torch-reentrant"  # the implementation that a call with use_reentrant=True asks for
OPTIONS = inspect.signature(torch.utils.checkpoint.checkpoint).parameters  # of PyTorch's checkpoint, with their defaults
_TARGET: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)
_ORIGINAL = FunctionType(_TARGET.__code__, _TARGET.__globals__, _TARGET.__name__, _TARGET.__defaults__, _TARGET.__closure__)
_ORIGINAL.__kwdefaults__ = _TARGET.__kwdefaults__
# Paths are as frames have them: not resolved, so that a clone may be reached through a link.
_HERE = f"{Path(__file__).parent}{os.sep}"
_RUNS = str(Path(__file__).with_name("run.py"))  # which calls the model: what is around that is not the model's code
_FOLDERS = Path(torch.__file__).parent, Path(__file__).parents[1], Path(impls.__file__).parent
INTERNAL = (*(f"{one}{os.sep}" for one in _FOLDERS), functools.__file__)  # with os.sep, so that torchvision is not torch


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


class NoRegions(ValueError):
    """The model has no region."""


Watch = Callable[[RegionRun], AbstractContextManager[Any]]


class _State(threading.local):
    run: RegionRun | None = None  # innermost on this thread
    graph_task = -1  # the backward in which that run began; -1 if in none
    in_implementation = False


_state = _State()
_active: list[RegionLog] = []  # the innermost is last; all threads, as backward may run on others


class RegionLog:
    """The regions of one step, and how often each ran."""

    def __init__(
        self, model: nn.Module, checkpoint: Callable[..., Any] | None, *, only: frozenset[Key] | None, watch: Watch | None
    ) -> None:
        self.checkpoint, self.only, self.watch = checkpoint, only, watch
        self.thread = threading.get_ident()  # the one that runs the step
        named = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self.names = {id(module): name for module, name in named.items()}
        self.forwards = {id(own): name for module, name in named.items() if (own := vars(module).get("forward")) is not None}
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the regions of the step before."""
        self.regions: dict[Key, Region] = {}
        self.output_requires_grad: dict[Key, tuple[str, ...]] = {}
        self.runs: Counter[Key] = Counter()
        self.calls = 0
        self.reentrant_calls = 0  # those of the model's own that ask for use_reentrant=True
        self.called_modules: set[str] = set()  # of those that match a glob
        self.closures: dict[str, dict[Key, int]] = {}  # by the name that they share, regions and their numbers
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
        region = Region(key, name or self._told_apart(self._name(function), key), user_line(), requires_grad((args, kwargs)))
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
            with _implementation(True):
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
        with self._running(region, function, arguments, in_forward):
            args, kwargs = arguments
            return function(*args, **kwargs)

    def _name(self, function: Any) -> str:
        """The name of the module that a region runs, with the method if that is another than forward; else the function's."""
        while isinstance(function, functools.partial):
            if isinstance(function, _Forward):
                return str(function.args[1])
            if id(function) in self.forwards:
                return self.forwards[id(function)]
            if function.args and id(function.args[0]) in self.names:  # as transformers passes a method with its module
                return self.names[id(function.args[0])]
            function = function.func
        if isinstance(function, nn.Module):
            return self.names.get(id(function), type(function).__name__)
        if id(function) in self.forwards:  # an attribute of the module
            return self.forwards[id(function)]
        if (segment := _segment(function)) is not None:
            return self._name_of_segment(*segment)
        owner, method = self.names.get(id(getattr(function, "__self__", None))), getattr(function, "__name__", "")
        if owner is None:
            attribute = "__name__" if inspect.isbuiltin(function) else "__qualname__"  # which is _VariableFunctionsClass.sin
            name = str(getattr(function, attribute, type(function).__name__))
            code = getattr(function, "__code__", None)
            if code is None or not any(mark in name for mark in _OF_CLOSURES):
                return name
            return f"{name} at {Path(code.co_filename).name}:{code.co_firstlineno}"
        return owner if method in _CALLS else f"{owner}.{method}"

    def _told_apart(self, name: str, key: Key) -> str:
        """The name of a region, with a number if it is of a closure and another closure of that line came before."""
        if not any(mark in name for mark in _OF_CLOSURES):
            return name
        numbers = self.closures.setdefault(name, {})
        number = numbers.setdefault(key, len(numbers) + 1)
        return name if number == 1 else f"{name} ({number})"

    def _name_of_segment(self, number: int, functions: Sequence[Any]) -> str:
        """Of a segment of ``checkpoint_sequential``: its module's name, or its number and what is first and last in it."""
        first, last = (self._name(one) for one in (functions[0], functions[-1]))
        if len(functions) == 1 and isinstance(functions[0], nn.Module):
            return first
        told = f"segment {number} ({first}" + (f" to {last})" if len(functions) > 1 else ")")
        if all(isinstance(one, nn.Module) for one in functions):
            return told
        return f"{told} at {Path(user_line()).name}"  # functions may have the same names in other calls

    @contextmanager
    def _running(
        self, region: Region, function: Callable[..., Any], arguments: tuple[Any, ...], in_forward: bool
    ) -> Iterator[None]:
        number = self.runs[region.key]
        self.runs[region.key] += 1
        run = RegionRun(region, number, function, arguments, in_forward and number == 0)
        before = _state.run, _state.graph_task
        _state.run, _state.graph_task = run, torch._C._current_graph_task_id()
        try:
            with _implementation(False), self.watch(run) if self.watch else nullcontext():
                yield
        finally:
            _state.run, _state.graph_task = before

    @property
    def recomputations(self) -> int:
        """How often a region's function ran besides the calls of forward."""
        return sum(self.runs.values()) - self.calls


OPTIONS_DEFAULTS: Mapping[str, Any] = {
    **{name: one.default for name, one in OPTIONS.items() if one.kind is inspect.Parameter.KEYWORD_ONLY},
    "preserve_rng_state": True,
}
_OF_CLOSURES = "<locals>", "<lambda>"
_CALLS = "forward", "__call__", nn.Module.__call__.__name__  # methods that run a whole module
_SEGMENT = "checkpoint_sequential.<locals>.run_function.<locals>.forward"  # the function of a segment of PyTorch's
UNKNOWN = "unknown"  # a line where no frame is the user's, as of a model that consists of PyTorch's modules


def _segment(function: Any) -> tuple[int, Sequence[Any]] | None:
    """The number, from 1 on, and the functions of a segment of PyTorch's ``checkpoint_sequential``; None if it is none."""
    code = getattr(function, "__code__", None)
    if code is None or (code.co_filename, code.co_qualname) != (torch.utils.checkpoint.__file__, _SEGMENT):
        return None
    found = inspect.getclosurevars(function).nonlocals
    start, end = found["start"], found["end"]
    return start // (end - start + 1) + 1, [found["functions"][place] for place in range(start, end + 1)]


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


@contextmanager
def _implementation(inside: bool) -> Iterator[None]:
    before, _state.in_implementation = _state.in_implementation, inside
    try:
        yield
    finally:
        _state.in_implementation = before


def dispatch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What PyTorch's checkpoint does while redirected: run a region, or the original if an implementation calls it.

    What a backward calls that began after the innermost region's run, or in no region, counts as the implementation's, and so
    does what another thread calls than the step's, unless it is in a region's run.
    """
    is_elsewhere = _state.run is None and bool(_active) and _active[-1].thread != threading.get_ident()
    if not _active or _state.in_implementation or is_elsewhere or torch._C._current_graph_task_id() != _state.graph_task:
        return _ORIGINAL(*args, **kwargs)
    function, *rest = (kwargs.pop("function"), *args) if "function" in kwargs else args
    options = {name: kwargs.pop(name) for name in OPTIONS_DEFAULTS if name in kwargs}
    if options.pop("use_reentrant", None):  # the implementation decides this
        _active[-1].reentrant_calls += 1
    return _active[-1].call(function, tuple(rest), kwargs, options)


def _redirected(*args: Any, **kwargs: Any) -> Any:
    from reprise.model_check.regions import dispatch  # this code runs with the globals of another module

    return dispatch(args, kwargs)


@contextmanager
def redirected(
    model: nn.Module,
    checkpoint: Callable[..., Any] | None,
    *,
    globs: tuple[str, ...] = (),
    only: frozenset[Key] | None = None,
    watch: Watch | None = None,
) -> Iterator[RegionLog]:
    """Run the model's regions through ``checkpoint``, or plainly if it is None; afterwards all is as it was."""
    log = RegionLog(model, checkpoint, only=only, watch=watch)
    before = _TARGET.__code__
    wrapped: list[tuple[nn.Module, Any]] = []

    def put_back() -> None:
        _TARGET.__code__ = before
        if log in _active:
            _active.remove(log)
        for module, own in wrapped:
            module.__dict__.pop("forward", None)
            if own is not None:
                module.__dict__["forward"] = own

    try:
        modules = dict(model.named_modules())
        for name in matching(model, globs):
            module = modules[name]
            wrapped.append((module, vars(module).get("forward")))
            try:
                module.forward = _Forward(log, name, module.forward)
            except Exception as error:
                told = f"regions: forward of {name} ({type(module).__name__}) cannot be replaced: {error}"
                raise NoRegions(f"{told}; let the model call PyTorch's checkpoint there") from error
        _active.append(log)
        _TARGET.__code__ = _redirected.__code__
        yield log
    finally:
        finish(put_back)


class _Forward(functools.partial[Any]):
    """A module's forward as a region. To code that looks at it, it is the method that it was: its function and signature."""

    def __new__(cls, log: RegionLog, name: str, forward: Callable[..., Any]) -> Self:
        made = super().__new__(cls, _wrapped_forward, log, name, forward)
        functools.update_wrapper(made, forward)
        vars(made).update({one: getattr(forward, one) for one in ("__func__", "__self__") if hasattr(forward, one)})
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The forward of a copy of the module, which is no region."""
        return copy.deepcopy(self.args[-1], memo)


def _wrapped_forward(log: RegionLog, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    log.called_modules.add(name)
    return log.call(forward, args, kwargs, {}, name)


def matching(model: nn.Module, globs: tuple[str, ...]) -> list[str]:
    """The modules that match a glob, without those inside another. Raises NoRegions if a glob matches none.

    A module that has several names matches by any of them, and is named by its first.
    """
    first_names = {module: name for name, module in model.named_modules() if name}
    names = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if module in first_names]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name, _ in names):
            raise NoRegions(f"regions: {glob!r} matches no module; {largest_modules(model)}")
    found = {first_names[module] for name, module in names if any(fnmatchcase(name, glob) for glob in globs)}
    return _outermost(name for name in first_names.values() if name in found)


def uncalled(model: nn.Module, globs: tuple[str, ...], called: Set[str]) -> dict[str, tuple[str, ...]]:
    """By glob, the matching modules that are in no region: neither they nor a matching module around them is in ``called``."""
    regions = [name for name in matching(model, globs) if name in called]
    found: dict[str, tuple[str, ...]] = {}
    for glob in globs:
        names = matching(model, (glob,))
        if missing := tuple(name for name in names if not any(f"{name}.".startswith(f"{one}.") for one in regions)):
            found[glob] = missing
    return found


def is_in_scripted(model: nn.Module, name: str) -> bool:
    """Whether a module is inside one that ``torch.jit`` traced or scripted, so that Python does not call it."""
    modules = model.named_modules()
    return any(
        isinstance(one, torch.jit.ScriptModule) and f"{name}.".startswith(f"{of}." if of else "")
        for of, one in modules
        if of != name
    )


def _outermost(names: Iterable[str]) -> list[str]:
    """Names of modules, without those inside another; outer ones come first."""
    found: list[str] = []
    for name in names:
        if not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return found


def largest_modules(model: nn.Module, count: int = 10) -> str:
    """The modules with most parameters, for a message."""
    sizes = {
        name: sum(0 if is_lazy(one) else one.numel() for one in module.parameters())
        for name, module in model.named_modules()
        if name
    }
    if not sizes:
        return "the model has no modules inside it"
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:count]
    return f"its largest modules: {', '.join(f'{name} ({size:,} parameters)' for name, size in largest)}"


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
