"""What operators have written to, also where no version counter tells.

Changes through ``.data`` bump a counter of their own. The kernels of batch norm write running_mean and running_var
although their schemas do not say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from impls.offload.saved_tensors import storage_number
from impls.torch_private import TorchDispatchMode

_RUNNING = ("running_mean", "running_var")


class WriteRecorder(TorchDispatchMode):
    """Collects, by the number of their storages, tensors that operators inside write to, running statistics among them."""

    def __init__(self) -> None:
        super().__init__()
        self.updated: set[int] = set()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled modules stay compiled: torch runs them uncompiled inside a mode that is a user's."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = func._schema.arguments
        names = [argument.name for argument in arguments]
        for position, argument in enumerate(arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else (kwargs or {}).get(argument.name)
                self.note(value if isinstance(value, list | tuple) else (value,))
        if _RUNNING[0] in names and "backward" not in func._schema.name:
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            if given.get("training", True):
                self.note([given.get(name) for name in _RUNNING])
        return func(*args, **(kwargs or {}))

    def note(self, values: Iterable[Any]) -> None:
        numbers = (storage_number(value) for value in values if isinstance(value, torch.Tensor))
        self.updated.update(number for number in numbers if number is not None)
