"""Counters that meters are built on. Scripts contain their source, so they need only torch and Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableSequence, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def region_name(function: Callable[..., Any]) -> str:
    """The name of a region: its function's, or the type's when it is a callable object."""
    function = inspect.unwrap(function)  # a meter may have wrapped an object without a name
    return getattr(function, "__name__", type(function).__name__)


def counted(function: Callable[..., Any], names: MutableSequence[str]) -> Callable[..., Any]:
    """The function of a region, whose name is added to ``names`` each time that it is called."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        names.append(region_name(function))
        return function(*args, **kwargs)

    return called


class Watch(TorchDispatchMode):
    """Passes every operator with its result to ``see``. It only watches, so compilers may work below it."""

    ignore_compile_internals = classmethod(lambda cls: True)
    see: Callable[[Any, Any], object]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.see(func, result := func(*args, **(kwargs or {}))) or result  # what sees returns nothing


def storages(tree: Any, without: torch.dtype | None = None) -> dict[StorageWeakRef, int]:
    """The storages of the dense tensors in a tree, each with its bytes, except empty ones and those of a dtype."""
    dense = [x for x in filter(torch.is_tensor, tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}


def copied(func: Any, args: Sequence[Any], result: Any) -> list[torch.Tensor]:
    """The tensor that an operator copies from one type of device to another; none if it copies none."""
    sources = {torch.ops.aten._to_copy.default: args[:1], torch.ops.aten.copy_.default: args[1:2]}.get(func, ())
    return [source for source in sources if source.device.type != result.device.type]


def keeps_growing(growth: Sequence[int]) -> bool:
    """Whether numbers rise again and again. A single rise may be due to another thread."""
    rises = sum(after > before for before, after in pairwise(growth))
    return rises > 0 and 3 * rises >= len(growth) and growth[-1] > 0
