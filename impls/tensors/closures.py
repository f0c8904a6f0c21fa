"""Results of operators that a function reads through its closure, and which of them it has changed in place.

Autograd keeps a copy, if anything, of what an operator writes to, so neither versions nor storages of saved tensors show it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import torch

ClosedOver = tuple[str, weakref.ref[torch.Tensor], int]
LIMIT = 20  # functions that are looked at


def closed_over_results(function: Any) -> list[ClosedOver]:
    """The tensors with a graph in the closure of a function or method, or of functions in it, by name, with their versions."""
    found: list[ClosedOver] = []
    functions = [function]
    for one in functions:
        if type(one) is MethodType:
            one = one.__func__
        if type(one) is not FunctionType or not one.__closure__:
            continue
        for name, cell in zip(one.__code__.co_freevars, one.__closure__, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # empty so far
                continue
            if type(value) is torch.Tensor:
                if value.requires_grad and not value.is_leaf:
                    found.append((name, weakref.ref(value), value._version))
            elif type(value) is FunctionType and len(functions) < LIMIT:
                functions.append(value)
    return found


def find_changed(results: Iterable[ClosedOver]) -> str | None:
    """The name of the first that was changed in place since."""
    for name, reference, version in results:
        tensor = reference()
        if tensor is not None and tensor._version != version:
            return name
    return None
