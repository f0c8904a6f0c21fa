"""Whether an implementation that raises an error refuses or crashes: by the error's type, and by who raised it."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, Literal

import torch
import torch.autograd.graph
import torch.utils.checkpoint
from torch import nn

import impls
from impls import Implementation
from reprise.model_check import regions
from reprise.model_check.names.globs import NoRegions

REFUSALS = RuntimeError, TypeError, ValueError, NotImplementedError
_ENGINE = {torch.autograd.__file__, torch.autograd.graph.__file__}  # the innermost frame of an error that the engine raises
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INTERRUPTS = KeyboardInterrupt, GeneratorExit  # which end a check, whoever's code runs
Raiser = Literal["implementation", "model", "cannot be told"]


class InvalidArgument(ValueError):
    """An option of the check, or the name of ``build``, is not accepted."""


class BuildFails(ValueError):
    """The user's ``build`` raised an error, so there is no model; no implementation is to blame."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"build failed{place(error)}: {told(error)}")


class NotAccepted(TypeError):
    """What ``build`` returned, or its loss, is not accepted."""


class NoLoss(Exception):
    """What a step computes is no loss: ``build`` is not accepted if the step is plain, else the implementation is why."""


class NotCopied(Exception):
    """A tensor of the model cannot be copied, so that nothing can be compared with it."""


class Ended(Exception):
    """What ended a step and is no Exception, such as SystemExit; it has that one's traceback."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.kind = type(error)
        self.__traceback__ = error.__traceback__


class PlainFails(ValueError):
    """The model fails without checkpointing, so there is nothing to compare with."""

    def __init__(self, error: BaseException, part: str, *, watched: bool) -> None:
        where = f", in {part}" if part else ""
        while_watched = " while it is measured" if watched else ""
        super().__init__(f"the model fails without checkpointing{where}{while_watched}{place(error)}: {told(error)}")


BUILD_ERRORS = BuildFails, NotAccepted, NoRegions  # build() raised, or returned what cannot be checked
BAD_INPUT = InvalidArgument, *BUILD_ERRORS, PlainFails  # these say nothing of an implementation


class MeteringFails(Exception):
    """An error of this package's in measuring or recording a step; the model and the implementation are not to blame."""

    def __init__(self, error: BaseException) -> None:
        code, line = [(frame.f_code, line) for frame, line in _trace(error)][-1]
        super().__init__(f"an error of reprise itself while measuring, at {code.co_filename}:{line}: {told(error)}")


class OwnWork:
    """A context around what this package does within a step: its operators are not the model's, and neither are its errors.

    An error ends what is inside, and not the step. The first is kept in ``failure``; nothing is to be observed from then on.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._depth = 0

    @property
    def is_ignored(self) -> bool:
        """Whether an operator that runs now is not to be observed."""
        return self._depth > 0 or self.failure is not None

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._depth -= 1
        if isinstance(error, Exception):
            self.failure = self.failure or error
            return True
        return False

    def raise_failure(self) -> None:
        """Raise MeteringFails if there was an error."""
        if self.failure is not None:
            raise MeteringFails(self.failure) from self.failure


def told(error: BaseException) -> str:
    """Type and message."""
    return f"{_kind(error).__name__}: {str(error).strip()}".removesuffix(": ")


def type_name(error: BaseException) -> str:
    """The full name of an error's type, such as ``builtins.KeyError``."""
    return f"{_kind(error).__module__}.{_kind(error).__qualname__}"


def _kind(error: BaseException) -> type[BaseException]:
    return error.kind if isinstance(error, Ended) else type(error)


def place(error: BaseException) -> str:
    """`` at file:line``, to be appended to what is said of an error; "" if there is no ``line_of`` it."""
    line = line_of(error)
    return f" at {line}" if line else ""


def line_of(error: BaseException) -> str:
    """``file:line``: the innermost line of the user's code, else of an installed package's; "" if there is neither."""
    skipped = (*regions.INTERNAL, importlib.__file__, "<frozen")
    frames = ((frame.f_code.co_filename, line) for frame, line in _trace(error))
    lines = [(path, line) for path, line in frames if not path.startswith(skipped)]
    own = [one for one in lines if not one[0].startswith(_INSTALLED)]
    return next((f"{path}:{line}" for path, line in reversed(own or lines)), "")


def _trace(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Each frame and its line, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def verdict(error: BaseException, raiser: Raiser) -> Literal["refuses", "crashes"]:
    """An implementation refuses by raising an error of the types in ``REFUSALS``; with any other error it crashes."""
    return "refuses" if raiser == "implementation" and isinstance(error, REFUSALS) else "crashes"


def raised_by(error: BaseException, one: Implementation, sources: Set[str]) -> Raiser:
    """Who raised an error, by where the frames of its traceback lie; ``sources`` are the files of the model's code.

    Plain had no error, so what it does not run caused it. The first of these that holds decides:

    1. A step that leaves no loss, and an error that autograd's engine raises, are the implementation's.
    2. Of the frames, the innermost counts that is the model's, the implementation's, or this package's own around either; what
       they call in other packages is theirs. If there is none, or a call of the engine is further inside, it is the model's.
    3. In a call of the implementation, or of a region's function by it, the one that is called raised the error.
    4. PyTorch's checkpoint and ``impls`` are the implementation's.
    5. In a file of the model's that is not in the implementation's package, or in that package if it has none of these files,
       it is theirs.
    6. In a package that they share: in the checkpoint's own function, the implementation; in a method of a module that is in no
       call of the implementation, the model; in the checkpoint's file or in one of the model's, if these are two, theirs; in a
       call of the implementation, the implementation. Else it cannot be told.
    """
    frames = [frame for frame, _ in _trace(error)]
    if isinstance(error, NoLoss) or (frames and frames[-1].f_code.co_filename in _ENGINE):
        return "implementation"
    function = _function(one)
    home = function.__code__.co_filename if function is not None else ""
    package = {home, *_package(one.checkpoint if function is None else function)}
    of_checkpoints = {torch.utils.checkpoint.__file__, str(Path(impls.__file__).parent)}
    for place in reversed(range(len(frames))):
        frame, code = frames[place], frames[place].f_code
        path = code.co_filename
        if code is regions.RegionLog.run_function.__code__ or path in _ENGINE:
            return "model"
        if code is regions.RegionLog.call.__code__ or _lies_in(path, of_checkpoints):
            return "implementation"
        if not _lies_in(path, package):
            if path in sources and not path.startswith(regions.INTERNAL):  # PyTorch's modules are called by all
                return "model"
            continue
        if not any(_lies_in(source, package) for source in sources) or _is_inside(code, function):
            return "implementation"
        in_implementation = _in_implementation(frames[: place + 1])
        if _is_method_of_module(frame) and not in_implementation:
            return "model"
        is_home, is_source = path == home, path in sources
        if is_home is not is_source:
            return "implementation" if is_home else "model"
        return "implementation" if in_implementation else "cannot be told"
    return "model"


def sources(model: nn.Module, build: Callable[[], Any]) -> frozenset[str]:
    """The files that define the classes of a model's modules, and ``build``."""
    modules = {sys.modules.get(type(one).__module__) for one in model.modules()}
    files = {getattr(one, "__file__", None) or "" for one in modules}
    return frozenset(files | {getattr(getattr(inspect.unwrap(build), "__code__", None), "co_filename", "")}) - {""}


def _lies_in(path: str, places: Iterable[str]) -> bool:
    """Whether a file is one of these, or lies in a folder among them."""
    return any(path == place or path.startswith(f"{place}{os.sep}") for place in places if place)


def _function(one: Implementation) -> FunctionType | None:
    """The function in Python that an implementation's ``checkpoint`` is, or that it calls."""
    found: Any = one.checkpoint
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType | MethodType):
        found = inspect.getattr_static(type(found), "__call__", None)
    found = getattr(found, "__func__", found)
    return found if isinstance(found, FunctionType) else None


def _package(function: Any) -> Iterator[str]:
    """The folders of a function's package, or the file of its module if that is in no package."""
    module = sys.modules.get((getattr(function, "__module__", "") or "").partition(".")[0])
    if module is None or module.__name__ in ("torch", "__main__"):
        return
    yield from getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]


def _is_inside(code: CodeType, function: FunctionType | None) -> bool:
    """Whether this is the code of a function, or of one that is defined in it."""
    if function is None or code.co_filename != function.__code__.co_filename:
        return False
    return code is function.__code__ or code.co_qualname.startswith(f"{function.__code__.co_qualname}.<locals>.")


def _in_implementation(frames: Sequence[FrameType]) -> bool:
    """Whether the innermost frame runs in a call of the implementation, and in no region's function inside that call."""
    inside = False
    for frame in frames:
        if frame.f_code is regions.RegionLog.call.__code__:
            inside = True
        elif frame.f_code is regions.RegionLog.run_function.__code__:
            inside = False
    return inside


def _is_method_of_module(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module)
