"""What an error says of an implementation: whether it refuses or crashes, by the error's type and by who raised it."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import torch
import torch.autograd.graph
import torch.utils.checkpoint

import impls
from impls import Implementation
from reprise.model_check import regions

REFUSALS = RuntimeError, TypeError, ValueError, NotImplementedError
_ENGINE = {torch.autograd.__file__, torch.autograd.graph.__file__}  # an error of the engine's has no frame below these


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class BuildFails(ValueError):
    """The user's ``build`` raised an error, so there is no model; no implementation is to blame."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"build failed{place(error)}: {told(error)}")


class NotAccepted(TypeError):
    """What ``build`` returned, or its loss, is not of a kind that is accepted."""


class PlainFails(ValueError):
    """The model fails without checkpointing, so there is nothing to compare with."""

    def __init__(self, error: BaseException, *, watched: bool) -> None:
        while_watched = " while it is measured" if watched else ""
        super().__init__(f"the model fails without checkpointing{while_watched}{place(error)}: {told(error)}")


def told(error: BaseException) -> str:
    """Type and message."""
    return f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")


def place(error: BaseException) -> str:
    """`` at file:line``, the innermost line that is the user's own, else one of what is installed; "" if there is neither."""
    skipped = (*regions.INTERNAL, importlib.__file__, "<frozen")
    lines = [(code.co_filename, line) for code, line in _trace(error) if not code.co_filename.startswith(skipped)]
    own = [one for one in lines if not one[0].startswith(_INSTALLED)]
    return next((f" at {path}:{line}" for path, line in reversed(own or lines)), "")


def _trace(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """The code and the line of each frame, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next


def verdict(error: BaseException, one: Implementation) -> Literal["refuses", "crashes"]:
    """Whether the implementation refuses, or crashes.

    It refuses by an error of the kinds in ``REFUSALS`` that it raises itself, or that PyTorch's checkpoint or autograd's engine
    raises for it: since plain had no error, what the engine cannot go on with is of the implementation's making. It crashes by
    other errors, and by those that the model's code raises.
    """
    raiser = _raiser(error)
    own = {torch.utils.checkpoint.__file__, *_ENGINE, *_files_of(one)}
    is_own = any(raiser == path or raiser.startswith(f"{path}/") for path in own)
    return "refuses" if is_own and isinstance(error, REFUSALS) else "crashes"


def _raiser(error: BaseException) -> str:
    """The file of the frame that raised the error."""
    return next((code.co_filename for code, _ in reversed([*_trace(error)])), "")


def _files_of(one: Implementation) -> Iterable[str]:
    """The implementation's package, or its file where that lies in no package."""
    function: Any = getattr(one.checkpoint, "func", one.checkpoint)
    yield str(Path(impls.__file__).parent)
    module = sys.modules.get((getattr(function, "__module__", "") or "").partition(".")[0])
    if module is not None and getattr(module, "__file__", None) and module.__name__ not in ("torch", "__main__"):
        path = Path(module.__file__ or "")
        yield str(path.parent if path.name == "__init__.py" else path)
