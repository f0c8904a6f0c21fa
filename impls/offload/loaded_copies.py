"""Loaded copies in the graph: what gradients a copy gets arrive at the parameter that it was made from.

Two nodes stand between a copy and its parameter. The one on the computing device sends the gradient off; the one on the
parameter's side waits for it. The engine runs them on different threads, so the device need not stop for the host. A
gradient that is undefined stays so: a parameter without a gradient is not one with a gradient of zeros. Tangents of
forward-mode differentiation go the other way.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad

from impls.graph.streams import CopyStreams
from impls.offload.transfers import Route
from impls.tensors.attributes import attributes, with_attributes
from impls.torch_private import current_graph_task_id, has_storage, queue_callback


class _Mail:
    """Gradients on their way, by the backward that they belong to."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: dict[int, Any] = {}


class Nowhere:
    """Where gradients go while a slice runs again. Once that is over, nobody may ask for any: they would be lost."""

    __slots__ = ("over", "title")

    def __init__(self, title: str) -> None:
        self.title, self.over = title, False

    def take(self, grad: torch.Tensor | None = None) -> None:
        """Drop a gradient; RuntimeError once the run is over."""
        if self.over:
            raise RuntimeError(
                f"{self.title}: backward goes through a tensor that this slice made when it ran again in an earlier backward, "
                "and that a hook or an attribute of a module has kept; it leads to no parameter. Take the tensor that forward "
                "made, before any backward, or pass checkpoint_activation=False"
            )


class _Values:
    """Hides a tensor from autograd, which would take it for an input."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


# The engine runs the node with the highest number first, and those of leaves have the highest there is.
_BEFORE_OTHERS = 2**64 - 2


class Delivery:
    """When gradients of a slice's copies get to the parameters: as soon as they would without copies, unless it runs again.

    Hooks of modules find them in ``.grad`` then, and hooks of parameters have an order. A slice that runs again does that
    before any of its parameters gets a gradient, since a hook may step that: until its ``regions`` have run again in a
    backward, gradients come after everything else of the slice.
    """

    def __init__(self, regions: int) -> None:
        self.regions = regions
        self.nodes: list[_Node] = []
        self.by_task: weakref.WeakValueDictionary[int, _RunAgain] = weakref.WeakValueDictionary()
        self.hastening = 0  # backwards in which all regions have run again: one may begin in a hook of another

    def add(self, alias: torch.Tensor) -> None:
        """An alias that ``attach`` has made with a graph: the node that made it, and the one on the parameter's side.

        The latter is the first to run, or another copy's, whose gradient came later, would come before it.
        """
        attached: Any = alias.grad_fn
        arrived = attached.next_functions[0][0]
        nodes = (
            _Node(attached, attached._sequence_nr(), _BEFORE_OTHERS),
            _Node(arrived, arrived._sequence_nr(), _BEFORE_OTHERS + 1),
        )
        if self.regions:
            self.nodes += nodes
        else:
            for one in nodes:
                one.node._set_sequence_nr(one.soon)

    def note(self, region: int) -> None:
        """A region has run again in the backward that is under way, if any is."""
        task = current_graph_task_id()
        if task == -1:
            return
        again = self.by_task.get(task)
        if again is None:
            again = self.by_task[task] = _RunAgain(self)
            queue_callback(again)
        again.note(region)

    def hasten(self, backwards: int) -> None:
        """So many backwards more, or fewer, in which the engine is to run the nodes before others."""
        self.hastening += backwards
        for one in self.nodes:
            one.node._set_sequence_nr(one.soon if self.hastening else one.late)


class _Node(NamedTuple):
    """A node, its own number, and the one by which the engine runs it before others."""

    node: Any
    late: int
    soon: int


class _RunAgain:
    """The regions of a slice that have run again in a backward, which owns this as its final callback."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery, self.regions, self.is_hastened = delivery, set[int](), False

    def note(self, region: int) -> None:
        """One has; with the last, gradients are delivered at once until the backward ends."""
        self.regions.add(region)
        if len(self.regions) == self.delivery.regions and not self.is_hastened:
            self.is_hastened = True
            self.delivery.hasten(1)

    def __call__(self) -> None:
        if self.is_hastened:
            self.is_hastened = False
            self.delivery.hasten(-1)

    def __del__(self) -> None:
        self()


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, mail: _Mail) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.mail = mail
        return parameter.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        event = ctx.mail.events.pop(current_graph_task_id(), None)
        if event is not None:
            event.synchronize()
        return grads[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0]


class _Send(torch.autograd.Function):
    """A gradient's copy on the host, made on a side stream."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, copy_streams: CopyStreams, mail: _Mail) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.device = grad.device
        copy, event = copy_streams.fetch(grad.detach())
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            event.synchronize()  # the engine is going to look for nan before anybody waits for the copy
        mail.events[current_graph_task_id()] = event
        return copy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None if grads[0] is None else grads[0].to(ctx.device), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].to("cpu")


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, near: torch.Tensor, values: _Values, copy_streams: CopyStreams | None, mail: _Mail | Nowhere
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.device, ctx.target, ctx.copy_streams, ctx.mail = near.device, values.tensor.device, copy_streams, mail
        return values.tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        if isinstance(ctx.mail, Nowhere):
            ctx.mail.take()
            return None, None, None, None
        if grad is None:
            return None, None, None, None
        # Several gradients at once (is_grads_batched) are one tensor without a storage that could be copied from.
        if ctx.copy_streams is None or grad.layout is not torch.strided or not has_storage(grad):
            return grad.to(ctx.device), None, None, None
        return _Send.apply(grad, ctx.copy_streams, ctx.mail), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].to(ctx.target)


def attach(values: torch.Tensor, parameter: torch.Tensor, route: Route, delivery: Delivery) -> torch.Tensor:
    """An alias of ``values`` whose gradient goes to ``parameter``; without a graph if that one requires none.

    It has a graph under no_grad too, as a parameter still requires grad there. It has the parameter's tangent.
    """
    if not parameter.requires_grad:
        tangent = tangent_of(parameter)
        alias = values.detach() if tangent is None else forward_ad.make_dual(values.detach(), tangent.to(values.device))
        return as_original(alias, parameter)
    mail = _Mail()
    side = route.copy_streams if parameter.device == route.offload_device else None
    with torch.enable_grad():
        alias = _Attach.apply(_Arrive.apply(parameter, mail), _Values(values), side, mail)
    delivery.add(alias)
    return as_original(alias, parameter)


def as_original(alias: Any, original: torch.Tensor) -> torch.Tensor:
    """The alias with the attributes that Python keeps with the original, as a parameter if that is one."""
    kind = type(alias)
    if isinstance(original, nn.Parameter):
        alias._is_param = True  # which isinstance asks for, but not for a class that is derived from nn.Parameter
        kind = kind if type(original) is nn.Parameter else type(original)
    return with_attributes(alias, kind, attributes(original))


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent that a tensor has at the present level of forward-mode differentiation."""
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent
    return tangent


def attach_to_nothing(values: torch.Tensor, requires_grad: bool, nowhere: Nowhere) -> torch.Tensor:
    """An alias that looks like an attached one and whose gradient goes nowhere, for a recomputation."""
    if not requires_grad:
        return values.detach()
    return _Attach.apply(torch.empty(0, requires_grad=True), _Values(values), None, nowhere)
