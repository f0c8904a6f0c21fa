"""What a slice's forward changed of its parameters and buffers: noted, remembered for recomputations, and written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from impls.offload.cutting import Chain
from impls.offload.saved import storage_number
from impls.offload.use import Stamp, Use

Tensors = dict[str, torch.Tensor]


class Changes:
    """The changes of one turn.

    ``names`` are what changed so far. Of these ``silent`` are those of which version counters do not tell, and
    ``assigned`` those that were replaced, with the replaced copy if that had been changed before. ``starts`` is for each
    microbatch, and for what any of them changes, the value on the offload device that this one started from.
    """

    def __init__(self, title: str, use: Use, chain: Chain) -> None:
        self.title, self.use, self.chain, self.route = title, use, chain, use.residence.route
        self.names: set[str] = set()
        self.silent: set[str] = set()
        self.assigned: dict[str, torch.Tensor | None] = {}
        self.starts: list[Tensors] = []
        self.written: list[torch.Tensor] = []
        self.pending: list[Any] = []

    def concern(self, use: Use) -> bool:
        """Whether another slice shares something that was written back."""
        return any(tensor is written for tensor in use.tensors.values() for written in self.written)

    def begin(self, start: Tensors) -> None:
        """A microbatch begins, on copies of which these differ from the originals."""
        self.starts.append({name: self.away(tensor) for name, tensor in start.items()})

    def note(self, copies: Tensors, before: Mapping[str, tuple[int, Any]], after: Tensors, updated: set[int]) -> None:
        """See what a run did: ``before`` are the copies' versions and nodes, ``after`` is what modules have now."""
        for name, copy in copies.items():
            version, node = before[name]
            told, assigned = copy._version != version, after[name] is not copy
            if not (told or assigned or storage_number(copy) in updated):
                continue
            self.refuse(name, copy, after[name], copy.grad_fn is not node)
            if name not in self.names:
                self.remember(name)
                self.silent.add(name)
            self.names.add(name)
            if told:
                self.silent.discard(name)
            if assigned:
                self.assigned.setdefault(name, copy if told or storage_number(copy) in updated else None)

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
        if after is copy and copy.shape != original.shape:
            raise RuntimeError(f"{self.title} resized buffer {name!r} in forward. Assign another tensor instead")

    def remember(self, name: str) -> None:
        """All microbatches so far, this one among them, have started from the original."""
        if self.starts:
            before = self.use.tensors[name].detach().clone()
            for start in self.starts:
                start[name] = before

    def write_back(self, copies: Tensors) -> None:
        """Give the originals what the last microbatch left."""
        for name in sorted(self.names):
            last = copies[name].detach()
            if name in self.assigned:
                path, _, own = name.rpartition(".")
                self.chain.get_submodule(path)._buffers[own] = self.away(last)
                changed = self.assigned[name]
                if changed is None:
                    continue
                last = changed.detach()
            original = self.use.tensors[name]
            self.written.append(original)
            # Autograd is not told of what forward did not tell it either.
            self.pending.append(self.route.bring(last, original.data if name in self.silent else original.detach()))
            self.use.stamps[name] = Stamp.of(original)

    def away(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(tensor, device=self.route.offload_device)
        self.pending.append(self.route.bring(tensor, copy))
        return copy
