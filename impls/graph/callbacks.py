"""What is called when a backward has ended."""

from __future__ import annotations

from collections.abc import Callable

from impls import torch_private


def queue_callback(callback: Callable[[], None]) -> None:
    """Have ``callback`` called when the backward that runs on this thread has ended, after those that were queued before it.

    It is called once, on the thread that called the backward, after gradients have been accumulated; not if the backward
    raises. Of nested backwards the innermost is meant. A callback may queue another one.

    Raises TypeError for what is not callable, RuntimeError where no backward runs: call it in a hook, or in the backward of
    a custom Function. Source: ``torch.autograd.graph.queue_callback`` of torch 2.15; this one is for every release.
    """
    if not callable(callback):
        raise TypeError(f"callback is {callback!r}; it must be callable without arguments")
    if torch_private.current_graph_task_id() == -1:
        raise RuntimeError("queue_callback: no backward runs on this thread. Call it in a hook, or in a Function's backward")
    torch_private.queue_callback(callback)
