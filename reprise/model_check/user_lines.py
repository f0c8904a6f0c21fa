"""The user's lines that draw random numbers, flip train() or fill a cache, for warnings about these.

The step runs once more with a trace function of Python's, which compares what is warned of before and after each line that is
not PyTorch's or the standard library's. If another trace function is set, as by a debugger, or if it happens in regions that
run on another thread alone, no line is found, and a warning has the line of the region's call.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from reprise.model_check import regions
from reprise.model_check.errors import BUILD_ERRORS
from reprise.model_check.metering import Observations
from reprise.model_check.process_state import PutBack
from reprise.model_check.reachable.snapshots import digest_of_generator, reached
from reprise.model_check.reachable.walk import Known
from reprise.model_check.reachable.watched_model import hash_of_numpy_state
from reprise.model_check.regions import Key, RegionRun, current_run
from reprise.model_check.run import Checkpoint, Probe, Setting, run

_STANDARD_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_SKIPPED = (*regions.INTERNAL, str(Path(np.__file__).parent), "<frozen")
KINDS = "python_random", "numpy_random", "generators", "training_flags", "filled"  # fields of Observations


def find_lines(setting: Setting, checkpoint: Checkpoint, seen: Observations) -> None:
    """Put the user's lines in ``seen`` in place of the regions' calls, where they are found. Raises BUILD_ERRORS."""
    if not any(getattr(seen, kind) for kind in KINDS) or sys.gettrace() is not None:
        return
    traces: list[_Trace] = []

    def watch(model: nn.Module) -> None:
        traces.append(_Trace(model, seen))

    try:
        run(setting, checkpoint, steps=1, probe=Probe(lambda _: traces[-1].running(), watch, lambda *_: None))
    except BUILD_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - the verdict tells it
        error.__traceback__ = error.__context__ = None
    for kind in KINDS:
        places: dict[str, str] = getattr(seen, kind)
        places |= {name: line for trace in traces for name, line in trace.lines[kind].items() if name in places}


class _Trace:
    """A trace function: which line changed what, by the kind of a warning and the name that it has there."""

    def __init__(self, model: nn.Module, seen: Observations) -> None:
        self.lines: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        self.modules, self.known = dict(model.named_modules()), Known.of(model)
        self.names: Mapping[Key, str] = {one.key: one.name for one in seen.regions}
        self.filled, self.generators = frozenset(seen.filled), frozenset(seen.generators)
        looks: dict[str, Callable[[RegionRun | None], Mapping[str, Any]]] = {
            "python_random": lambda one: self._of_regions(one, hash(random.getstate())),
            "numpy_random": lambda one: self._of_regions(one, hash_of_numpy_state()),
            "training_flags": lambda _: {name: module.training for name, module in self.modules.items()},
            "generators": self._generators,
            "filled": self._reached,
        }
        self.looks = {kind: look for kind, look in looks.items() if getattr(seen, kind)}
        self.line = ""  # the user's line that ran last
        self.run: RegionRun | None = None
        self.before: dict[str, Mapping[str, Any]] = {}
        self.has_failed = False
        self.is_users: dict[str, bool] = {}  # by path

    def running(self) -> PutBack:
        """Trace from now on, on this thread, until the end of the context."""
        self._look()
        sys.settrace(self)
        return PutBack(lambda: sys.settrace(None))

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Compare what is warned of with what it was at the line before; what a trace function raises would end the step."""
        if self.has_failed or not self._is_of_user(frame):
            return None
        try:
            if event != "exception":
                self._compare()
                self.line = self._line_of(frame.f_back if event == "return" else frame)
        except Exception:  # noqa: BLE001 - an object of the user's may raise an error when it is asked for its parts
            self.has_failed = True
        return self

    def _compare(self) -> None:
        before, last, line = self.before, self.run, self.line
        self._look()
        if last is not self.run or not line:
            return
        for kind, now in self.before.items():
            for name in (name for name, value in now.items() if before[kind].get(name) != value):
                self.lines[kind].setdefault(name, line)

    def _look(self) -> None:
        self.run = current_run()
        self.before = {kind: look(self.run) for kind, look in self.looks.items()}

    def _of_regions(self, one: RegionRun | None, value: int) -> Mapping[str, int]:
        """The value, for the region that runs and for those around it."""
        key = one.region.key if one else ()
        around = (self.names.get(key[:depth]) for depth in range(1, len(key)))
        return {name: value for name in (*around, *([one.region.name] if one else [])) if name}

    def _reached(self, one: RegionRun | None) -> Mapping[str, object]:
        """Caches that the running region reaches: which object each is, and how often or how far it was filled."""
        if one is None:
            return {}
        found = {path: value for path, value in reached(self.known, one).items() if path in self.filled}
        return {path: (id(one), one._version if isinstance(one, torch.Tensor) else len(one)) for path, one in found.items()}

    def _generators(self, one: RegionRun | None) -> Mapping[str, object]:
        """The states of generators that the running region reaches."""
        found = {} if one is None else reached(self.known, one)
        return {path: digest_of_generator(one) for path, one in found.items() if path in self.generators}

    def _is_of_user(self, frame: FrameType) -> bool:
        path = frame.f_code.co_filename
        if path not in self.is_users:
            is_standard = path.startswith(_STANDARD_LIBRARY) and "site-packages" not in path and "dist-packages" not in path
            self.is_users[path] = not (is_standard or path.startswith(_SKIPPED))
        return self.is_users[path]

    def _line_of(self, frame: FrameType | None) -> str:
        """The innermost line of the user's from this frame on."""
        while frame is not None and not self._is_of_user(frame):
            frame = frame.f_back
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
