"""What a checkpointed slice was called with: copies on the offload device until the slice is run again."""

from __future__ import annotations

import copyreg
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdRef

from impls.graph.device_copies import replica
from impls.graph.save_on_device import saved_on
from impls.leaf_arguments import hooks_are_active
from impls.offload.containers import ATOMS, flatten
from impls.offload.loaded_copies import Nowhere, attach_to_nothing, tangent_of
from impls.offload.saved_tensors import storage_number
from impls.offload.transfers import Route
from impls.tensors.attributes import attributes, with_attributes
from impls.tensors.packed import Packed
from impls.torch_private import keystr, set_version_counters, tree_flatten_with_path, tree_leaves

_NOT_DATA = (nn.Module, type, ModuleType)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, deque)  # classes derived from these are unknown to pytree


class _ArgumentHooks(saved_on):
    """A copy that was moved is brought back as it is, since the node that asks for a recomputation did not save it."""

    def _unpack(self, saved: Any) -> torch.Tensor:
        return super()._unpack(saved) if saved.is_alias else self.unpack_hook(saved.restore())


class _Copy:
    """A tensor at the boundary between two slices, at the value and version that it had there."""

    __slots__ = ("is_leaf", "packed", "requires_grad", "version")

    def __init__(self, tensor: torch.Tensor, route: Route) -> None:
        self.requires_grad, self.is_leaf = tensor.requires_grad, tensor.is_leaf
        self.version = 0 if tensor.is_inference() else tensor._version
        value = tensor.detach()
        # The slice may change it in place. Hooks of the user decide where it lives, but may not copy it.
        if hooks_are_active() or value.device == route.offload_device:
            value = replica(value)
        kind = torch.Tensor if isinstance(tensor, torch.nn.Parameter) else type(tensor)  # parameters are kept where they are
        value = with_attributes(value, kind, attributes(tensor))
        pin_memory = route.copy_streams is not None
        with nullcontext() if hooks_are_active() else _ArgumentHooks(route.offload_device, pin_memory=pin_memory):
            self.packed = Packed(value)

    def restore(self, nowhere: Nowhere) -> torch.Tensor:
        kept = self.packed.unpack()
        value = kept.detach()
        if self.requires_grad or not value.is_inference():
            value = replica(value)  # it may be needed again, and this run may change it
            set_version_counters((value,), (self.version,))
            if self.requires_grad and self.is_leaf:
                value.requires_grad_().register_hook(nowhere.take)
            else:
                value = attach_to_nothing(value, self.requires_grad, nowhere)
        return with_attributes(value, type(kept), attributes(kept))


class Boundary:
    """The arguments of one run of a slice. Tensors that pytree reaches are copied, each once; other values are kept.

    Containers are fresh in each recomputation, so nothing that happened to them since is seen; one that is there several
    times is one again. An object that pytree does not know is the same in each: what it holds must not have changed, and
    nothing may have been added. Not watched: objects inside such an object. An iterator, such as a file, raises RuntimeError.
    """

    def __init__(self, title: str, args: Sequence[Any], kwargs: dict[str, Any], route: Route) -> None:
        tensors, self.whole = flatten((tuple(args), kwargs))
        for thing in self.whole.objects():
            if isinstance(thing, Iterator):
                raise RuntimeError(
                    f"{title} was given a {type(thing).__name__}, an iterator, which forward uses up, so that the slice cannot "
                    "run again with it in backward. Pass a list, or checkpoint_activation=False"
                )
        self.copies = [_Copy(tensor, route) for tensor in tensors]
        self.objects = [(thing, _contents(thing)) for thing in self.whole.objects() if _is_watched(thing)]
        self.has_tangents = any(tangent_of(tensor) is not None for tensor in tensors)

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators among the arguments, whose states a recomputation replays."""
        return tuple(thing for thing in self.whole.things if isinstance(thing, torch.Generator))

    def restore(self, nowhere: Nowhere) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments anew, whose gradients go nowhere; RuntimeError if an object among them is not as it was."""
        for thing, before in self.objects:
            place = _first_change(before, _contents(thing))
            if place is not None:
                raise RuntimeError(
                    f"{nowhere.title} was given a {type(thing).__name__} whose {place} has changed since, so backward "
                    "cannot run it again with what it got. Return a new object instead, or make its class known by "
                    "torch.utils._pytree.register_pytree_node, or pass checkpoint_activation=False"
                )
        tensors = [copy.restore(nowhere) for copy in self.copies]
        args, kwargs = self.whole.build(tensors)
        return args, kwargs


class SharedInputs:
    """The tensors among a slice's arguments that share memory, as views do; a recomputation gets them apart."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        groups: dict[int, list[torch.Tensor]] = {}
        for tensor in flatten((tuple(args), kwargs))[0]:
            number = storage_number(tensor)
            if number is not None and not tensor.is_inference():
                groups.setdefault(number, []).append(tensor)
        self.versions = [(tensor, tensor._version) for group in groups.values() if len(group) > 1 for tensor in group]

    def refuse_changes(self, title: str) -> None:
        """Raise RuntimeError if one of them was changed in place."""
        if any(tensor._version != version for tensor, version in self.versions):
            raise RuntimeError(
                f"{title} changed an input in place that shares memory with another of its inputs, as a view does; when it "
                "runs again in backward, each has memory of its own. Clone one before, or pass checkpoint_activation=False"
            )


@contextmanager
def no_backward_below(title: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
    """A backward that goes on through one of the arguments to what is before them raises RuntimeError.

    A recomputation gets arguments with nothing before them, so such a backward would give other gradients there.
    """
    here = threading.get_ident()

    def refuse(grads: Any) -> None:
        if threading.get_ident() != here and not on_threads_of_their_own:
            return  # another thread goes through what this call was given, too
        raise RuntimeError(
            f"{title} runs backward in forward, and that goes through what it was given to what is before it, where it leads "
            "nowhere when the slice runs again. Put both into one slice, as one nn.Sequential, or pass "
            "checkpoint_activation=False"
        )

    leaves = tree_leaves((args, kwargs))
    on_threads_of_their_own = any(leaf.device.type != "cpu" for leaf in leaves if isinstance(leaf, torch.Tensor))
    handles = [node.register_prehook(refuse) for node in dict.fromkeys(nodes_of(leaves))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def nodes_of(values: Any) -> tuple[Any, ...]:
    """The nodes that the tensors in a value came from."""
    return tuple(leaf.grad_fn for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None)


def _is_watched(thing: Any) -> bool:
    return type(thing) not in ATOMS and not isinstance(thing, _NOT_DATA)


def _contents(thing: Any) -> dict[str, Any]:
    """Tensors, with their versions, and numbers and the like that an object holds, by where they are."""
    found: dict[str, Any] = {}
    for name, attribute in {**_attributes(thing), "": _items(thing)}.items():
        for path, leaf in tree_flatten_with_path(attribute)[0]:
            if isinstance(leaf, torch.Tensor):
                found[f"{name}{keystr(path)}"] = "tensor", WeakIdRef(leaf), 0 if leaf.is_inference() else leaf._version
            elif leaf is None or type(leaf) in ATOMS:
                found[f"{name}{keystr(path)}"] = "value", leaf  # nan is not equal to itself, unless it is the same object
    return found


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an object by name, those in slots where they are set."""
    slots: list[str] = copyreg._slotnames(type(thing))  # type: ignore[attr-defined]
    return {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots if hasattr(thing, name)}}


def _items(thing: Any) -> Any:
    """What is in an object of a class that is derived from one of Python's containers."""
    for kind in _CONTAINERS:
        if isinstance(thing, kind):
            return dict(kind.items(thing)) if kind is dict else [*kind.__iter__(thing)]
    return ()


def _first_change(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Where an object holds something else than before, or something that was not there."""
    return next((place for place in {**before, **now} if place not in before or before[place] != now.get(place)), None)
