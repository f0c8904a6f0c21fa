"""A second device for a machine that has only a CPU: ordinary tensors on a device type ``sim``, with streams of their own.

torch reserves a device type for other backends. Here it gets kernels that run the CPU's kernels on memory that is declared to
be the device's, so values are the CPU's bit for bit. Tensors are of type ``torch.Tensor``; they have storages, views, version
counters and autograd like any other, draw random numbers from the CPU's generator, and do not mix with the CPU's tensors.
``conformance.simulated_device.memory`` says what is deferred and which races show; ``torch.sim`` is
``conformance.simulated_device.streams``.

Not supported: storages that change their size (``untyped_storage().resize_``, refused) or are made without a tensor
(``torch.UntypedStorage(8, device="sim")`` ends the process), ``torch.compile``, quantised and nested tensors, a generator
of the device's own, a second simulated device.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.meters.counters import copied
from conformance.simulated_device.kernels import NAME, parts, run, storage_of

_aten = torch.ops.aten
_once = threading.Lock()
_libraries: list[torch.library.Library] = []  # kernels are there as long as these are
_COO_KERNELS = (
    "_indices", "_values", "indices", "values", "_nnz", "sparse_dim", "dense_dim", "is_coalesced", "_coalesced_",
    "sparse_resize_", "sparse_resize_and_clear_", "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors",
)  # fmt: skip
_COMPRESSED_KERNELS = (
    "crow_indices", "col_indices", "ccol_indices", "row_indices", "values", "_nnz", "sparse_dim", "dense_dim",
    "_sparse_compressed_tensor_unsafe",
)  # fmt: skip


def second(device: str) -> str:
    """The device type to move tensors to from ``device``: the simulated one for ``"cpu"``, else the same.

    The first call with ``"cpu"`` makes the simulated device known to torch, once for the process and for good: from then
    on ``torch.accelerator`` names it. RuntimeError when another backend has taken the place that torch has for one.
    """
    if torch.device(device).type != "cpu":
        return device
    with _once:
        if not _libraries:
            _register()
    return NAME


def _register() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from conformance.simulated_device import backward_errors, operators, streams

    _setup_privateuseone_for_python_backend(NAME, streams, device_guard=backward_errors.Guard())
    backward_errors.carry_errors()
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the CPU's kernels for pinned memory are replaced is meant
        for key in ("PrivateUse1", "SparsePrivateUse1", "SparseCsrPrivateUse1"):
            every.fallback(run, key)
        every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        for key, kernels in (
            ("PrivateUse1", _of_cpu("CPU") | operators.DENSE),
            ("SparsePrivateUse1", _of_cpu("SparseCPU") | _shared("SparseCPU", _COO_KERNELS) | operators.SPARSE),
            (
                "SparseCsrPrivateUse1",
                _of_cpu("SparseCsrCPU") | _shared("SparseCsrCPU", _COMPRESSED_KERNELS) | operators.SPARSE,
            ),
            ("CPU", operators.HOST),
            ("BackendSelect", {name: operators.factory(name) for name in operators.ALLOCATING}),
            ("AutocastPrivateUse1", operators.AUTOCAST),
        ):
            for name, kernel in kernels.items():
                aten.impl(name, kernel, key)
    torch.serialization.register_package(0, _tag, _restore)
    _libraries.extend((every, aten))


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _of_cpu(key: str) -> dict[str, Any]:
    """Kernels for operators that the CPU has kernels for: torch would prefer decompositions, which give other bits."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    ours = [name.removeprefix("aten::") for name in names if name.startswith("aten::")]
    return {name: functools.partial(run, _operator(name)) for name in ours}


def _shared(key: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Kernels of the CPU that never touch values, so that they serve any device."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return {name: functools.partial(_operator(name).redispatch, keys) for name in names}


def _tag(storage: Any) -> str | None:
    return NAME if storage.device.type == NAME else None


def _restore(storage: Any, location: str) -> Any:
    return storage_of(storage.clone()) if location.split(":")[0] == NAME else None


@dataclass(frozen=True)
class Move:
    """One copy between device types: its kind, such as "cpu→sim", the bytes that arrive, and the shape."""

    kind: str
    bytes: int
    shape: tuple[int, ...]


class Moves(TorchDispatchMode):
    """Records copies between device types that are made inside: each in ``seen``, bytes by kind in ``totals``.

    It sees ``_to_copy`` and ``copy_``, on any device, and in a backward on any of autograd's threads. It does not see threads
    that a program starts itself, ``item()``, and copies below operators, as in ``torch.tensor(..., device=)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Move] = []

    @property
    def totals(self) -> Counter[str]:
        """Bytes by kind."""
        totals: Counter[str] = Counter()
        for move in self.seen:
            totals[move.kind] += move.bytes
        return totals

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for source in copied(func, args, result):
            dense = [result] if result.layout is torch.strided else parts(result)
            moved = sum(part.numel() * part.element_size() for part in dense)
            self.seen.append(Move(f"{source.device.type}→{result.device.type}", moved, tuple(result.shape)))
        return result
