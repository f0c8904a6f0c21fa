"""Faults of the nested checkpoint that laws of the family growth must catch."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


@mutant("nested.region", "growth", "work_of_python_grows_in_proportion")
def compares_a_saved_tensor_with_all_before_it(copy: Copy) -> None:
    """Each tensor that is saved is compared with all that were saved before."""

    def is_the_same(slot: Any, tensor: torch.Tensor) -> bool:
        return slot[1] is tensor

    copy.call_before("nested.region", "Region.pack", lambda self, tensor: [is_the_same(slot, tensor) for slot in self.slots])


@mutant("nested.region", "growth", "work_of_python_grows_in_proportion")
def asks_every_region_that_is_alive(copy: Copy) -> None:
    """Each region that begins looks at all the others that are alive."""
    regions: weakref.WeakSet[Any] = weakref.WeakSet()

    def is_set(region: Any, name: str) -> bool:
        return bool(vars(region).get(name))

    def is_busy(region: Any) -> bool:
        return not is_set(region, "complete") and not is_set(region, "inputs")

    def look(_: None, region: Any, *others: Any) -> None:
        for one in list(regions):
            is_busy(one)
        regions.add(region)

    copy.call_after("nested.region", "Region.__init__", look)


@mutant("nested.region", "growth", "the_process_grows_by_outputs_alone")
def keeps_what_is_saved_in_numpy(copy: Copy) -> None:
    """A region keeps a copy of what it saves in an array of numpy, where nobody sees a tensor."""

    def keep(region: Any, tensor: torch.Tensor) -> None:
        if tensor.dtype is torch.float32 and tensor.device.type == "cpu":
            vars(region).setdefault("arrays", []).append(tensor.detach().numpy().copy())

    copy.call_before("nested.region", "Region.pack", keep)


@mutant("nested.region", "growth", "the_process_grows_by_outputs_alone")
def keeps_what_is_saved_in_bytes(copy: Copy) -> None:
    """A region keeps the bits of what it saves, as bytes without a shape."""

    def keep(region: Any, tensor: torch.Tensor) -> None:
        vars(region).setdefault("bits", []).append(tensor.detach().clone().view(torch.uint8))

    copy.call_before("nested.region", "Region.pack", keep)


@mutant("nested.region", "growth", "a_module_is_left_with_nothing")
def keeps_the_last_tensor_on_the_module(copy: Copy) -> None:
    """What a region was recomputed for stays on the module that is its function."""

    def keep(tensor: torch.Tensor, region: Any, _: Any) -> None:
        if isinstance(region.function, torch.nn.Module):
            vars(region.function)["recomputed"] = tensor

    copy.call_after("nested.region", "Region.unpack", keep)
