"""What ran in a step, operator by operator: digests of what each read and made, and which storages were written when.

Operators of implementations and of PyTorch's checkpoint are left out, and those by which a lazy module initializes itself. So
are detach and changes of dtype: autocast's cache may spare a second one. Of memory that no operator has written yet, only the
metadata are compared, and nothing of an operator's workspace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reprise import torch_private
from reprise.model_check import errors, regions
from reprise.model_check.errors import BUILD_ERRORS, OwnWork, PlainFails
from reprise.model_check.reachable.walk import named
from reprise.model_check.regions import Key, RegionRun, RunOf, current_run, user_line
from reprise.model_check.run import Checkpoint, Probe, Setting, run
from reprise.model_check.tensors.operators import is_view, overwritten
from reprise.model_check.tensors.tensor_difference import digest, tensor_metadata

_CAST = torch.ops.aten._to_copy
_OF_SIZES = "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous"  # of jagged tensors, too
_LEFT_OUT = {torch.ops.aten.detach, torch.ops.aten.alias, _CAST, *(getattr(torch.ops.aten, name) for name in _OF_SIZES)}
_FROM_DATA = {torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy}  # by which torch.tensor begins
_UNWRITTEN = {getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
                                                         "new_empty_strided")}  # fmt: skip
# These return memory for backward that is not all written, or none without grad mode: from this place of their results on.
_WORKSPACES = {
    getattr(torch.ops.aten, name): 3
    for name in ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "cudnn_batch_norm", "_batch_norm_with_update")
}
_SHOWN = bool | int | float | complex | str | torch.dtype  # arguments of operators that are compared
_ENDED = "_reprise_ended"  # the attribute of an exception that says which run it ended
_CHECKPOINTS = (torch.utils.checkpoint.__file__, regions.IMPLEMENTATIONS)


@dataclass(frozen=True)
class Operator:
    """One operator that ran: digests of the tensors that it read, and of those that it made or read, afterwards.

    What it wrote anew, or made views of, is among those that it read, without its values. For each of these, ``dtypes`` has its
    type, ``origins`` names the parameter, buffer or argument that it is or was cast from, and ``storages`` has its storage, if
    known; so has ``made_storages`` for those in ``made``. ``options`` are its other arguments.
    """

    time: int
    name: str
    options: tuple[str, ...]
    fixed_options: tuple[str, ...]  # without floating point numbers, which may come from values
    read: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    made: tuple[str, ...]
    origins: tuple[str, ...]
    has_grad_mode: bool
    has_generator: bool  # whether it is given a torch.Generator
    is_random: bool  # whether it draws random numbers, from a generator that it is given or not
    is_from_data: bool  # whether it makes a tensor of data of Python or numpy
    reads_unwritten: bool  # whether it reads memory that no operator has written, as of torch.empty
    storages: tuple[StorageWeakRef | None, ...]
    made_storages: tuple[StorageWeakRef | None, ...]
    module: str
    line: str


@dataclass(frozen=True)
class _Begun:
    """What an operator that is about to run is given, and reads."""

    inputs: tuple[torch.Tensor, ...]
    read: tuple[str, ...]
    reads_unwritten: bool
    storages: tuple[StorageWeakRef | None, ...]


@dataclass(frozen=True)
class Write:
    """A storage that an operator wrote, with the operator's name and the user's line."""

    time: int
    storage: StorageWeakRef
    operator: str
    line: str


@dataclass(frozen=True)
class RunEnd:
    """When an exception ended a region's run, and at which line of the user's."""

    time: int
    run: RunOf
    line: str


@dataclass
class Recording(TorchDispatchMode):
    """The operators of each run of each region; those outside of regions have an empty key and number 0.

    Time is counted in operators. ``inputs`` has the storages of what each region was passed in forward, and since when.
    ``begun`` has runs that may have no operator; ``finished`` has when those that came to their end by themselves did so.
    ``ended`` is the last run that an exception ended: an error, or how an implementation stops a recomputation early;
    ``ended_step`` says whether the same exception ended the step.
    With an error of its ``own``, nothing is recorded any more.
    """

    model: nn.Module
    runs: dict[RunOf, list[Operator]] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)
    inputs: dict[Key, tuple[int, dict[StorageWeakRef, str]]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    cast_from: dict[StorageWeakRef, StorageWeakRef] = field(default_factory=dict)
    unwritten: set[StorageWeakRef] = field(default_factory=set)
    begun: set[RunOf] = field(default_factory=set)
    finished: dict[RunOf, int] = field(default_factory=dict)
    ended: RunEnd | None = None
    ended_step: bool = False
    own: OwnWork = field(default_factory=OwnWork)
    time: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        with self.own:
            self.modules_by_id = {id(module): name for name, module in self.model.named_modules()}
            kinds = [("parameter", self.model.named_parameters()), ("buffer", self.model.named_buffers())]
            tensors = {f"{kind} {name}": one for kind, of in kinds for name, one in of}
            self.is_lazy = any(is_lazy(one) for one in tensors.values())
            self.lazy = {name: one for name, one in tensors.items() if is_lazy(one)}
            self.origin = {found: name for name, one in tensors.items() if name not in self.lazy and (found := _storage(one))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begun: _Begun | None = None
        if not self.own.is_ignored:
            with self.own:
                begun = self._begun(func, args, kwargs)
        result = func(*args, **kwargs)
        if begun is not None:
            with self.own:
                self._note(begun, func, args, kwargs, result)
        elif func.overloadpacket == _CAST and not self.own.is_ignored:
            with self.own:
                self._note_cast(args[0], result)
        return result

    def _begun(self, func: Any, args: Any, kwargs: Any) -> _Begun | None:
        """What an operator is about to read; None if it is left out."""
        if func.overloadpacket in _LEFT_OUT or _is_of_checkpoint() or (self.is_lazy and _initializes_lazy_module()):
            return None
        self.time += 1
        inputs = tuple(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        written = {id(one) for one in overwritten(func, args, kwargs)}
        unread = {id(one) for one in inputs} if is_view(func) else written
        read = (tensor_metadata(one) if id(one) in unread else self._digest(one) for one in inputs)
        reads_unwritten = any(self._is_unwritten(one) for one in inputs if id(one) not in unread)
        return _Begun(inputs, tuple(read), reads_unwritten, tuple(map(_storage, inputs)))

    def _note(self, begun: _Begun, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Put down an operator that has run."""
        workspace = _WORKSPACES.get(func.overloadpacket)
        values = result if workspace is None else result[:workspace]
        outputs = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        line = user_line()
        self._note_writes(func, args, kwargs, outputs, line)
        shown = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _SHOWN)]
        one = current_run()
        key = (one.region.key, one.number) if one else ((), 0)
        self.runs.setdefault(key, []).append(
            Operator(
                self.time,
                str(func),
                tuple(map(repr, shown)),
                tuple(repr(leaf) for leaf in shown if not isinstance(leaf, float | complex)),
                begun.read,
                tuple(one.dtype for one in begun.inputs),
                tuple(map(tensor_metadata if is_view(func) else self._digest, [*outputs, *begun.inputs])),
                tuple(self._origin(key[0], storage) for storage in begun.storages),
                torch.is_grad_enabled(),
                any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs))),
                torch.Tag.nondeterministic_seeded in func.tags,
                func.overloadpacket in _FROM_DATA,
                begun.reads_unwritten,
                begun.storages,
                (*map(_storage, outputs), *begun.storages),
                self._module(),
                line,
            )
        )

    def _note_cast(self, tensor: torch.Tensor, result: torch.Tensor) -> None:
        source, made = _storage(tensor), _storage(result)
        if source is not None and made is not None:
            self.cast_from[made] = self.cast_from.get(source, source)
            if source in self.unwritten:
                self.unwritten.add(made)

    @contextmanager
    def watch(self, one: RegionRun) -> Iterator[None]:
        """Note what a region is passed in forward, and where a run is ended by an exception."""
        key = one.region.key
        with self.own:
            self.begun.add((key, one.number))
            self.names[key] = one.region.name
            if one.number == 0:
                self.inputs[key] = self.time, dict(_named_storages(*one.arguments))
        try:
            yield
        except BaseException as error:  # implementations end recomputations by what is no Exception, too
            with self.own:
                line = errors.line_of(error) or one.region.line
                self.ended = RunEnd(self.time, (key, one.number), line)
                with suppress(AttributeError, TypeError):  # an exception whose class has slots
                    setattr(error, _ENDED, self.ended)  # to know it again, without keeping it and its frames
            raise
        with self.own:
            self.finished[key, one.number] = self.time

    def writes_to(self, storage: StorageWeakRef, since: int, until: int | None = None) -> list[Write]:
        """The operators that wrote a storage from time ``since`` on, and before ``until`` if that is given."""
        until = self.time + 1 if until is None else until
        return [one for one in self.writes if one.storage == storage and since <= one.time < until]

    def _origin(self, key: Key, storage: StorageWeakRef | None) -> str:
        if storage is None:
            return ""
        if initialized := [name for name, one in self.lazy.items() if not is_lazy(one)]:
            self.origin |= {found: name for name in initialized if (found := _storage(self.lazy.pop(name)))}
        storage = self.cast_from.get(storage, storage)
        of_region = self.inputs[key][1].get(storage, "") if key in self.inputs else ""
        return self.origin.get(storage) or (of_region and f"{of_region} of the region")

    def _digest(self, tensor: torch.Tensor) -> str:
        return tensor_metadata(tensor) if self._is_unwritten(tensor) else digest(tensor)

    def _is_unwritten(self, tensor: torch.Tensor) -> bool:
        return bool(self.unwritten) and _storage(tensor) in self.unwritten

    def _note_writes(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: list[torch.Tensor], line: str
    ) -> None:
        """Note which storages an operator wrote, and which no operator has written yet."""
        if func.overloadpacket in _UNWRITTEN:
            self.unwritten |= {*_storages(outputs)}
            return
        parameters = func._schema.arguments
        given = [*zip(parameters, args, strict=False), *((one, kwargs[one.name]) for one in parameters if one.name in kwargs)]
        for parameter, value in given:
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                for storage in _storages(tree_leaves(value)):
                    self.unwritten.discard(storage)
                    self.writes.append(Write(self.time, storage, str(func), line))

    def _module(self) -> str:
        """The innermost module that is being called, from the frames of ``Module.__call__``."""
        for frame in regions.frames():
            if frame.f_code is torch_private.code_of_module_call:
                name = self.modules_by_id.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name or "the model itself"
        return ""


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    return StorageWeakRef(tensor.untyped_storage()) if tensor.layout == torch.strided else None


def _named_storages(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[StorageWeakRef, str]]:
    """The storages in arguments, with the argument's name."""
    for name, value in named(args, kwargs):
        yield from ((storage, name) for storage in _storages(tree_leaves(value)))


def _storages(values: Iterable[Any]) -> Iterator[StorageWeakRef]:
    """The storages of strided tensors."""
    return (storage for one in values if isinstance(one, torch.Tensor) and (storage := _storage(one)) is not None)


def _is_of_checkpoint() -> bool:
    """Whether an implementation calls the operator, rather than the user."""
    for frame in regions.frames(of_region=True):
        path = frame.f_code.co_filename
        if path.startswith(_CHECKPOINTS):
            return True
        if not path.startswith(regions.INTERNAL):
            return False
        if frame.f_code is torch_private.code_of_module_call:
            return False
    return False


def _initializes_lazy_module() -> bool:
    """Whether a lazy module initializes itself, which it does in its first forward alone."""
    return any(frame.f_code is torch_private.code_of_lazy_initialization for frame in regions.frames(of_region=True))


def record(
    setting: Setting, checkpoint: Checkpoint | None, only: frozenset[Key] | None = None, *, step: int = 1
) -> tuple[Recording, str]:
    """One step, recorded, and the error that ended it, or one before, if any.

    Raises BUILD_ERRORS, and MeteringFails for an error of its own.
    """
    made: list[Recording] = []

    def mode(model: nn.Module) -> Recording:
        return made[-1]

    def watch(model: nn.Module) -> regions.Watch:
        made.append(Recording(model))
        return made[-1].watch

    error = ""
    try:
        run(setting, checkpoint, steps=step, only=only, probe=Probe(mode, watch, lambda *_: None, step=step))
    except BUILD_ERRORS:
        raise
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is returned
        cause = raised.__cause__ if isinstance(raised, PlainFails) else raised
        made[-1].ended_step = getattr(cause, _ENDED, None) is made[-1].ended is not None
        error = (str(raised) if isinstance(raised, PlainFails) else errors.told(raised)).splitlines()[0]
    made[-1].own.raise_failure()
    return made[-1], error
