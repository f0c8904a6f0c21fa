"""Where faults get at a region of nested: what it is called with, saves, recomputes and returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def change_output(copy: Copy, change: Callable[[Any, Args], Any]) -> None:
    """A call returns ``change(output, args)`` in place of its output."""
    copy.change_result("nested.api", "_run", lambda output, function, args, *_: change(output, args))


def change_inputs(copy: Copy, change: Callable[[Any, Any], Any]) -> None:
    """A region is made of ``change(function, inputs)`` in place of its inputs."""

    def init(there: Any, self: Any, function: Any, *others: Any) -> None:
        there(self, function, *others)
        self.inputs = change(function, self.inputs)

    copy.call_instead("nested.region", "Region.__init__", init)


def change_restored(copy: Copy, change: Callable[[Args, Kwargs], tuple[Args, Kwargs]], kind: str = "FlatInputs") -> None:
    """A recomputation gets ``change(args, kwargs)``; of calls without containers, or, as ``Inputs``, of those with some."""

    def restored(call: Any, _: Any) -> Any:
        args, kwargs, *others = call
        return *change(args, kwargs), *others

    copy.change_result("nested.inputs", f"{kind}.restore", restored)


def change_recomputed(copy: Copy, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """A recomputed tensor comes back as ``change(tensor)``; if that is None, it does not come back."""
    change_recomputed_after(copy, lambda values, index, tensor: change(tensor))


def change_recomputed_after(copy: Copy, change: Callable[[Any, int, torch.Tensor], torch.Tensor | None]) -> None:
    """The same by ``change(values, index, tensor)``, where values are those that were recomputed before."""

    def put(there: Any, values: Any, index: int, tensor: torch.Tensor) -> None:
        changed = change(values, index, tensor)
        if changed is not None:
            there(values, index, changed)

    copy.call_instead("nested.recomputation", "RecomputedTensors.__setitem__", put)


def recompute_with(copy: Copy, name: str, value: Callable[[Any, Any], Any]) -> None:
    """While a region is recomputed for a slot, its attribute of that name is ``value(region, slot)``."""

    def recompute(there: Any, self: Any, task: int, slot: Any) -> Any:
        before = getattr(self, name)
        setattr(self, name, value(self, slot))
        try:
            return there(self, task, slot)
        finally:
            setattr(self, name, before)

    copy.call_instead("nested.region", "Region.recompute", recompute)


def compare_versions_alone_if(copy: Copy, alone: Callable[[Any, int, torch.Tensor], bool]) -> None:
    """Compare nothing but the version of a tensor that does not look as it did in forward, where ``alone`` says so."""

    def compare(there: Any, self: Any, index: int, tensor: torch.Tensor, before: Any = None) -> None:
        if alone(self, index, tensor):
            self.require_version(tensor, self.slots[index][2][3])
        else:
            there(self, index, tensor, before)

    copy.call_instead("nested.recomputation", "Recomputation.compare_metadata", compare)


def run_number(region: Any) -> int:
    """How often a region was recomputed, with this run, for which this is called once."""
    region.run_number = vars(region).get("run_number", 0) + 1
    return int(region.run_number)


def on_main_thread() -> bool:
    """Whether this runs on the main thread."""
    return threading.current_thread() is threading.main_thread()
