"""What an error says of an implementation: whether it refuses or crashes, by the error's type and by who raised it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.autograd.graph
import torch.utils.checkpoint

import impls
from impls import Implementation

REFUSALS = RuntimeError, TypeError, ValueError, NotImplementedError
_ENGINE = {torch.autograd.__file__, torch.autograd.graph.__file__}  # an error of the engine's has no frame below these


def told(error: BaseException) -> str:
    """Type and message."""
    return f"{type(error).__name__}: {str(error).strip()}"


def raised_in(error: BaseException, folder: Path) -> bool:
    """Whether code of a folder raised the error."""
    return _raiser(error).startswith(str(folder))


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
    trace, name = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return name


def _files_of(one: Implementation) -> Iterable[str]:
    """The implementation's package, or its file where that lies in no package."""
    function: Any = getattr(one.checkpoint, "func", one.checkpoint)
    yield str(Path(impls.__file__).parent)
    module = sys.modules.get((getattr(function, "__module__", "") or "").partition(".")[0])
    if module is not None and getattr(module, "__file__", None) and module.__name__ not in ("torch", "__main__"):
        path = Path(module.__file__ or "")
        yield str(path.parent if path.name == "__init__.py" else path)
