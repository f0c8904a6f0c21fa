"""Where a recomputation parts from its forward: both are recorded operator by operator, and regions are left out.

A recording compares digests of what operators read and write. What implementations and PyTorch's checkpoint do themselves
is left out of it, and so are detach and changes of dtype, of which autocast's cache spares the second. What memory holds
that no operator has written yet is no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reprise.model_check import comparison, regions
from reprise.model_check.comparison import digest, look
from reprise.model_check.regions import Key, current_run, user_frames
from reprise.model_check.run import Checkpoint, Probe, Run, Setting, run

TRIES = 60  # runs at most to leave regions out
_LEFT_OUT = {"aten.detach.default", "aten._to_copy.default", "aten.alias.default"}
_UNWRITTEN = {getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
                                                         "new_empty_strided")}  # fmt: skip
_SHOWN = bool | int | float | complex | str | torch.dtype  # arguments of operators that are compared
_CHECKPOINTS = (torch.utils.checkpoint.__file__, regions.INTERNAL[2])


@dataclass(frozen=True)
class Wrong:
    """What a right run is: plain's, within a spread."""

    plain: Run
    spread: comparison.Comparison | None

    def shown_by(self, setting: Setting, checkpoint: Checkpoint, only: frozenset[Key] | None) -> bool:
        """Whether checkpointing these regions alone still goes wrong."""
        try:
            seen = run(setting, checkpoint, only=only)
        except Exception:  # noqa: BLE001 - whatever it is, it is wrong
            return True
        return not comparison.compare_runs(self.plain, seen, self.spread).agrees


@dataclass(frozen=True)
class Operator:
    """One operator that ran: its other arguments, digests of the tensors that it read, and of those that it made or wrote."""

    name: str
    options: tuple[str, ...]
    read: tuple[str, ...]
    made: tuple[str, ...]
    origins: tuple[str, ...]
    module: str
    line: str


@dataclass
class Recording(TorchDispatchMode):
    """The operators of each run of each region; those outside of regions are under no key and number 0."""

    model: nn.Module
    runs: dict[tuple[Key, int], list[Operator]] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)
    unwritten: set[StorageWeakRef] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.modules_by_id = {id(module): name for name, module in self.model.named_modules()}
        named = [("parameter", self.model.named_parameters()), ("buffer", self.model.named_buffers())]
        self.origin = {id(one.untyped_storage()): f"{kind} {name}" for kind, of in named for name, one in of}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) in _LEFT_OUT or _is_of_checkpoint():
            return func(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        read = tuple(map(self._digest, inputs))
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._note_writes(func, args, kwargs, outputs)
        after = tuple(map(self._digest, [*outputs, *inputs]))
        one = current_run()
        key = (one.region.key, one.number) if one else ((), 0)
        if one:
            self.names[one.region.key] = one.region.name
        frame = next(user_frames(), None)
        self.runs.setdefault(key, []).append(
            Operator(
                str(func),
                tuple(repr(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _SHOWN)),
                read,
                after,
                tuple(
                    self.origin.get(id(leaf.untyped_storage()), "") if leaf.layout == torch.strided else "" for leaf in inputs
                ),
                self._module(),
                f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "unknown",
            )
        )
        return result

    def _digest(self, tensor: torch.Tensor) -> str:
        return look(tensor) if self.unwritten and self.unwritten & _storages([tensor]) else digest(tensor)

    def _note_writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: list[torch.Tensor]) -> None:
        """Keep in mind which storages no operator has written."""
        if func.overloadpacket in _UNWRITTEN:
            self.unwritten |= _storages(outputs)
        elif self.unwritten:
            parameters = func._schema.arguments
            given = [
                *zip(parameters, args, strict=False),
                *((each, kwargs[each.name]) for each in parameters if each.name in kwargs),
            ]
            for parameter, value in given:
                if parameter.alias_info is not None and parameter.alias_info.is_write:
                    self.unwritten -= _storages(tree_leaves(value))

    def _module(self) -> str:
        """The innermost module that is being called, from the frames of ``Module.__call__``."""
        for frame in regions.frames():
            if frame.f_code is nn.Module._call_impl.__code__:
                name = self.modules_by_id.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name or "the model itself"
        return ""


def _storages(values: Iterable[Any]) -> set[StorageWeakRef]:
    """The storages of strided tensors."""
    strided = (one for one in values if isinstance(one, torch.Tensor) and one.layout == torch.strided)
    return {StorageWeakRef(one.untyped_storage()) for one in strided}


def _is_of_checkpoint() -> bool:
    """Whether an implementation calls the operator, rather than the user."""
    for frame in regions.frames():
        path = frame.f_code.co_filename
        if path.startswith(_CHECKPOINTS):
            return True
        if not path.startswith(regions.INTERNAL):
            return False
        if frame.f_code is nn.Module._call_impl.__code__:
            return False
    return False


def record(setting: Setting, checkpoint: Checkpoint | None, only: frozenset[Key] | None = None) -> tuple[Recording, str]:
    """One step, recorded, and the error that ended it, if any."""
    made: list[Recording] = []

    def mode(model: nn.Module) -> Recording:
        made.append(Recording(model))
        return made[-1]

    probe = Probe(mode, lambda _: lambda _: nullcontext(), lambda *_: None)
    error = ""
    try:
        run(setting, checkpoint, steps=1, only=only, probe=probe)
    except Exception as raised:  # noqa: BLE001 - it is told
        error = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return made[-1], error


def first_difference(forward: Sequence[Operator], again: Sequence[Operator]) -> tuple[str, ...]:
    """The first operator of ``again`` that is another than in ``forward``, or reads or makes others; nothing if none does."""
    for number, (one, other) in enumerate(zip(forward, again, strict=False)):
        where = (f"  in forward at {one.line}", f"  again at {other.line}")
        place = f"operator {number}, in module {other.module or 'unknown'}"
        if one.name != other.name:
            return (f"{place}: forward ran {one.name}, the recomputation {other.name}", *where)
        changed = [i for i, (a, b) in enumerate(zip(one.read, other.read, strict=False)) if a != b]
        if changed or len(one.read) != len(other.read):
            if len(one.read) != len(other.read):
                told = f"{one.name} reads {len(one.read)} tensors in forward, {len(other.read)} again"
                return (f"{place}: {told}", *where)
            named = [other.origins[i] or f"tensor {i}" for i in changed]
            return (f"{place}: {one.name} reads another value of {', '.join(named)}, changed since forward", *where)
        if one.options != other.options:
            told = f"{one.name} is called with {', '.join(one.options)} in forward, with {', '.join(other.options)} again"
            return (f"{place}: {told}", *where)
        if one.made != other.made:
            return (f"{place}: {one.name} gives another value for the same inputs", *where)
    if len(again) > len(forward):
        extra = again[len(forward)]
        return (f"operator {len(forward)}: {extra.name} runs in the recomputation alone", f"  at {extra.line}")
    return ()


def explain_divergence(setting: Setting, checkpoint: Checkpoint, wrong: Wrong) -> tuple[str, ...]:
    """Lines that name a smallest set of regions which still goes wrong, and where its recomputations part from forward."""
    keys = [one.key for one in wrong.plain.regions]
    smallest = shrink(keys, lambda some: wrong.shown_by(setting, checkpoint, frozenset(some)))
    recording, error = record(setting, checkpoint, frozenset(smallest))
    names = {one.key: f"{one.name} ({one.line})" for one in wrong.plain.regions}
    lines = [f"smallest set of regions that shows it: {', '.join(names[key] for key in smallest)}"]
    found = False
    for (key, number), again in sorted(recording.runs.items()):
        if number == 0 or (key, 0) not in recording.runs:
            continue
        if difference := first_difference(recording.runs[key, 0], again):
            found = True
            lines += [f"region {names.get(key, recording.names[key])}, recomputation {number}:", *difference]
            break
    if error:
        lines.append(f"ended by {error}")
    if not found:
        lines.append(
            "every operator of the recomputations that ran reads and gives what it did in forward, so what differs is not in "
            "a region's values: how often something happens, or which gradients the implementation passes on"
        )
    return tuple(lines)


def explain_spread(setting: Setting) -> tuple[str, ...]:
    """Where two plain runs part."""
    one, other = (record(setting, None)[0].runs for _ in range(2))
    for key, operators in one.items():
        if difference := first_difference(operators, other.get(key, [])):
            where = f"region {key[0]}" if key[0] else "outside of regions"
            return f"two plain runs part {where}:", *difference
    return ("recorded operator by operator, two plain runs were the same",)


def shrink(keys: list[Key], shows: Callable[[list[Key]], bool]) -> list[Key]:
    """A smallest set of keys that still shows it: without any one of them it does not, unless TRIES were too few."""
    tries = iter(range(TRIES))
    size = len(keys) // 2
    while size:
        start = 0
        while start < len(keys):
            rest = keys[:start] + keys[start + size :]
            if rest and next(tries, None) is not None and shows(rest):
                keys = rest
            else:
                start += size
        size //= 2
    return keys
