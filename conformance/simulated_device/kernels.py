"""Kernels of the simulated device: each operator is the CPU's, on the same memory, and its results become the device's.

Tensors of the device have storages that torch takes for the device's but that are in the CPU's memory. The CPU's view of a
tensor is made for one operator. Operators that need kernels of their own are in ``operators``.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from conformance.simulated_device.memory import Memory, allocated, operated
from conformance.simulated_device.queues import Below, current

NAME = "sim"
_aten = torch.ops.aten


def _keys(name: str) -> torch._C.DispatchKeySet:
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))


# These kernels of the CPU change a tensor's metadata and never touch its values, so they serve any device.
_DENSE, COO, _COMPRESSED = _keys("CPU"), _keys("SparseCPU"), _keys("SparseCsrCPU")
# Arguments that a real device takes from the CPU, besides tensors without dimensions.
_FROM_CPU = {"indices", "lengths", "batch_sizes", "scalars"}


class _Block:
    """Belongs to a storage of the device and dies with it."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, raw: torch.UntypedStorage) -> None:
        self.memory = allocated(raw)
        weakref.finalize(self, self.memory.free).atexit = False


def memory_of(tensor: torch.Tensor) -> Memory:
    """The memory of a dense tensor of the device."""
    storage = tensor.untyped_storage()
    block = getattr(storage, "block", None)
    if block is None:
        if storage.nbytes():
            raise RuntimeError("a storage of the simulated device was made by something else than its kernels")
        block = storage.block = _Block(torch.UntypedStorage(0))  # type: ignore[attr-defined]
    return block.memory


def storage_of(raw: torch.UntypedStorage, block: _Block | None = None) -> torch.UntypedStorage:
    """A storage of the device in the CPU's memory."""
    made: Any = torch._C._construct_storage_from_data_pointer(raw.data_ptr(), torch.device(NAME, 0), raw.nbytes())
    made.block = _Block(raw) if block is None else block
    # torch has no allocator for the device: asking it for one ends the process.
    made.__deepcopy__ = made.clone = functools.partial(_copied, raw)
    made.resize_ = _refuse_resize
    made._set_from_file, made._write_file = raw._set_from_file, raw._write_file
    return made


def _copied(raw: torch.UntypedStorage, memo: dict[int, Any] | None = None) -> torch.UntypedStorage:
    with Below():
        current().operate()
        return storage_of(raw.clone())


def _refuse_resize(size: int) -> None:
    raise RuntimeError(f"size is {size}; a storage of the simulated device keeps its size")


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the device, as the CPU sees it."""
    if tensor.layout is not torch.strided:
        raws = [raw_of(part) for part in parts(tensor)]
        return assemble(tensor, raws, torch.device("cpu"))
    raw = _aten.empty.memory_format.redispatch(_DENSE, (0,), dtype=tensor.dtype)
    raw.set_(memory_of(tensor).raw, tensor.storage_offset(), tensor.size(), tensor.stride())
    return _with_bits(raw, tensor)


def _with_bits(to: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    if of.is_conj():
        torch._C._set_conj(to, True)
    if of.is_neg():
        torch._C._set_neg(to, True)
    return to


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse one consists of, on any device."""
    if tensor.layout is torch.sparse_coo:
        return [_aten._indices.default.redispatch(COO, tensor), _aten._values.default.redispatch(COO, tensor)]
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices", "values") if by_row else ("ccol_indices", "row_indices", "values")
    return [getattr(_aten, name).default.redispatch(_COMPRESSED, tensor) for name in names]


def assemble(like: torch.Tensor, of: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """A sparse tensor of other parts, as ``like`` is one of its own."""
    options = {"dtype": of[-1].dtype, "layout": like.layout, "device": device, "pin_memory": False}
    if like.layout is torch.sparse_coo:
        make = _aten._sparse_coo_tensor_with_dims_and_tensors.default
        sizes = like.sparse_dim(), like.dense_dim(), list(like.size())
        coalesced = _aten.is_coalesced.default.redispatch(COO, like)
        return make.redispatch(COO, *sizes, *of, **options, is_coalesced=coalesced)
    return _aten._sparse_compressed_tensor_unsafe.default.redispatch(_COMPRESSED, *of, list(like.size()), **options)


def lay(tensor: torch.Tensor, storage: torch.UntypedStorage, offset: Any, size: Any, stride: Any = ()) -> torch.Tensor:
    """Give a dense tensor of the device another storage, or another place in its own."""
    return _aten.set_.source_Storage_storage_offset.redispatch(_DENSE, tensor, storage, offset, size, stride)


@functools.cache
def _written(op: Any) -> frozenset[str]:
    arguments = op._schema.arguments
    return frozenset(each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write)


@functools.cache
def _tensors(op: Any) -> frozenset[str]:
    return frozenset(each.name for each in op._schema.arguments if str(each.type) in ("Tensor", "Optional[Tensor]"))


@functools.cache
def _looks_on(op: Any) -> bool:
    """Whether an operator only allocates or makes a view, for which no stream has to wait."""
    views = any(each.alias_info is not None for each in op._schema.arguments) and not op._schema.is_mutable
    return views or op._schema.name in ("aten::empty", "aten::empty_strided")


class _Call:
    """The arguments of one operator as the CPU sees them, and the way back for its results."""

    def __init__(self, op: Any, args: tuple[Any, ...]) -> None:
        self.op = op
        self.first = next((value for value in args if isinstance(value, torch.Tensor)), torch.empty(0))
        self.pairs: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.foreign: torch.Tensor | None = None

    def lower(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self.lower_tensor(value, name)
        if isinstance(value, list | tuple):
            return [self.lower(item, name) for item in value]
        if isinstance(value, int | float | complex) and name in _tensors(self.op):
            return torch.scalar_tensor(value, dtype=torch.result_type(self.first, value))  # decides no dtype, as the number
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value

    def lower_tensor(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        wrote = name in _written(self.op)
        if tensor.device.type != NAME:
            if wrote or (tensor.dim() and name not in _FROM_CPU):
                self.foreign = tensor
            return tensor
        raw = raw_of(tensor)
        self.pairs.append((tensor, raw, wrote))
        dense = zip(*((each,) if each.layout is torch.strided else parts(each) for each in (raw, tensor)), strict=True)
        self.storages.update((one.untyped_storage()._cdata, other.untyped_storage()) for one, other in dense)
        return raw

    def lift(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = next((tensor for tensor, raw, _ in self.pairs if raw is value), None)
            return self.wrap(value) if known is None else known
        return [self.lift(item) for item in value] if isinstance(value, list) else value

    def wrap(self, raw: torch.Tensor) -> torch.Tensor:
        """A result; what is a view of an argument on the CPU becomes one on the device."""
        if raw.layout is not torch.strided:
            return assemble(raw, [self.wrap(part) for part in parts(raw)], torch.device(NAME, 0))
        cpu = raw.untyped_storage()
        if cpu._cdata not in self.storages:
            self.storages[cpu._cdata] = storage_of(cpu)
        made = torch._C._acc.create_empty_tensor((0,), raw.dtype)
        lay(made, self.storages[cpu._cdata], raw.storage_offset(), raw.size(), raw.stride())
        return _with_bits(made, raw)

    def settle(self, tensor: torch.Tensor, raw: torch.Tensor) -> None:
        """Apply what the operator did to the shape or the storage of an argument that it wrote."""
        if tensor.layout is not torch.strided:
            self.settle_sparse(tensor, raw)
            return
        storage, cpu = tensor.untyped_storage(), raw.untyped_storage()
        if cpu._cdata != memory_of(tensor).raw._cdata:
            storage = storage_of(cpu)
        elif cpu.nbytes() != storage.nbytes():
            storage = storage_of(cpu, storage.block)  # type: ignore[attr-defined]
        here, there = ((each.size(), each.stride(), each.storage_offset()) for each in (tensor, raw))
        if here != there or storage is not tensor.untyped_storage():
            lay(tensor, storage, raw.storage_offset(), raw.size(), raw.stride())

    def settle_sparse(self, tensor: torch.Tensor, raw: torch.Tensor) -> None:
        if tensor.layout is not torch.sparse_coo:
            before = [part.untyped_storage()._cdata for part in parts(raw)]
            if any(cdata not in self.storages for cdata in before):
                raise RuntimeError(f"{self.op}: the simulated device cannot give a {tensor.layout} tensor other parts")
            return
        _aten.copy_sparse_to_sparse_.default.redispatch(COO, tensor, self.wrap(raw))


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator; RuntimeError when it is given tensors of another device."""
    with Below():
        call = _Call(op, args)
        named = {name: call.lower(value, name) for name, value in kwargs.items()}
        raws = [call.lower(value, each.name) for value, each in zip(args, op._schema.arguments, strict=False)]
        if call.foreign is not None:
            raise RuntimeError(f"{op}: expected all tensors to be on the same device, found {NAME}:0 and {call.foreign.device}")
        named.pop("pin_memory", None)
        point = None if _looks_on(op) else current().operate()
        result = op(*raws, **named)
        for tensor, raw, wrote in call.pairs:
            if wrote:
                call.settle(tensor, raw)
            if point is not None and tensor.layout is torch.strided:
                operated(memory_of(tensor), point, wrote=wrote)
        return tuple(map(call.lift, result)) if isinstance(result, tuple) else call.lift(result)
