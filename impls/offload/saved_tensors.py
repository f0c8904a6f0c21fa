"""What autograd saves while a slice runs: a reference where it is a loaded copy, which is loaded again when it is needed.

All else is handed to the saved-tensor hooks around the model, if there are any, and kept as autograd keeps it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from impls.tensors.versions import VersionProbe, version_probe
from impls.torch_private import has_storage, neg_view, pop_hooks, push_hooks, run_frames_untraced, top_hooks

if TYPE_CHECKING:
    from impls.offload.slice_use import Start


class Loader(Protocol):
    """Gives a copy of a parameter or buffer once the slice's run is over."""

    references: int

    def load_again(self, name: str, start: Start) -> torch.Tensor: ...

    def refuse_overtaken(self, name: str, start: Start) -> None: ...


class SliceHooks:
    """One run of a slice on loaded copies, and the saved-tensor hooks for it.

    ``copies`` are what the modules are given, by name. With ``pristine`` a copy that the run has changed is not referred
    to but saved like any other tensor, since it will not be the value that is loaded again. ``start`` has the values that
    the run began with where they are not those at the end of the slice's run; another microbatch may add to it later.
    """

    def __init__(self, loader: Loader, copies: Mapping[str, torch.Tensor], start: Start, *, pristine: bool) -> None:
        self.loader, self.start, self.pristine = loader, start, pristine
        self.copies = dict(copies)
        self.versions = {name: copy._version for name, copy in copies.items()}
        self.storages = {number: name for name, copy in copies.items() if (number := storage_number(copy)) is not None}
        self.counters: dict[str, VersionProbe] = {}
        self.ended: dict[str, int] = {}
        self.outer: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def __enter__(self) -> SliceHooks:
        self.outer = top_hooks(True)
        push_hooks(self.pack, _unpack)
        return self

    def __exit__(self, *_: object) -> None:
        pop_hooks()
        self.outer = None
        self.ended = {name: each._version for name, each in self.counters.items()}
        self.copies, self.storages = {}, {}

    def pack(self, tensor: torch.Tensor) -> Packed:
        number = storage_number(tensor)
        name = None if number is None else self.storages.get(number)
        changed = name is not None and self.copies[name]._version != self.versions[name]
        if name is not None and not (self.pristine and changed):
            if changed and self.outer is not None:
                self.outer[0](tensor)  # a region around compares versions when it runs this again; what it gives is not used
            return _Reference(self, name, tensor)
        # A region around takes an alias that nobody holds for its own result: the recomputation makes the copy's value again.
        given = tensor if name is None or tensor.requires_grad else tensor.detach()
        packed = _Kept(tensor) if self.outer is None else _Handed(given, *self.outer)
        return packed if name is None else _Changed(packed, self, name)

    def count(self, name: str) -> VersionProbe:
        """What tells the version of a copy without keeping it."""
        if name not in self.counters:
            self.counters[name] = version_probe(self.copies[name])
        return self.counters[name]

    def version(self, name: str) -> int:
        """The version of a copy now; where the value is kept, another microbatch may have gone on with the copy since."""
        return self.ended[name] if name in self.start and name in self.ended else self.counters[name]._version


def storage_number(tensor: torch.Tensor) -> int | None:
    """What tells a storage from others that exist; None for tensors that have none."""
    return tensor.untyped_storage()._cdata if has_storage(tensor) else None


def _unpack(packed: Packed) -> torch.Tensor:
    return packed.unpack()


# Autograd calls them from within compiled modules, where each would be compiled for each copy, until a limit is reached.
run_frames_untraced(SliceHooks.pack.__code__)
run_frames_untraced(_unpack.__code__)


def _refuse(what: str, now: int, then: int) -> None:
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{what} is at version {now}; expected version {then} instead. Clone it before changing it"
    )


class _Reference:
    """Stands in the graph for a loaded copy or a view of one."""

    __slots__ = ("conjugated", "dtype", "layout", "name", "negated", "run", "version")

    def __init__(self, run: SliceHooks, name: str, tensor: torch.Tensor) -> None:
        self.run, self.name, self.version = run, name, run.count(name)._version
        self.dtype, self.layout = tensor.dtype, (tensor.size(), tensor.stride(), tensor.storage_offset())
        self.conjugated, self.negated = tensor.is_conj(), tensor.is_neg()
        run.loader.references += 1

    def unpack(self) -> torch.Tensor:
        now = self.run.version(self.name)
        if now != self.version:
            _refuse(f"parameter or buffer {self.name!r} of an offloaded model", now, self.version)
        copy = self.run.copies.get(self.name)  # backward may run inside the slice
        copy = (self.run.loader.load_again(self.name, self.run.start) if copy is None else copy).detach()
        if copy.dtype != self.dtype:
            copy = torch.empty(0, dtype=self.dtype, device=copy.device).set_(copy.untyped_storage())
        tensor = copy.as_strided(*self.layout)
        tensor = tensor.conj() if self.conjugated else tensor
        return neg_view(tensor) if self.negated else tensor


class _Kept:
    """A saved tensor as autograd keeps it. An alias without a graph: a result that owned its own node would never die."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version

    def unpack(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            _refuse(f"{self.tensor.dtype} {list(self.tensor.shape)}", self.tensor._version, self.version)
        return self.tensor


class _Handed:
    """A saved tensor as the hooks around the model packed it."""

    __slots__ = ("hook", "packed")

    def __init__(self, tensor: torch.Tensor, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        self.packed, self.hook = pack(tensor), unpack

    def unpack(self) -> torch.Tensor:
        return self.hook(self.packed)


class _Changed:
    """A copy that the run had changed before it was saved, packed by others."""

    __slots__ = ("name", "packed", "run")

    def __init__(self, packed: _Kept | _Handed, run: SliceHooks, name: str) -> None:
        self.packed, self.run, self.name = packed, run, name

    def unpack(self) -> torch.Tensor:
        self.run.loader.refuse_overtaken(self.name, self.run.start)
        return self.packed.unpack()


Packed = _Reference | _Handed | _Kept | _Changed
