"""Where saved tensors that were there before a region are, for regions in C++: what ``impls.tensors.origins`` has for nested's.

The place of a leaf is kept in C++, and its origin is made if the tensor has moved; others have an origin from the beginning.
"""

from __future__ import annotations

from typing import Any

import torch

from impls.tensors.origins import Origin, _Layout, find_origin, find_outside, keep_storages, make_result_origin
from impls.tensors.versions import TensorMetadata
from impls.torch_private import tree_leaves


def metadata_of(region: Any, index: int) -> TensorMetadata:
    """What a saved tensor looked like."""
    metadata: TensorMetadata = region.metadata(index)
    return metadata


def note_origin(region: Any, index: int, tensor: torch.Tensor, is_result: bool) -> Origin | None:
    """Note the origin of a saved tensor that may have been there before the region and is no flat argument."""
    probe, metadata = region.version_handle(index), metadata_of(region, index)
    if is_result:
        origin: Origin | None = make_result_origin(tensor, probe, metadata)
    else:
        base = tensor._base
        origin = find_origin(tensor, tensor if base is None else base, probe, metadata)
    if origin is not None:
        region.candidates = region.candidates or {}
        region.candidates[index] = origin
    return origin


def make_origin_from_place(region: Any, index: int) -> Origin:
    """The origin of a flat argument or another leaf, which is made only now that the tensor is somewhere else."""
    address, layout, over_storage = region.place(index)
    origin = _make_origin(region, index, over_storage, address, layout)
    origin.storage, origin.followed = over_storage.untyped_storage(), False
    return origin


def keeps_leaf(region: Any, index: int, leaf: torch.Tensor, output: Any) -> bool:
    """Forward is over: whether the storage of a leaf that is no parameter is to be kept, as ``keep_storages`` decides it.

    Otherwise it has an origin: an output is followed for as long as somebody has it, and none is where somebody watches what is
    saved.
    """
    followed = region.inputs is None or not region.inputs.hooks_were_active
    outputs = [output] if isinstance(output, torch.Tensor) else tree_leaves(output)
    if followed and all(leaf is not one for one in outputs):
        return True
    address, layout, _ = region.place(index)
    origin = _make_origin(region, index, leaf, address, layout)
    origin.followed = followed
    region.origins = {**(region.origins or {}), index: origin}
    return False


def _make_origin(region: Any, index: int, tensor: torch.Tensor, address: int, layout: tuple[Any, ...]) -> Origin:
    origin = Origin(tensor)
    origin.address, origin.layout, origin.storage, origin.leaf, origin.followed = address, _Layout(*layout), None, None, True
    origin.probe, origin.metadata = region.version_handle(index), metadata_of(region, index)
    return origin


def settle_origins(region: Any, output: Any) -> None:
    """Forward is over: find what came from outside, and if this is the outermost region, keep its storage."""
    arguments = () if region.inputs is not None else region.tensors()
    identities = {id(one) for one in arguments}  # of tensors that are alive for as long as they are looked for here
    left = find_outside(region.candidates, region.first_sequence_number, lambda tensor: id(tensor) in identities)
    region.origins = {**(region.origins or {}), **left}
    if left and not isinstance(region.enclosing, type(region)):
        hooks_were_active = region.inputs is not None and region.inputs.hooks_were_active
        keep_storages(left.values(), output, hooks_were_active=hooks_were_active)
