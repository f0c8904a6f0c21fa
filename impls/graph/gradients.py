"""One hook for the gradients of several tensors, called once in each backward.

What a backward has brought so far is owned by the engine's task as one of its final callbacks and seen from here through
a weak reference: nested and concurrent passes are kept apart, and one that raises leaves nothing behind.

A node keeps its hooks in a place that Python's garbage collector cannot see, so a hook that owned a node, or a leaf,
would keep it for ever. Which tensors take part is therefore asked of those that are still alive; of the others it is
known when their gradients arrive or when the backward ends.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch.utils.hooks import RemovableHandle

from impls.graph.edges import node_of
from impls.torch_private import current_autograd_node, current_graph_task_id, queue_callback, will_engine_execute_node


class _WatchedTensor:
    """A tensor and where its hook is: the node of a tensor changes when it is changed in place, the hook stays."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.leaf, self.version = weakref.ref(tensor), tensor.is_leaf, tensor._version

    def will_not_run(self) -> bool:
        """Whether it is sure that the hook will not be called in the backward that runs on this thread."""
        tensor = self.tensor()
        if tensor is None or not tensor.requires_grad or tensor.is_leaf != self.leaf:
            return False
        if not self.leaf and tensor._version != self.version:
            return False
        node = node_of(tensor)
        if node is current_autograd_node():
            return False  # the engine does not count the node that a backward begins with
        try:
            return not will_engine_execute_node(node)
        except RuntimeError:  # the engine does not answer for leaves while torch.autograd.grad runs
            if self.leaf:
                return False
            raise


class _BackwardPass:
    """One backward: what has arrived. Callable, so that the engine's task can own it as its final callback."""

    def __init__(self, registration: _Registration) -> None:
        self.registration: _Registration | None = registration
        self.grads: list[torch.Tensor | None] = [None] * len(registration.watched)
        self.awaited = {index for index, each in enumerate(registration.watched) if each and not each.will_not_run()}

    def arrived(self, index: int, grad: torch.Tensor | None) -> list[torch.Tensor | None] | None:
        """All gradients, if this was the last of them."""
        self.grads[index] = grad
        self.awaited.discard(index)
        return None if self.awaited else self.finish()

    def finish(self) -> list[torch.Tensor | None] | None:
        self.registration, grads, self.grads = None, self.grads, []
        return grads

    def __call__(self) -> None:
        registration = self.registration
        if registration is not None and not registration.any_mode:
            registration.call(self.finish())


class _Registration:
    """What the hooks of one call share. It owns the function, and none of the tensors or nodes."""

    def __init__(self, tensors: Sequence[torch.Tensor], fn: Callable[[Any], None], any_mode: bool) -> None:
        self.watched = [_WatchedTensor(tensor) if tensor.requires_grad else None for tensor in tensors]
        self.fn: Callable[[Any], None] | None = fn
        self.any_mode = any_mode
        self.passes: weakref.WeakValueDictionary[int, _BackwardPass] = weakref.WeakValueDictionary()
        self.lock = threading.Lock()

    def hook(self, index: int, grad: torch.Tensor | None) -> None:
        task = current_graph_task_id()
        with self.lock:
            current = self.passes.get(task)
            if current is None:
                current = self.passes[task] = _BackwardPass(self)
                queue_callback(current)
            if current.registration is None:  # this backward has had its call
                return
            if self.any_mode:
                result: Any = grad
                if grad is not None:
                    current.finish()
            else:
                result = current.arrived(index, grad)
        if result is not None:
            self.call(result)

    def call(self, result: Any) -> None:
        fn = self.fn
        if fn is not None:
            fn(result)


class _Handle(RemovableHandle):
    """Removes the hooks of one registration; a context manager that does so at its end.

    ``copy.copy`` gives another handle of the same hooks. A pickled or deep-copied one belongs to no graph: it has nothing
    to remove, and no state.
    """

    def __init__(self, registration: _Registration | None = None, handles: tuple[RemovableHandle, ...] = ()) -> None:
        self.registration, self.handles = registration, handles

    def remove(self) -> None:
        if self.registration is not None:
            self.registration.fn = None  # let go, as handles may be kept
        for handle in self.handles:
            handle.remove()

    def __copy__(self) -> _Handle:
        return _Handle(self.registration, self.handles)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:
        return _Handle()

    def __reduce__(self) -> tuple[type[_Handle], tuple[()]]:
        return _Handle, ()


def register_multi_grad_hook(
    tensors: Iterable[torch.Tensor],
    fn: Callable[[list[torch.Tensor | None]], None] | Callable[[torch.Tensor], None],
    *,
    mode: Literal["all", "any"] = "all",
) -> RemovableHandle:
    """Have ``fn`` called once in each backward that any of the tensors takes part in; returns a handle to remove it.

    With mode ``"all"``, ``fn`` gets a list of all the gradients, once those that this backward computes are there; None
    stands for a tensor that does not take part, or to which no gradient flows. With ``"any"``, it gets the gradient that
    is there first. Gradients are as tensor hooks see them: of a leaf before it is accumulated, and what hooks
    registered later make of it is not seen. ``fn`` must not change what it gets; an error that it raises ends the backward.

    Where a tensor that takes no part is dead, or was changed in place since, or is a leaf while ``torch.autograd.grad``
    runs, ``fn`` is called at the end of the backward instead of with the last gradient.

    Raises TypeError when ``tensors`` is no iterable of tensors or ``fn`` is not callable; ValueError for an unknown mode
    and when no tensor requires grad. Source: ``torch.autograd.graph.register_multi_grad_hook``.
    """
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise TypeError(f"tensors is a {type(tensors).__name__}; it must be an iterable of tensors")
    tensors = tuple(tensors)
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors[{index}] is a {type(tensor).__name__}; it must be a torch.Tensor")
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; it must be callable with one argument")
    if mode not in ("all", "any"):
        raise ValueError(f"mode is {mode!r}; it must be 'all' or 'any'")
    if not any(tensor.requires_grad for tensor in tensors):
        raise ValueError(f"tensors: none of the {len(tensors)} requires grad, so no gradient would ever arrive")
    registration = _Registration(tensors, fn, mode == "any")
    hooks = [
        tensor.register_hook(functools.partial(registration.hook, index))
        for index, tensor in enumerate(tensors)
        if tensor.requires_grad
    ]
    return _Handle(registration, tuple(hooks))
