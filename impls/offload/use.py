"""One slice in one call of a model: what was loaded, how to tell whether it is still the same, and how to load it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.offload.route import Arrival
from impls.offload.saved import storage_number

if TYPE_CHECKING:
    from impls.offload.residence import Residence


class Stamp(NamedTuple):
    """Tells whether a tensor is what it was: its version, and its storage, whose number nobody else gets meanwhile."""

    version: int
    storage: StorageWeakRef | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Stamp:
        storage = None if storage_number(tensor) is None else StorageWeakRef(tensor.untyped_storage())
        return cls(0 if tensor.is_inference() else tensor._version, storage)


class Loaded(NamedTuple):
    """A slice's copies, and what the originals were when they were copied."""

    arrival: Arrival
    stamps: dict[str, Stamp]
    versions: dict[str, int]

    def serves(self, stamps: dict[str, Stamp], names: Collection[str]) -> bool:
        """Whether the copies have the values of that time, and nobody has changed them."""
        copies = self.arrival.copies
        return all(
            name in copies and self.stamps[name] == stamps[name] and copies[name]._version == self.versions[name]
            for name in names
        )


class Use:
    """One slice in one call of the model: what was loaded for its turn, and how to load it again.

    ``tensors`` has each parameter and buffer once; ``places`` says by what name the one goes that a module has somewhere.
    ``below`` is the use of the slice before it, with the nodes that its outputs came from.
    """

    def __init__(self, index: int, chain: torch.nn.Module, residence: Residence) -> None:
        self.index, self.residence = index, residence
        self.tensors: dict[str, torch.Tensor] = {}
        self.places: dict[str, str] = {}
        names: dict[int, str] = {}
        with residence.turn():
            for path, module in chain.named_modules():  # a module that occurs twice is there once
                for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None:
                        place = f"{path}.{own}"
                        self.places[place] = names.setdefault(id(tensor), place)
                        self.tensors[self.places[place]] = tensor
        self.stamps = {name: Stamp.of(tensor) for name, tensor in self.tensors.items()}
        self.below: Below | None = None
        self.references = 0
        self.recomputed = False

    def same(self, other: Use) -> bool:
        """Whether both have the same originals, unchanged."""
        mine, others = self.tensors, other.tensors
        return mine.keys() == others.keys() and all(mine[name] is others[name] for name in mine) and self.stamps == other.stamps

    def has_buffers(self) -> bool:
        """Whether there is something that forward may be expected to change."""
        return any(not isinstance(tensor, torch.nn.Parameter) for tensor in self.tensors.values())

    def load(self) -> Loaded:
        """Copies of the slice as it is now."""
        stamps = {name: Stamp.of(tensor) for name, tensor in self.tensors.items()}
        arrival = self.residence.route.load(self.tensors)
        return Loaded(arrival, stamps, {name: copy._version for name, copy in arrival.copies.items()})

    def check(self, names: Iterable[str]) -> None:
        """Raise RuntimeError if an original is not what it was at the end of the slice's turn."""
        for name in names:
            now, then = Stamp.of(self.tensors[name]), self.stamps[name]
            if now.version != then.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"parameter or buffer {name!r} of an offloaded model is at version {now.version}; expected version "
                    f"{then.version} instead. Run backward before changing it, by an optimizer or load_state_dict for example"
                )
            if now.storage != then.storage:
                raise RuntimeError(
                    f"parameter or buffer {name!r} of an offloaded model was given other data since forward, so what forward "
                    "used cannot be loaded again. Run backward before its data is replaced"
                )

    def resident(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The slice's copies for the backward that is under way; those of ``names`` are as they were in the slice's turn."""
        self.check(names)
        loaded = self.residence.take(self, names)
        loaded.arrival.wait()
        return loaded.arrival.copies

    def again(self, name: str, start: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The copy of one parameter or buffer; of what is in ``start`` if it is, and not of the original."""
        if name not in start:
            return self.resident((name,))[name]
        arrival = self.residence.route.load({name: start[name]})
        arrival.wait()
        return arrival.copies[name]

    def next(self) -> Use | None:
        """The use that backward is going to ask for after this one."""
        below = self.below
        while below is not None:
            use, nodes = below
            if not any(torch._C._will_engine_execute_node(node) for node in nodes):
                return None
            if use.references or (use.recomputed and use.tensors):
                return use
            below = use.below
        return None


Below = tuple[Use, tuple[Any, ...]]
