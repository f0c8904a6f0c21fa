"""The arguments of a region: flattened when forward runs, rebuilt for the recomputation."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from impls.nested.kept_containers import ReusedContainer, earlier_calls
from impls.tensors.containers import GONE, Container, Contents, Parts, PassedContainer, flatten_once, unflatten
from impls.tensors.other_names import find_other_name
from impls.tensors.packed import Packed
from impls.tensors.versions import VersionProbe, hides_from_modes, version_probe
from impls.torch_private import disable_dispatch_modes, top_hooks

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.Generator})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_CONTAINERS = (_ATOMS | _TENSORS) - {torch.Generator}  # certainly no containers

# Arguments by position and by keyword, the tensors among them, and the containers among them that are not made anew: those
# that hold what they held, and those to be filled with it while the function runs.
Call = tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor], Sequence[ReusedContainer], Sequence[ReusedContainer]]


class Saving(Protocol):
    """A region whose function is under way, or its recomputation."""

    def saved_count(self) -> int:
        """How many tensors it has saved so far."""


# The tensors that a call was passed, each once: the way to it among the arguments, and how many were saved after it.
Places = list[tuple[Any, int]]


def count_alike(some: Places, others: Places) -> int:
    """How many tensors two calls save before the first that is at another place in one of them, or missing."""
    alike = 0
    for one, other in zip(some, others, strict=False):
        if one[0] != other[0]:
            break
        alike = min(one[1], other[1])
        if one != other:  # one of the two has more attributes, which are saved too
            break
    return alike


def capture_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | FlatInputs:
    """The arguments of a call, in the cheapest form that will do: taking them apart is the largest fixed cost of a region."""
    flat = _NO_CONTAINERS.issuperset(map(type, args)) and _NO_CONTAINERS.issuperset(map(type, kwargs.values()))
    if flat and not _hooks_are_active():
        inputs = FlatInputs(args, kwargs)
        if inputs.versions is not None:
            return inputs
    return Inputs(args, kwargs)


def capture_inner_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], enclosing: Saving) -> tuple[Inputs, Places]:
    """The arguments of a call inside another region or its recomputation, and what that one has saved of them."""
    inputs = Inputs(args, kwargs, enclosing)
    places, inputs.places = inputs.places, []
    return inputs, places


def _hooks_are_active() -> bool:
    return top_hooks(True) is not None


class FlatInputs:
    """Arguments, none of them a container, where nobody watches what is saved: autograd would keep the tensors themselves.

    ``versions`` is None if there is a tensor without version counter, made in inference mode: then this class cannot be used.
    """

    __slots__ = ("args", "kwargs", "tensors", "versions")
    generators: tuple[torch.Generator, ...] = ()
    hooks_were_active = False

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args: tuple[Any, ...] | None = args
        self.kwargs = kwargs
        self.tensors: list[Any] = [one for one in (*args, *kwargs.values()) if type(one) in _TENSORS]
        self.versions: list[int] | None
        try:
            self.versions = [one._version for one in self.tensors]
        except RuntimeError:
            self.versions = None

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be among them, and comes back as it is."""
        for one in self.tensors:  # noqa: SIM110 - any() takes longer
            if one is tensor:
                return True
        return False

    def first_changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        now = [one._version for one in self.tensors]
        if now == self.versions:
            return None
        return next(index for index, then in enumerate(self.versions or ()) if now[index] != then)

    def end_forward(self) -> None:
        """Forward is over. If it changed a tensor in place, let go of all: one may be an output, which holds the region."""
        if self.first_changed() is not None:
            self.args, self.kwargs = None, {}
            self.tensors = [version_probe(one) for one in self.tensors]

    def restore(self) -> Call:
        """The arguments."""
        assert self.args is not None
        return self.args, self.kwargs, self.tensors, (), ()


class _Position(int):
    """Stands for the tensor with that index."""


class Inputs:
    """The arguments of one call. Tensors at any depth become saved tensors of the enclosing region, each once (rule 2).

    They are found in positional and keyword arguments, in containers that pytree knows, and in dataclasses; dataclasses and
    objects of registered classes are taken as their attributes if these hold all of their state. An object that occurs several
    times is one object in the recomputation, too. A container of Python's own that still holds what it held, and no tensor
    that comes back as another object, is passed as it is. One that the function has changed is passed, too, if the function
    finds it by another name as well, or if it holds only numbers and the like besides what is kept anyway: for the run it is
    filled with what it held at the call. Other containers are made anew, also most that the caller has changed after the
    call, even if the function reads them by another name. Other objects are kept as they are: a tensor inside one is
    not watched.
    """

    __slots__ = ("__weakref__", "args", "around", "captured", "changed", "containers", "enclosing", "generators",
                 "hooks_were_active", "indices", "kwargs", "lent", "owner", "packed", "passed", "place", "places", "probes",
                 "saved_before", "taken_apart", "versions")  # fmt: skip

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], enclosing: Saving | None = None) -> None:
        self.packed: list[Packed | torch.Tensor] | None = []
        # Where nobody watches what is saved, autograd would keep the tensor itself, and so does this.
        self.hooks_were_active = _hooks_are_active()
        self.probes: list[VersionProbe] = []
        self.versions: list[int] = []
        self.generators: list[torch.Generator] = []
        self.containers: list[Container] = []  # those that are kept, the ones inside of others first
        self.passed: list[PassedContainer] = []  # those that forward may change, while it runs
        self.changed: list[Container] = []  # those that forward has changed, and that are kept themselves
        self.lent: dict[int, torch.Tensor] = {}  # tensors in containers that the region around keeps in any case
        self.indices: dict[int, _Position] = {}
        self.captured: dict[int, Container] = {}
        self.taken_apart: list[list[Any]] = []  # what containers consist of, which a class may have made for this alone
        self.places: Places = []
        self.place: Any = None  # where the capture has got to
        self.enclosing, self.saved_before = enclosing, 0 if enclosing is None else enclosing.saved_count()
        around = getattr(enclosing, "inputs", None)  # a recomputation has none: what it was given is let go as it ends
        self.around = around if isinstance(around, Inputs) else None
        self.args = self._capture_all(args, itertools.count())
        self.kwargs = dict(zip(kwargs, self._capture_all(kwargs.values(), kwargs), strict=True))
        # Where tensors are saved, if it is a region: a recomputation brings none back that it would have to recompute.
        saved_there = hasattr(enclosing, "put_back") and any(type(one) is Packed for one in self.packed)
        self.owner: Any = enclosing if saved_there else None
        self.enclosing = self.around = self.place = None
        for each in (self.indices, self.captured, self.taken_apart):
            each.clear()  # identities are valid only while the arguments are alive
        if self.containers:
            earlier_calls.look_at_some()
            earlier_calls.add(weakref.ref(self))

    def _capture_all(self, values: Iterable[Any], names: Iterable[Any]) -> list[Any]:
        """Capture values that are found under these names, below the place where the capture is now."""
        here, captured = self.place, []
        for value, name in zip(values, names, strict=False):
            self.place = here, name
            captured.append(self._capture(value))
        return captured

    def _capture(self, value: Any) -> Any:
        kind = type(value)
        if kind in _TENSORS or (kind not in _ATOMS and isinstance(value, torch.Tensor)):
            return self._capture_tensor(value)
        if kind in _ATOMS:
            if kind is torch.Generator:
                self.generators.append(value)
            return value
        if id(value) in self.captured:
            return self.captured[id(value)]
        parts = flatten_once(value)
        if parts is None:
            return value
        self.taken_apart.append(parts.children)  # so that no identity is that of another object later
        children = self._capture_all(parts.children, itertools.count())
        container = self.captured[id(value)] = Container(value, children, parts.form)
        if self.around is not None and self.around.keeps_container(value):
            pairs = zip(children, parts.children, strict=True)
            self.lent.update((position, one) for position, one in pairs if type(position) is _Position)
        if container.original is not GONE and not isinstance(value, tuple):
            self.passed.append(PassedContainer(container, value, parts.children))
        if self._keeps(container):
            self.containers.append(container)
        return container

    def _capture_tensor(self, tensor: torch.Tensor) -> _Position:
        position = self.indices.get(id(tensor))
        if position is None:
            assert self.packed is not None
            position = self.indices[id(tensor)] = _Position(len(self.packed))
            if self.hooks_were_active or tensor.is_inference():
                self.packed.append(Packed(tensor))
                self.probes.append(version_probe(tensor))
            else:
                self.packed.append(tensor)
                self.probes.append(tensor)
            self.versions.append(self.probes[-1]._version)
            if self.enclosing is not None:
                count = self.enclosing.saved_count() - self.saved_before
                if count > (self.places[-1][1] if self.places else 0):  # parameters are not saved
                    self.places.append((self.place, count))
        return position

    def _original(self, child: Any) -> Any:
        """What a child was, as far as it is here without anything being unpacked or made; GONE otherwise."""
        if type(child) is _Position:
            if child in self.lent:
                return self.lent[child]
            packed = None if self.packed is None else self.packed[child]
            whole = packed.parameter if type(packed) is Packed else packed
            return GONE if whole is None else whole
        return child.original if type(child) is Container else child

    def _originals(self, container: Container) -> list[Any]:
        return [self._original(child) for child in container.children]

    def _keeps(self, container: Container) -> bool:
        return container.keep_if_unchanged(self._originals(container))

    def _keeps_itself(self, container: Container, value: Any) -> bool:
        others = [self._original(child) for child in container.children if type(child) is not Container]
        return container.keep_itself(value, _ATOMS, others)

    def keeps_container(self, value: Any) -> bool:
        """Whether a container is among them, and holds what it held, so that it is kept as it is."""
        return any(one.original is value and one.original_with(self._originals(one)) is value for one in self.containers)

    def drop_changed_containers(self) -> bool:
        """Let go of containers that hold something else by now; returns whether others are left.

        They will be made anew, except those that hold only numbers and the like besides, which can be filled again. While the
        function runs for the first time, it may change them and change them back.
        """
        if self.passed:
            return True
        if self.lent and self.first_changed() is not None:
            self.lent = {}  # one may be an output, which holds the region
        self.changed = [one for one in self.changed if one.other_name and self._keeps_itself(one, one.other_name.find())]
        containers, self.containers = self.containers, []
        for one in containers:
            value = one.original
            if self._keeps(one):
                self.containers.append(one)
            elif one.other_name is None and self._keeps_itself(one, value):
                self.changed.append(one)
        if self.lent:
            kept = {child for one in (*self.containers, *self.changed) for child in one.children if type(child) is _Position}
            self.lent = {position: one for position, one in self.lent.items() if position in kept}
        return bool(self.containers or self.changed)

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be among them, and comes back as it is. That takes too long to find out here."""
        return False

    def first_changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        for index, then in enumerate(self.versions):
            if self.probes[index]._version != then:
                return index
        return None

    def find_other_names(self, function: Any) -> None:
        """Forward is over: see by which other names the function finds the containers that it has changed."""
        changed = [passed for passed in self.passed if passed.has_changed()]
        self.passed = []
        for passed in changed:
            others = [one for one in (*self.args, *self.kwargs.values()) if type(one) not in (_Position, Container)]
            passed.container.other_name = find_other_name((function, *others), passed.value)
            if passed.container.other_name is None and self._keeps_itself(passed.container, passed.value):
                self.changed.append(passed.container)
        if self.changed:
            earlier_calls.add(weakref.ref(self))

    def end_forward(self) -> None:
        """Forward is over. If it changed a tensor in place, let go of all: one may be an output, which holds the region."""
        self.drop_changed_containers()
        if self.first_changed() is not None:
            self.args, self.kwargs, self.packed, self.owner = [], {}, None, None
            self.containers, self.changed, self.lent = [], [], {}
            self.probes = [version_probe(one) if isinstance(one, torch.Tensor) else one for one in self.probes]

    def _unpack_hidden(self, packed: Packed, version: int) -> torch.Tensor:
        """Unpack a tensor that was saved. The user's modes see how it is recomputed, but not how autograd hands it over."""
        if packed.saved is None:
            return packed.unpack(version)
        slot = packed.saved.data
        kept = self.owner.put_back(slot, self.owner.unpack(slot))
        with disable_dispatch_modes():
            tensor = packed.unpack(version)
        del kept
        return tensor

    def restore(self) -> Call:
        """The arguments. Containers hold what they held at the call, whatever has happened to them since."""
        assert self.packed is not None
        if self.containers or self.changed:
            self.drop_changed_containers()
        hides = self.owner is not None and hides_from_modes()
        tensors = [  # without a call of our own for each, which would be one more frame of Python a level of regions
            packed
            if isinstance(packed, torch.Tensor)
            else self._unpack_hidden(packed, version)
            if hides
            else packed.unpack(version)
            for packed, version in zip(self.packed, self.versions, strict=True)
        ]
        for position, one in self.lent.items():
            tensors[position] = one
        made: dict[int, Any] = {}
        reused: list[ReusedContainer] = []
        args = tuple(_rebuild(one, tensors, made, reused) for one in self.args)
        kwargs = {name: _rebuild(one, tensors, made, reused) for name, one in self.kwargs.items()}
        filled = [one for one in reused if one[0].other_name is not None]
        return args, kwargs, tensors, [one for one in reused if one[0].other_name is None], filled


def states_to_fill(filled: Iterable[ReusedContainer]) -> list[tuple[Contents, Any]]:
    """What containers are to hold while the function runs, as states that a recomputation sets and puts back."""
    return [(Contents(itself), Parts(children, container.form)) for container, itself, children in filled]


def _rebuild(value: Any, tensors: list[torch.Tensor], made: dict[int, Any], reused: list[ReusedContainer]) -> Any:
    """What ``value`` stands for, with these tensors in their places; ``made`` has the containers that are done."""
    if type(value) is _Position:
        return tensors[value]
    if type(value) is not Container:
        return value
    if id(value) not in made:
        children = [_rebuild(one, tensors, made, reused) for one in value.children]
        original = value.original_with(children)
        if original is GONE and value.other_name is not None:
            original = value.other_name.find()
        if original is GONE or any(original is one for _, one, _ in reused):  # by now two names may lead to one
            made[id(value)] = unflatten(children, value.form)
        else:
            made[id(value)] = original
            reused.append((value, original, children))
    return made[id(value)]
