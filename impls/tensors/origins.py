"""What a region saved that was there before it: parameters, buffers, constants, and whatever else its function reads.

A recomputation has to read the same values again. Another tensor in its place, by a name that is bound late, an attribute that
is assigned or ``.data`` that is swapped, may look the same, and the gradient is wrong. So a region keeps the storage of leaves
that it saved and did not make, as autograd would; what its function makes anew in each run has equal values in both. Results of
operators are only compared while somebody else keeps them: dropping them is what checkpointing is for. Of a leaf that is cast,
as autocast casts weights, the cast is saved: it is the leaf that is compared, if the cast outlives forward, as the cache of
autocast has it do.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from impls.tensors.versions import TensorMetadata, VersionProbe, tensor_metadata
from impls.torch_private import DisableTorchDispatch, DisableTorchFunction, has_storage, is_functional_tensor, tree_leaves

_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # stand in for dtypes of that size which cannot be compared


class _Layout(NamedTuple):
    """How a tensor lies in its storage, and whether it is lazily conjugated or negated."""

    offset: int
    stride: tuple[int, ...]
    conjugated: bool
    negated: bool


def _layout(tensor: torch.Tensor) -> _Layout:
    asked = tensor.storage_offset(), tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tuple.__new__(_Layout, asked)  # a third of the time that _Layout(*asked) takes, at each leaf that a region saves


class Origin(weakref.ref[torch.Tensor]):
    """A weak reference to the tensor that a saved one is, or is a view of, and where in memory the saved one was.

    The origin of a region's own result has ``probe``, ``metadata`` and an address of None until ``find_outside`` asks for the
    rest. ``storage`` is kept once it is known to be a leaf's from outside; ``followed`` says whether the reference is compared
    with. If the tensor was cast from a ``leaf``, all but the reference is that one's. Regions around the one that saved the
    tensor share the object, and so know the same.
    """

    __slots__ = ("address", "followed", "layout", "leaf", "metadata", "probe", "storage")
    address: int | None
    followed: bool
    layout: _Layout | None
    leaf: torch.Tensor | None
    metadata: TensorMetadata
    probe: VersionProbe
    storage: torch.UntypedStorage | None

    def has_moved(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not where this one was, or is read from there in another way."""
        if self.address is None:
            return False
        if self.leaf is not None:
            return not self.is_cast_again(tensor)
        layout = self.layout
        return self.address != tensor.data_ptr() or (
            layout is not None
            and (layout.stride != tensor.stride() or layout.conjugated != tensor.is_conj() or layout.negated != tensor.is_neg())
        )

    def is_read_again(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor certainly has the values that were saved: it reads the same memory in the same way.

        That memory was not written since, and it is kept, or is still that of the same tensor: otherwise another one may have
        its address by now.
        """
        if self.leaf is not None or self.has_moved(tensor) or self.layout != _layout(tensor):
            return False
        kept = self.storage is not None and self.storage.data_ptr() == tensor.untyped_storage().data_ptr()
        return (kept or self() is _whole(tensor)) and self.probe._version == self.metadata[3]

    def is_cast_again(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the same cast, or one of the same leaf, which has not changed."""
        if self() is _whole(tensor):
            return True
        leaf = _find_leaf(_whole(tensor).grad_fn)
        return leaf is not None and leaf.data_ptr() == self.address and self.probe._version == self.metadata[3]

    def note_leaf(self, node: Any) -> None:
        """Keep the leaf that the tensor was cast from, if the node that made it is a cast: so does the graph."""
        leaf = _find_leaf(node)
        if leaf is not None and _shows_its_memory(leaf):
            self.leaf = self.probe = leaf
            self.address, self.storage, self.layout = leaf.data_ptr(), leaf.untyped_storage(), _layout(leaf)
            self.metadata, self.followed = tensor_metadata(leaf), False

    def keep_storage(self, tensor: torch.Tensor) -> None:
        """Keep the storage of the saved tensor, which is known to be from outside."""
        self.storage, self.followed = tensor.untyped_storage(), False
        if self.layout is None:
            self.layout = _layout(tensor)

    def current_storage(self) -> torch.UntypedStorage | None:
        """The storage of the tensor that this one is, or is a view of, if that is alive and still where it was."""
        base = self() if self.followed else None
        if base is None:
            return None
        if self.layout is None:
            # One of another shape has got another storage, which may begin at the same address.
            if base.data_ptr() != self.address or base.shape != self.metadata[0]:
                return None
            self.layout = _layout(base)
            return base.untyped_storage()
        storage = base.untyped_storage()
        return storage if storage.data_ptr() + self.layout.offset * self.metadata[1].itemsize == self.address else None


def find_origin(tensor: torch.Tensor, base: torch.Tensor, probe: VersionProbe, metadata: TensorMetadata) -> Origin | None:
    """The origin of a saved leaf or view; None where there is no memory to tell it by, or a subclass that hides it."""
    if not _shows_its_memory(base) or type(tensor) not in _ORDINARY:
        return None
    origin = Origin(base)
    origin.address, origin.layout = tensor.data_ptr(), None if base is tensor else _layout(tensor)
    origin.followed, origin.probe, origin.metadata, origin.storage, origin.leaf = True, probe, metadata, None, None
    return origin


def make_result_origin(tensor: torch.Tensor, probe: VersionProbe, metadata: TensorMetadata) -> Origin:
    """The origin of a saved result of an operator, of which nothing is known but that.

    Nearly every tensor that is saved is one, made in the region and gone when that ends: ``find_outside`` asks the
    few others for the rest.
    """
    origin = Origin(tensor)
    origin.address, origin.probe, origin.metadata = None, probe, metadata
    return origin


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base
    return tensor if base is None else base


def _find_leaf(node: Any) -> torch.Tensor | None:
    """The leaf whose cast this node has made; None if it has made something else."""
    if type(node).__name__ != "ToCopyBackward0":
        return None
    leaf: torch.Tensor | None = getattr(node.next_functions[0][0], "variable", None)
    return leaf


def _shows_its_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) in _ORDINARY and has_storage(tensor) and not tensor.is_nested and not is_functional_tensor(tensor)


def find_outside(
    origins: Mapping[int, Origin], first_sequence_number: int, is_argument: Callable[[torch.Tensor], bool]
) -> dict[int, Origin]:
    """Forward is over: of these, the ones to follow, which are alive and leaves, or computed before the region began.

    Since torch 2.13 a node whose ``grad_fn`` was read keeps a Python object, and a graph of such nodes is freed by recursion,
    which ends in a segmentation fault if there are tens of thousands. So only what outlives forward is asked for its node.
    """
    left = {}
    for index, one in origins.items():
        if one.address is not None and one.storage is not None:
            left[index] = one
            continue
        base = one()
        if base is None:
            continue
        if one.address is None:
            one.layout = one.storage = one.leaf = None
            one.followed = _shows_its_memory(base) and not is_argument(base)
            one.address = base.data_ptr() if one.followed else -1
        if one.followed and (node := base.grad_fn) is not None:
            one.followed = node._sequence_nr() < first_sequence_number
            one.note_leaf(node)
        if one.followed or one.storage is not None:
            left[index] = one
    return left


def keep_storages(origins: Iterable[Origin], output: Any, *, hooks_were_active: bool) -> None:
    """Forward is over for the outermost region, too: keep the storages of leaves that were there before it.

    What forward made is gone by now, but for its output, and for what the function has put elsewhere. A tensor that got
    another storage in forward is not followed: whoever swaps it there does so to free it. An output, or a result of an
    operator, is compared with only as long as somebody else has it. Where somebody watches what is saved, only parameters
    are followed, for the others may be what is watched, and is dropped.
    """
    outputs: set[int] | None = None
    for one in origins:
        base, storage = one(), one.current_storage()
        if base is None or one.storage is not None:
            continue
        ordinary = type(base) is torch.Tensor
        if storage is None or (ordinary and hooks_were_active):
            one.followed = False
        elif base.is_leaf:
            if ordinary and outputs is None:
                outputs = {id(output)} if isinstance(output, torch.Tensor) else {id(leaf) for leaf in tree_leaves(output)}
            if not ordinary or id(base) not in (outputs or ()):
                one.storage, one.followed = storage, False


def has_equal_values(origin: Origin, tensor: torch.Tensor) -> bool | None:
    """Whether a tensor that is elsewhere than the one that was saved has its values; None if these are gone."""
    storage = origin.current_storage() if origin.storage is None else origin.storage
    if origin.leaf is not None:
        leaf = _find_leaf(_whole(tensor).grad_fn)
        if leaf is None or tensor_metadata(leaf)[:3] != origin.metadata[:3]:  # whoever frees it means to fill it again
            return None
        if origin.probe._version != origin.metadata[3]:
            return False
        tensor = leaf
    if storage is None or origin.layout is None or tensor.is_quantized:
        return None
    if origin.probe._version != origin.metadata[3]:  # then its values are not those that were saved, as unpacking it will tell
        return None
    if not _is_long_enough(storage, origin.layout, origin.metadata):  # whoever frees it means to fill it again
        return None
    if origin.metadata[:3] != tensor_metadata(tensor)[:3] or not has_storage(tensor):
        return False
    if is_functional_tensor(tensor):  # whose storage has no memory
        return None
    return not _differ(storage, origin.layout, tensor)


def is_copy(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Whether a tensor stands for another one: the same in memory, or on the CPU equal to it.

    Elsewhere a comparison would have the host wait for the device.
    """
    if not (_shows_its_memory(tensor) and _shows_its_memory(original)):
        return False
    one, other, layout = tensor_metadata(tensor), tensor_metadata(original), _layout(original)
    if one[:3] != other[:3] or one[4:] != other[4:] or layout.stride != tensor.stride():
        return False
    if tensor.data_ptr() == original.data_ptr() and _layout(tensor) == layout:
        return True
    storage = original.untyped_storage()
    if tensor.device.type != "cpu" or tensor.is_quantized or not _is_long_enough(storage, layout, other):
        return False
    return not _differ(storage, layout, tensor)


def _differ(storage: torch.UntypedStorage, layout: _Layout, tensor: torch.Tensor) -> bool:
    if "torch._dynamo" in sys.modules:  # which would compile what a hook does, if a compiled function saves a tensor
        return bool(torch.compiler.disable(_values_differ)(storage, layout, tensor))
    return _values_differ(storage, layout, tensor)


def _is_long_enough(storage: torch.UntypedStorage, layout: _Layout, metadata: TensorMetadata) -> bool:
    """Whether a storage is still as long as a tensor that looks so needs it."""
    steps = sum((size - 1) * step for size, step in zip(metadata[0], layout.stride, strict=True))
    return 0 in metadata[0] or (layout.offset + steps + 1) * metadata[1].itemsize <= storage.nbytes()


def _values_differ(storage: torch.UntypedStorage, layout: _Layout, tensor: torch.Tensor) -> bool:
    with torch.no_grad(), DisableTorchDispatch(), DisableTorchFunction():
        both = (storage, layout), (tensor.untyped_storage(), _layout(tensor))
        try:
            return not _equal(*(_over_storage(tensor, tensor.dtype, *one) for one in both))
        except NotImplementedError:  # for dtypes that torch only stores
            bits = _BITS[tensor.itemsize]
            return both[0][1][2:] != both[1][1][2:] or not _equal(*(_over_storage(tensor, bits, *one) for one in both))


def _over_storage(tensor: torch.Tensor, dtype: torch.dtype, storage: torch.UntypedStorage, layout: _Layout) -> torch.Tensor:
    """What a tensor of the same shape would be over a storage."""
    raw = torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, layout.offset, tensor.shape, layout.stride)
    if dtype is tensor.dtype and layout.conjugated:
        raw = raw.conj()
    return raw.neg() if dtype is tensor.dtype and layout.negated else raw


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
