"""What the stages of a chain cost, found by running each of them alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode

from impls.schedules.chain import Stage
from impls.schedules.live_bytes import LiveStorages, storages
from impls.schedules.validation import require_functions, require_int
from impls.state import accelerators, random_numbers
from impls.torch_private import FakeTensor, tree_leaves, tree_map_only

Function = Callable[[Any], Any]


def measure(functions: Any, example: Any, *, repeats: int = 1) -> tuple[Stage, ...]:
    """Bytes of each stage of a chain, and seconds, when its first gets ``example`` and each other the value before.

    Each stage runs forward and backward ``2 + repeats`` times; of several times the least counts. On fake or meta tensors
    nothing is computed and times are FLOPs of matrix products and convolutions, as torch counts them. Gradients are left
    alone, random generators and buffers of modules are put back; whatever else the functions change stays changed.

    Bytes are those of storages that operators make: no workspace inside a kernel, no rounding by an allocator. Gradients of
    a stage's parameters count as temporary while its backward runs; where stages share parameters, the sum that autograd
    makes of their gradients does not. Two outputs that share a storage, or an output that is
    a view of the input, count in full, so sizes are upper bounds there.

    Raises TypeError when functions is no chain, and for a module whose parameters are not fake, meta or real as the example
    is: copies of real ones would be counted, for one; ValueError for a stage that changes its input in place, which could
    not be stored. Not checked: that a stage costs with other inputs what it costs with this one.
    """
    chain = require_functions(functions)
    require_int("repeats", repeats, least=1)
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, torch.Tensor)]
    mode = next((leaf.fake_mode for leaf in tensors if isinstance(leaf, FakeTensor)), nullcontext())
    clock = _seconds
    if not isinstance(mode, nullcontext) or any(leaf.is_meta for leaf in tensors):
        clock = _flops
    if tensors:
        kinds = {_kind(leaf) for leaf in tensors}
        _require_kind(chain, next(kind for kind in ("fake", "meta", "real") if kind in kinds))
    stages, value = [], example
    with mode, _undisturbed(chain), torch.enable_grad():
        for index, function in enumerate(chain):
            sizes = _sizes(function, value, index)
            times = []
            for _ in range(repeats):
                forward, backward, output = _times(function, value, clock)
                times.append((forward, backward))
            stages.append(Stage(forward=min(t for t, _ in times), backward=min(t for _, t in times), **sizes))
            value = _leaf(output)
    return tuple(stages)


def _kind(tensor: torch.Tensor) -> str:
    return "fake" if isinstance(tensor, FakeTensor) else "meta" if tensor.is_meta else "real"


def _require_kind(chain: tuple[Function, ...], wanted: str) -> None:
    for index, function in enumerate(chain):
        if isinstance(function, nn.Module):
            for name, tensor in (*function.named_parameters(), *function.named_buffers()):
                if _kind(tensor) != wanted:
                    raise TypeError(
                        f"functions[{index}] has a {name} that is {_kind(tensor)}, and example is {wanted}; both must be real, "
                        "both on the meta device, or both made under one FakeTensorMode"
                    )


def _sizes(function: Function, value: Any, index: int) -> dict[str, Any]:
    """The sizes of a stage, by name of the field."""
    passing, early = _passing(function, value, index)
    live = LiveStorages()
    given = _copy(value)
    with _redrawn(), live:
        result = function(given)
    keeping = live.peak
    output = sum(storage.nbytes() for storage in storages(result).values())
    gradient = sum(tensor.numel() * tensor.itemsize for tensor in _differentiable(result))
    alive = live.alive
    saved = alive + sum(storage.nbytes() for key, storage in storages(result).items() if key not in live.sizes)
    of_input, of_output = _weak(given), _weak(result)
    sink = _sink(result)
    del given, result
    needs_input, needs_output = _alive(of_input), _alive(of_output)
    live.peak = live.alive
    leaves = _leaves(sink)
    with live:
        _differentiate(sink, leaves)
    own = saved if needs_output else saved - output
    return {
        "output": output,
        "saved": saved,
        "gradient": gradient,
        "keeping_extra": max(0, keeping - saved),
        "passing_extra": max(0, passing - output),
        "backward_extra": max(0, live.peak - gradient - own),
        "needs_output": needs_output,
        "needs_input": needs_input,
        "stops_early": early and not needs_output and saved == output,
    }


def _passing(function: Function, value: Any, index: int) -> tuple[int, bool]:
    """The peak of a forward that drops what it saves, and whether it saves all of that before it makes anything."""
    live = LiveStorages()
    made: list[int] = []
    given = _copy(value)
    versions = [tensor._version for tensor in tree_leaves(given) if isinstance(tensor, torch.Tensor)]
    drop = torch.autograd.graph.saved_tensors_hooks(lambda _: made.append(live.made), lambda _: _never())
    with _redrawn(), drop, live:
        function(given)
    if versions != [tensor._version for tensor in tree_leaves(given) if isinstance(tensor, torch.Tensor)]:
        raise ValueError(
            f"functions[{index}] changes its input in place, so that the input cannot be stored for a recomputation; "
            "make one stage of it and the function before it, or let it work on a copy"
        )
    return live.peak, bool(made) and made[-1] == 0


def _never() -> torch.Tensor:
    raise AssertionError("nothing differentiates a forward that dropped what it saved")


def _times(function: Function, value: Any, clock: Callable[[Function, Any], tuple[float, Any]]) -> tuple[float, float, Any]:
    """The time of forward and of backward, and the output."""
    with _redrawn():
        forward, result = clock(function, _leaf(value))
    sink = _sink(result)
    leaves = _leaves(sink)
    backward, _ = clock(lambda sink: _differentiate(sink, leaves), sink)
    return forward, backward, result


def _seconds(function: Function, argument: Any) -> tuple[float, Any]:
    _synchronise()
    begun = time.perf_counter()
    result = function(argument)
    _synchronise()
    return time.perf_counter() - begun, result


def _synchronise() -> None:
    module = accelerators.initialized_module()
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


def _flops(function: Function, argument: Any) -> tuple[float, Any]:
    with FlopCounterMode(display=False) as counter:
        result = function(argument)
    return counter.get_total_flops(), result


class _Sink(torch.autograd.Function):
    """Ends a graph without holding its outputs; their gradients are made when backward starts."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.outputs = [(output.shape, output.dtype, output.device) for output in outputs]
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return tuple(torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.outputs)


def _sink(result: Any) -> torch.Tensor:
    return _Sink.apply(*_differentiable(result))


def _differentiable(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _leaves(sink: torch.Tensor) -> list[torch.Tensor]:
    """The leaves of a graph that get a gradient, parameters that the function finds by itself among them."""
    leaves: list[torch.Tensor] = []
    seen: set[Any] = set()
    pending: list[Any] = [sink.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaves += [node.variable] if hasattr(node, "variable") else []
            pending += [above for above, _ in node.next_functions]
    return leaves


def _differentiate(sink: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Gradients of the leaves, given to nobody."""
    if leaves:
        torch.autograd.grad(sink, leaves, torch.empty(0), allow_unused=True)


def _leaf(value: Any) -> Any:
    """The value with tensors that are leaves and require grad where it does; they share its storages."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), value)


def _copy(value: Any) -> Any:
    """The same in storages of its own; not leaves, which could not be changed in place, and which the graph would hold."""
    return tree_map_only(torch.Tensor, torch.clone, _leaf(value))


def _weak(value: Any) -> list[StorageWeakRef]:
    return [StorageWeakRef(storage) for storage in storages(value).values()]


def _alive(weak: list[StorageWeakRef]) -> bool:
    return not all(one.expired() for one in weak)


@contextmanager
def _redrawn() -> Iterator[None]:
    """Random generators as they are now, again afterwards: every run of a stage draws the same."""
    states = random_numbers.capture_states()
    try:
        yield
    finally:
        random_numbers.set_states(states)


@contextmanager
def _undisturbed(chain: tuple[Function, ...]) -> Iterator[None]:
    """Buffers of the modules in the chain as they are now, again afterwards."""
    modules = [module for function in chain if isinstance(function, nn.Module) for module in function.modules()]
    before = [(module, dict(module._buffers)) for module in modules]
    copies = [(buffer, buffer.clone()) for _, buffers in before for buffer in buffers.values() if buffer is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, buffers in before:
                module._buffers.update(buffers)
            for buffer, copy in copies:
                buffer.copy_(copy)  # batch_norm writes its statistics without a new version, so all are written
