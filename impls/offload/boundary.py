"""What a checkpointed slice was called with: copies on the offload device until the slice is run again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from impls.graph.host import saved_on
from impls.graph.replicas import replica
from impls.leaf_arguments import hooks_are_active
from impls.offload.attachment import attach_to_nothing, tangent_of
from impls.offload.containers import taken_apart
from impls.offload.route import Route
from impls.tensors.attributes import attributes, dressed
from impls.tensors.packed import Packed


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
        value = dressed(value, kind, attributes(tensor))
        own = nullcontext() if hooks_are_active() else saved_on(route.offload_device, pin_memory=route.lane is not None)
        with own:
            self.packed = Packed(value)

    def restore(self) -> torch.Tensor:
        kept = self.packed.unpack()
        value = kept.detach()
        if self.requires_grad or not value.is_inference():
            value = replica(value)  # it may be needed again, and this run may change it
            torch._C._autograd._unsafe_set_version_counter((value,), (self.version,))
            value = (
                value.requires_grad_() if self.requires_grad and self.is_leaf else attach_to_nothing(value, self.requires_grad)
            )
        return dressed(value, type(kept), attributes(kept))


class Boundary:
    """The arguments of one run of a slice. Tensors that pytree reaches are copied, each once; other values are kept.

    Containers are fresh in each recomputation, so nothing that happened to them since is seen; one that is there several
    times is one again. Not watched: tensors inside objects that pytree does not know.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], route: Route) -> None:
        tensors, self.whole = taken_apart((tuple(args), kwargs))
        self.copies = [_Copy(tensor, route) for tensor in tensors]
        self.has_tangents = any(tangent_of(tensor) is not None for tensor in tensors)

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators among the arguments, whose states a recomputation replays."""
        return tuple(thing for thing in self.whole.things if isinstance(thing, torch.Generator))

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments anew."""
        tensors = [copy.restore() for copy in self.copies]
        args, kwargs = self.whole.of(tensors)
        return args, kwargs
