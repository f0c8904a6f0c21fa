"""Operators of the simulated device that are not simply the CPU's: copies, pinned memory, recurrent cells, autocast."""

from __future__ import annotations

import functools
from typing import Any

import torch

from conformance.simulated_device.kernels import COO, NAME, assemble, lay, memory_of, parts, raw_of, run
from conformance.simulated_device.memory import bring, fetch, operated
from conformance.simulated_device.queues import Below, current, host_needs

_aten = torch.ops.aten


def _is_sim(tensor: torch.Tensor) -> bool:
    return tensor.device.type == NAME


def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The copy between dense tensors, at least one of them on the device."""
    if _is_sim(self) and _is_sim(source):
        return run(_aten.copy_.default, self, source)
    with Below():
        if _is_sim(self):
            bring(raw_of(self), memory_of(self), source.detach())
        else:
            fetch(self.detach(), raw_of(source), memory_of(source))
        if not non_blocking:
            host_needs(current().mark())
    return self


def _copy_sparse_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if self.layout is not source.layout:
        raise RuntimeError(f"source is {source.layout}; what is copied into a {self.layout} tensor has the same layout")
    with Below():
        if self.layout is torch.sparse_coo:
            moved = [part.to(self.device, non_blocking=non_blocking, copy=True) for part in parts(source)]
            moved[-1] = moved[-1].to(self.dtype)
            made = assemble(source, moved, self.device)
            return _aten.copy_sparse_to_sparse_.default.redispatch(COO, self, made, non_blocking)
        for one, other in zip(parts(self), parts(source), strict=True):
            one.copy_(other.expand(one.shape), non_blocking=non_blocking)
    return self


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(target, source, non_blocking)


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return copy_(target.resize_(source.shape), source)


def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if layout not in (None, self.layout):
        raise RuntimeError(f"layout is {layout}; a copy of a {self.layout} tensor of the simulated device keeps its layout")
    target = self.device if device is None else device
    with Below():
        if self.layout is not torch.strided:
            *indices, values = parts(self)
            moved = [part.to(target, non_blocking=non_blocking) for part in indices]
            moved.append(values.to(target, dtype or self.dtype, non_blocking=non_blocking))
            return assemble(
                self, [new.clone() if new is old else new for new, old in zip(moved, parts(self), strict=True)], target
            )
        made = torch.empty_like(self, dtype=dtype or self.dtype, device=target, memory_format=memory_format)
        if non_blocking and not _is_sim(made):
            made.untyped_storage().pinned = True  # type: ignore[attr-defined]
        return copy_(made, self, non_blocking)


def _item(self: torch.Tensor) -> Any:
    value = run(_aten._local_scalar_dense.default, self)
    host_needs(current().mark())
    return value


def _record_stream(self: torch.Tensor, stream: torch.Stream) -> None:
    memory_of(self).recorded.add(stream.stream_id)


def _set_storage(self: torch.Tensor, source: Any) -> torch.Tensor:
    return lay(self, source, 0, (source.nbytes() // self.element_size(),), (1,))


def _set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if not _is_sim(source):
        raise RuntimeError(f"source is on {source.device}; a tensor of the simulated device takes storages of its own")
    return lay(self, source.untyped_storage(), source.storage_offset(), source.size(), source.stride())


def _convolution_backward(grad: Any, input: Any, weight: Any, *rest: Any) -> Any:
    return run(_aten.convolution_backward.default, grad, input, weight, None, *rest)


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return getattr(self.untyped_storage(), "pinned", False)


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    made = torch.empty_like(self).copy_(self)
    made.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return made


def factory(name: str) -> Any:
    """An allocating operator with support for pinned memory, for which torch would ask the device and fail."""
    kernel = torch.library.get_kernel(f"aten::{name}", "BackendSelect")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)

    def allocate(*args: Any, pin_memory: bool | None = None, **kwargs: Any) -> torch.Tensor:
        made = kernel.call_boxed(keys, *args, pin_memory=False, **kwargs)
        if pin_memory:
            if made.device.type != "cpu":
                raise RuntimeError(
                    f"pin_memory is True, and the tensor is on {made.device}; only memory of the CPU can be pinned"
                )
            made.untyped_storage().pinned = True
        return made

    return allocate


def _on_raws(function: Any) -> Any:
    """A kernel from a function of dense tensors that returns new tensors."""

    def kernel(*args: Any) -> tuple[torch.Tensor | None, ...]:
        with Below():
            point = current().operate()
            for tensor in args:
                if isinstance(tensor, torch.Tensor):
                    operated(memory_of(tensor), point, wrote=False)
            raws = [raw_of(each) if isinstance(each, torch.Tensor) else each for each in args]
            return tuple(None if each is None else each.to(NAME) for each in function(*raws))

    return kernel


def _sum(*terms: torch.Tensor | None) -> torch.Tensor:
    return functools.reduce(torch.add, (term for term in terms if term is not None))


def _lstm_cell(ours: torch.Tensor, theirs: torch.Tensor, cell: torch.Tensor, bias: Any = None, other: Any = None) -> Any:
    i, f, g, o = _sum(ours, theirs, bias, other).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * cell + i * g
    return o * after.tanh(), after, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(hidden: Any, after: Any, before: Any, cell: torch.Tensor, gates: torch.Tensor, has_bias: bool) -> Any:
    if hidden is None and after is None:
        return None, None, None
    i, f, g, o = gates.chunk(4, 1)
    through = cell.tanh()
    grad_out = torch.zeros_like(cell) if hidden is None else hidden
    grad_cell = _sum(after, grad_out * o * (1 - through * through))
    grads = torch.cat((grad_cell * g * i * (1 - i), grad_cell * before * f * (1 - f), grad_cell * i * (1 - g * g),
                       grad_out * through * o * (1 - o)), 1)  # fmt: skip
    return grads, grad_cell * f, grads.sum(0) if has_bias else None


def _gru_cell(ours: torch.Tensor, theirs: torch.Tensor, hidden: torch.Tensor, bias: Any = None, other: Any = None) -> Any:
    ours_r, ours_z, ours_n = _sum(ours, bias).chunk(3, 1)
    theirs_r, theirs_z, theirs_n = _sum(theirs, other).chunk(3, 1)
    r, z = (ours_r + theirs_r).sigmoid(), (ours_z + theirs_z).sigmoid()
    n = (ours_n + r * theirs_n).tanh()
    return (hidden - n) * z + n, torch.cat((r, z, n, hidden, theirs_n), 1)


def _gru_cell_backward(grad: torch.Tensor, saved: torch.Tensor, has_bias: bool) -> Any:
    r, z, n, hidden, theirs_n = saved.chunk(5, 1)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r, grad_z = grad_n * theirs_n * r * (1 - r), grad * (hidden - n) * z * (1 - z)
    ours, theirs = torch.cat((grad_r, grad_z, grad_n), 1), torch.cat((grad_r, grad_z, grad_n * r), 1)
    biases = (ours.sum(0), theirs.sum(0)) if has_bias else (None, None)
    return ours, theirs, grad * z, *biases


DENSE: dict[str, Any] = {
    "copy_": copy_,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "_to_copy": _to_copy,
    "_local_scalar_dense": _item,
    "record_stream": _record_stream,
    "set_.source_Storage_storage_offset": lay,
    "set_.source_Storage": _set_storage,
    "set_.source_Tensor": _set_tensor,
    "_efficientzerotensor": functools.partial(run, _aten.zeros.default),
    "convolution_overrideable": functools.partial(run, _aten.convolution.default),
    "convolution_backward_overrideable": _convolution_backward,
    "_thnn_fused_lstm_cell": _on_raws(_lstm_cell),
    "_thnn_fused_lstm_cell_backward_impl": _on_raws(_lstm_cell_backward),
    "_thnn_fused_gru_cell": _on_raws(_gru_cell),
    "_thnn_fused_gru_cell_backward": _on_raws(_gru_cell_backward),
}
SPARSE: dict[str, Any] = {"_to_copy": _to_copy, "copy_": _copy_sparse_, "_local_scalar_dense": _item}
HOST: dict[str, Any] = {"is_pinned": _is_pinned, "_pin_memory": _pin_memory}
ALLOCATING = ("empty.memory_format", "empty_strided")


def _autocast(name: str, dtype: torch.dtype | None) -> Any:
    """An operator whose floating point arguments autocast casts to ``dtype``; None stands for autocast's current dtype."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(_aten, packet), overload or "default")
    off = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "AutocastPrivateUse1"))  # noqa: B009

    def kernel(*args: Any, **kwargs: Any) -> Any:
        to = torch.get_autocast_dtype(NAME) if dtype is None else dtype
        with torch._C._ExcludeDispatchKeyGuard(off):
            return op(*(_cast(each, to) for each in args), **{key: _cast(each, to) for key, each in kwargs.items()})

    return kernel


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or not _is_sim(value):
        return value
    return value.to(dtype) if value.is_floating_point() and value.dtype is not torch.double else value


_LOWER = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")
_FULL = ("exp", "log", "softmax.int", "log_softmax.int", "layer_norm", "mse_loss", "nll_loss", "sum", "sum.dim_IntList")
AUTOCAST: dict[str, Any] = {name: _autocast(name, None) for name in _LOWER}
AUTOCAST |= {name: _autocast(name, torch.float32) for name in _FULL}
