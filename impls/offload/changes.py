"""What a slice's forward changed of its parameters and buffers: noted, remembered for recomputations, and written back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from impls.graph.edges import increment_version
from impls.graph.storage_spans import spans
from impls.offload.loaded_copies import tangent_of
from impls.offload.saved_tensors import storage_number
from impls.offload.slice_use import SliceUse, Stamp, Start, count_silent_change
from impls.offload.slicing import Chain
from impls.offload.transfers import set_version
from impls.tensors.attributes import attributes

Tensors = dict[str, torch.Tensor]


class CopyState(NamedTuple):
    """What a copy was before a run."""

    version: int
    node: Any
    storage: int | None
    requires_grad: bool
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, copy: torch.Tensor) -> CopyState:
        """What it is now."""
        return cls(copy._version, copy.grad_fn, storage_number(copy), copy.requires_grad, dict(attributes(copy)))


class Change(NamedTuple):
    """How a run changed a copy: its version tells, it was given other data, an operator wrote it, or another is assigned."""

    told: bool
    redirected: bool
    written: bool
    assigned: bool

    @classmethod
    def of(cls, copy: torch.Tensor, before: CopyState, after: Any, updated: set[int]) -> Change:
        """How the copy differs; ``after`` is what modules have now, ``updated`` are storages that operators wrote."""
        told, number = copy._version != before.version, storage_number(copy)
        return cls(told, not told and number != before.storage, number in updated, after is not copy)


def changed_names(copies: Tensors, before: Mapping[str, CopyState], after: Mapping[str, Any], updated: set[int]) -> set[str]:
    """The names of copies that a run changed in any way; ``after`` and ``updated`` as in ``Change.of``."""
    return {name for name, copy in copies.items() if any(Change.of(copy, before[name], after[name], updated))}


class Neighbour(NamedTuple):
    """A parameter or buffer that reads some of the same bytes as another, and the version that it was at."""

    name: str
    tensor: torch.Tensor
    version: int

    def check(self, name: str) -> None:
        """Raise RuntimeError if it was changed since, and with it that of this name, of which no version tells."""
        now = Stamp.of(self.tensor).version
        if now != self.version:
            raise RuntimeError(
                f"parameter or buffer {name!r} of an offloaded model shares memory with {self.name!r}, which was changed in "
                f"place since forward: it is at version {now}; expected version {self.version}. What forward used cannot be "
                "loaded again. Make them one tensor (model.a.weight = model.b.weight), or step after backward"
            )


class SharedMemory:
    """Which parameters and buffers of a model share memory; looked for once in a call of it, if anybody asks."""

    def __init__(self) -> None:
        self.slices: list[Tensors] = []

    @property
    def in_use(self) -> bool:
        """Whether the model has any parameters or buffers."""
        return any(self.slices)

    @functools.cached_property
    def tensors(self) -> dict[int, dict[str, torch.Tensor]]:
        """Parameters and buffers by name, by the number of their storage."""
        found: dict[int, dict[str, torch.Tensor]] = {}
        for slice_ in self.slices:
            for name, tensor in slice_.items():
                if (number := storage_number(tensor)) is not None:
                    found.setdefault(number, {})[name] = tensor
        return found

    @functools.cached_property
    def overlaps(self) -> dict[str, set[str]]:
        """By the name of a tensor, those of others that read some of the same bytes."""
        found: dict[str, set[str]] = {}
        for number, tensors in self.tensors.items():
            if len(tensors) < 2:
                continue
            begun: list[tuple[int, str]] = []
            for start, end, name in sorted(
                (span.start, span.end, name)
                for name, tensor in tensors.items()
                for span in spans(tensor)
                if span.storage == number and span.start < span.end
            ):
                begun = [(other_end, other) for other_end, other in begun if other_end > start]
                for _, other in begun:
                    if tensors[name] is not tensors[other]:
                        found.setdefault(name, set()).add(other)
                        found.setdefault(other, set()).add(name)
                begun.append((end, name))
        return found

    def neighbours(self, name: str) -> list[Neighbour]:
        """The tensors that read some of the same bytes as that of this name, as they are now."""
        others = self.overlaps.get(name)
        if not others:
            return []
        tensors = {other: tensor for slice_ in self.slices for other, tensor in slice_.items() if other in others}
        return [Neighbour(other, tensor, Stamp.of(tensor).version) for other, tensor in sorted(tensors.items())]

    def shared_with(self, name: str) -> str:
        """The name of another tensor that reads some of the same bytes; "" if none does."""
        return min(self.overlaps.get(name, ""), default="")


def overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors read some of the same bytes."""
    return any(a.overlaps(b) for a in spans(one) for b in spans(two))


class Changes:
    """The parameters and buffers that one run of a slice has changed, by name.

    - ``names``: all that changed so far.
    - ``silent``: those whose version counter does not show it.
    - ``redirected``: those that were given other ``.data``.
    - ``assigned``: those that forward replaced by another tensor; its value is the replaced copy if that had been changed
      before, by this microbatch or an earlier one, else None.
    - ``starts``: for each microbatch, the values that it started from.
    - ``since``: for each name that was assigned, the number of the first microbatch that started from the new tensor.
    """

    def __init__(self, title: str, use: SliceUse, chain: Chain, memory: SharedMemory) -> None:
        self.title, self.use, self.chain, self.route, self.memory = title, use, chain, use.residence.route, memory
        self.names: set[str] = set()
        self.silent: set[str] = set()
        self.redirected: set[str] = set()
        self.assigned: dict[str, torch.Tensor | None] = {}
        self.starts: list[Start] = []
        self.since: dict[str, int] = {}
        self.written: list[torch.Tensor] = []
        self.pending: list[Any] = []

    def affect(self, use: SliceUse) -> bool:
        """Whether another slice shares something that was written back."""
        return any(tensor is written for tensor in use.tensors.values() for written in self.written)

    def begin(self, start: Tensors) -> None:
        """A microbatch begins, on copies of which these differ from the originals."""
        self.starts.append(Start({name: self.copy_to_offload_device(tensor) for name, tensor in start.items()}))

    def note(self, copies: Tensors, before: Mapping[str, CopyState], after: Tensors, updated: set[int], start: Start) -> None:
        """See what a run did that began with ``start``: ``after`` is what modules have now, ``updated`` are storages."""
        for name, copy in copies.items():
            told, redirected, written, assigned = Change.of(copy, before[name], after[name], updated)
            changed = told or redirected or written
            if copy._backward_hooks:
                raise RuntimeError(
                    f"{self.title} registered a hook on {name!r} in forward, where it is a copy that goes with this call. "
                    "Register it before, on the parameter of the model"
                )
            self.refuse_settings(name, copy, before[name])
            if not (changed or assigned):
                continue
            self.refuse(name, copy, after[name], copy.grad_fn is not before[name].node)
            if assigned or redirected:
                self.refuse_sharing(name, after)
            if changed and (other := self.memory.shared_with(name)):
                raise RuntimeError(
                    f"{self.title} changed {name!r} in forward, which shares memory with {other!r}; their copies do not. Give "
                    "them memory of their own, by clone, or make them one tensor"
                )
            was_changed = changed or name in self.names
            if name not in self.names:
                self.remember(name)
                self.silent.add(name)
            self.names.add(name)
            if told:
                self.silent.discard(name)
            if redirected:
                self.redirected.add(name)
                start.overtaken[name] = None
            if self.starts and changed:
                self.overtake(name, told or redirected)
            if assigned:
                self.assigned.setdefault(name, copy if was_changed else None)
                self.since[name] = len(self.starts)

    def overtake(self, name: str, told: bool) -> None:
        """The last microbatch changed the object that goes by this name. What is saved of it reads as it is from now on.

        Plain autograd refuses to read it if its version tells. If not, it reads what is there in backward, and whether
        that is what this microbatch left or what a later one does depends on when backward runs: then it is not read.
        """
        since = self.since.get(name, 0)
        for start, following in itertools.pairwise(self.starts[since:]):
            if not told or name in start.silent:
                start.overtaken.setdefault(name, following)
        if not told and since:
            self.starts[-1].overtaken[name] = None
        elif not told:
            self.starts[-1].silent.add(name)

    def refuse_settings(self, name: str, copy: torch.Tensor, before: CopyState) -> None:
        """Raise RuntimeError if forward set something on a copy that is kept with the tensor, and not with its values."""
        if copy.grad_fn is before.node and copy.requires_grad != before.requires_grad:
            raise RuntimeError(
                f"{self.title} made parameter or buffer {name!r} require grad in forward, where it is a copy that goes with "
                "this call. Call requires_grad_ before, on that of the model"
            )
        if changed := _changed_attribute(attributes(copy), before.attributes, attributes(self.use.tensors[name])):
            raise RuntimeError(
                f"{self.title} changed attribute {changed!r} of parameter or buffer {name!r} in forward, where it is a copy "
                "that goes with this call. Keep the attribute on the module"
            )

    def refuse(self, name: str, copy: torch.Tensor, after: Any, rewritten: bool) -> None:
        original = self.use.tensors[name]
        if not isinstance(after, torch.Tensor):
            raise RuntimeError(f"{self.title} removed parameter or buffer {name!r} in forward. Assign another tensor instead")
        if rewritten and original.requires_grad:
            raise RuntimeError(
                f"{self.title}: a leaf Variable that requires grad ({name!r}) is being used in an in-place operation. "
                "Change it under torch.no_grad()"
            )
        if after is not copy and isinstance(original, nn.Parameter):
            raise RuntimeError(f"{self.title} assigned parameter {name!r} in forward. Change it in place under torch.no_grad()")
        if rewritten or (after is not copy and after.requires_grad):
            raise RuntimeError(f"{self.title} gave buffer {name!r} a graph in forward. Detach what is put into it")
        if tangent_of(after) is not None:
            raise RuntimeError(f"{self.title} gave {name!r} a tangent in forward. Detach what is put into it")
        if after is copy and copy.shape != original.shape:
            raise RuntimeError(f"{self.title} resized buffer {name!r} in forward. Assign another tensor instead")
        if after is copy and copy.dtype != original.dtype and original.requires_grad:
            raise RuntimeError(
                f"{self.title} converted parameter {name!r} from {original.dtype} to {copy.dtype} in forward, and its gradient "
                "would be of the former. Convert the model before"
            )

    def refuse_sharing(self, name: str, after: Mapping[str, Any]) -> None:
        """Raise RuntimeError if what this name has now shares memory with another, as no two copies did before."""
        number = storage_number(after[name])
        for other, tensor in after.items():
            if other == name or number is None or not isinstance(tensor, torch.Tensor) or storage_number(tensor) != number:
                continue
            if overlap(after[name], tensor):
                raise RuntimeError(
                    f"{self.title} had parameter or buffer {name!r} share memory with {other!r} in forward; what is written "
                    "back does not. Clone one of them"
                )

    def remember(self, name: str) -> None:
        """All microbatches so far, this one among them, have started from the original."""
        if self.starts:
            original = self.use.tensors[name]
            before = set_version(original.detach().clone(), original)
            for start in self.starts:
                start[name] = before

    def write_back(self, copies: Tensors) -> None:
        """Give the originals what the last microbatch left."""
        for name in sorted(self.names):
            last = copies[name].detach()
            if name in self.assigned:
                path, _, own = name.rpartition(".")
                self.chain.get_submodule(path)._buffers[own] = self.copy_to_offload_device(last)
                changed = self.assigned[name]
                if changed is None:
                    continue
                last = changed.detach()
            original = self.use.tensors[name]
            self.written.append(original)
            if name in self.redirected:
                original.data = self.copy_to_offload_device(last)
            else:
                # Autograd is not told of what forward did not tell it either.
                self.pending.append(self.route.write(last, original.data if name in self.silent else original.detach()))
            if name in self.silent:
                count_silent_change(original)
            elif name in self.redirected:
                increment_version(original)
            self.use.stamps[name] = Stamp.of(original)

    def copy_to_offload_device(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(tensor, device=self.route.offload_device)
        self.pending.append(self.route.write(tensor, copy))
        return set_version(copy, tensor)


def _changed_attribute(now: Mapping[str, Any], before: Mapping[str, Any], original: Mapping[str, Any]) -> str:
    """An attribute that the copy got from its original and that is another one now, or that is new; "" if there is none.

    The others are those that a subclass consists of. What torch.compile notes on a tensor concerns that tensor alone.
    """
    for name in {**before, **now}:
        of_copy = before.get(name, original.get(name)) is not original.get(name)
        if now.get(name) is not before.get(name) and not of_copy and not name.startswith("_dynamo"):
            return name
    return ""
