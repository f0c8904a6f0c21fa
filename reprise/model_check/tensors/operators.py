"""Which tensors an operator is given and does not read: those that it writes anew, and those of which it makes views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_DRAWING = ("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_")
# These do not read their first argument.
_OVERWRITE = {getattr(torch.ops.aten, name) for name in ("copy_", "fill_", "zero_", *_DRAWING)}


def overwritten(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors all of whose values an operator writes, and reads none of: as ``copy_`` does, and with ``out=``.

    One that the operator is also given as another argument is read.
    """
    written = [args[0]] if func.overloadpacket in _OVERWRITE else []
    written += [kwargs.get(one.name) for one in func._schema.arguments if one.is_out] if kwargs else []
    given = [id(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)] if written else []
    return [one for one in written if given.count(id(one)) == 1]


def is_view(func: Any) -> bool:
    """Whether an operator returns views alone, and reads no values. ``lift_fresh`` does: by it, data of Python first appear."""
    return bool(getattr(func, "is_view", False)) and func.overloadpacket != torch.ops.aten.lift_fresh
