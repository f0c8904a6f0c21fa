"""One slice in one call of a model: what was loaded, how to tell whether it is still the same, and how to load it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from impls.offload.transfers import Arrival
from impls.torch_private import current_autograd_node, has_storage, will_engine_execute_node

if TYPE_CHECKING:
    from impls.offload.residence import Residence


_silent_changes: MutableMapping[torch.Tensor, int] = WeakTensorKeyDictionary()


def count_silent_change(tensor: torch.Tensor) -> None:
    """Note that forward has changed a parameter or buffer, and that its version does not tell."""
    _silent_changes[tensor] = _silent_changes.get(tensor, 0) + 1


class Data(NamedTuple):
    """Where a tensor's values are: its storage, whose number nobody else gets meanwhile, and which part of it.

    Two rows of one matrix have the same storage and version counter.
    """

    storage: StorageWeakRef
    offset: int | torch.SymInt
    size: torch.Size
    stride: tuple[int | torch.SymInt, ...]


def data_of(tensor: torch.Tensor) -> Data | None:
    """Where a tensor's values are; None for a tensor that has no storage."""
    if not has_storage(tensor):
        return None
    return Data(StorageWeakRef(tensor.untyped_storage()), tensor.storage_offset(), tensor.size(), tensor.stride())


class Stamp(NamedTuple):
    """Tells whether a tensor is what it was: its version, and its data.

    ``silent`` counts the changes by forwards of offloaded models of which the version does not tell.
    """

    version: int
    data: Data | None
    silent: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Stamp:
        silent = _silent_changes.get(tensor, 0) if _silent_changes else 0
        return cls(0 if tensor.is_inference() else tensor._version, data_of(tensor), silent)


class Start(dict[str, torch.Tensor]):
    """The values that one microbatch started from, of parameters and buffers that some microbatch changes.

    They are on the offload device. ``silent`` has the names that this microbatch changed without a new version: references
    saved to them read the original, as plain autograd does. ``overtaken`` has the names whose saved value is gone: a later
    microbatch changed it (its value here is the start of the microbatch after this one), or it was given other ``.data``
    (None).
    """

    def __init__(self, values: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(values or {})
        self.silent: set[str] = set()
        self.overtaken: dict[str, Start | None] = {}


class Loaded(NamedTuple):
    """A slice's copies, and what the originals were when they were copied."""

    arrival: Arrival
    stamps: dict[str, Stamp]
    versions: dict[str, int]

    def serves(self, tensors: dict[str, torch.Tensor], names: Collection[str]) -> bool:
        """Whether the copies have the values that the originals have, and nobody has changed them."""
        copies = self.arrival.copies
        return all(
            name in copies and self.stamps[name] == Stamp.of(tensors[name]) and copies[name]._version == self.versions[name]
            for name in names
        )


class SliceUse:
    """One slice in one call of the model: what was loaded for its run, and how to load it again.

    ``tensors`` has each parameter and buffer once; ``places`` maps each place in a module to the name of the tensor there.
    ``below`` is the use of the slice before it, with the nodes that its outputs came from.
    """

    def __init__(self, index: int, chain: torch.nn.Module, residence: Residence) -> None:
        self.index, self.residence = index, residence
        self.tensors: dict[str, torch.Tensor] = {}
        self.places: dict[str, str] = {}
        names: dict[int, str] = {}
        with residence.exclusive():
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

    def is_same(self, other: SliceUse) -> bool:
        """Whether both have the same originals, unchanged."""
        mine, others = self.tensors, other.tensors
        return mine.keys() == others.keys() and all(mine[name] is others[name] for name in mine) and self.stamps == other.stamps

    def load(self) -> Loaded:
        """Copies of the slice as it is now."""
        stamps = {name: Stamp.of(tensor) for name, tensor in self.tensors.items()}
        arrival = self.residence.route.load(self.tensors)
        return Loaded(arrival, stamps, {name: copy._version for name, copy in arrival.copies.items()})

    def check(self, names: Iterable[str]) -> None:
        """Raise RuntimeError if autograd could tell that an original is not what it was at the end of the slice's run."""
        for name in names:
            now, then = Stamp.of(self.tensors[name]), self.stamps[name]
            if now.version != then.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"parameter or buffer {name!r} of an offloaded model is at version {now.version}; expected version "
                    f"{then.version} instead. Run backward before changing it, by an optimizer or load_state_dict for example"
                )
            if now.data != then.data:
                raise RuntimeError(
                    f"parameter or buffer {name!r} of an offloaded model was given other data since forward, so what forward "
                    "used cannot be loaded again. Run backward before its data is replaced"
                )

    def check_silent(self, names: Iterable[str]) -> None:
        """Raise RuntimeError if a forward has changed an original since, or a hook, so that no version tells."""
        for name in names:
            if Stamp.of(self.tensors[name]).silent != self.stamps[name].silent:
                raise RuntimeError(
                    f"parameter or buffer {name!r} of an offloaded model was changed by a later forward, or by a hook in this "
                    "one, through .data or by batch norm, so what forward used cannot be loaded again. Run backward before "
                    "that, or pass checkpoint_activation=False"
                )

    def resident(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The slice's copies for the backward that is under way; those of ``names`` are what the originals are."""
        self.check(names)
        loaded = self.residence.take(self, names)
        loaded.arrival.wait()
        return loaded.arrival.copies

    def load_again(self, name: str, start: Start) -> torch.Tensor:
        """The copy that a saved reference stands for: of the original, or of what is in ``start`` if that is another value."""
        self.refuse_overtaken(name, start)
        if name not in start or name in start.silent:
            return self.resident((name,))[name]
        arrival = self.residence.route.load({name: start[name]})
        arrival.wait()
        return arrival.copies[name]

    def refuse_overtaken(self, name: str, start: Start) -> None:
        """Raise RuntimeError if what was saved by this name is overtaken by another value, and is about to be looked at."""
        if name not in start.overtaken or _ignores_statistics(current_autograd_node()):
            return
        following = start.overtaken[name]
        if following is None or not torch.equal(following[name], self.tensors[name]):
            raise RuntimeError(
                f"parameter or buffer {name!r} of an offloaded model was saved for backward, and then changed where no version "
                "counter tells: it was given other .data, or a later microbatch changed it through .data or by batch norm. "
                "Clone it where forward uses it, or change it in place under torch.no_grad()"
            )

    def next(self) -> SliceUse | None:
        """The use that backward is going to ask for after this one."""
        below = self.below
        while below is not None:
            use, nodes = below
            if not any(will_engine_execute_node(node) for node in nodes):
                return None
            if use.references or (use.recomputed and use.tensors):
                return use
            below = use.below
        return None


Below = tuple[SliceUse, tuple[Any, ...]]


def _ignores_statistics(node: Any) -> bool:
    """Whether this is a node of batch norm in training, which saves running statistics and does not look at them.

    One of the second order has another name for whether it is; cuDNN's is always of training, and does not say.
    """
    said = [getattr(node, name) for name in ("_saved_training", "_saved_train") if hasattr(type(node), name)]
    return hasattr(type(node), "_saved_running_mean") and all(said)
