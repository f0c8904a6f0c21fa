"""What implementations declare about the laws that take ranks."""

from __future__ import annotations

from collections.abc import Mapping

from impls import Implementation, Known
from impls.distributed_limits import LIMITS


def declared(implementation: Implementation) -> Mapping[str, Known]:
    """The known limits of an implementation, those under ranks included."""
    return {**implementation.known, **LIMITS.get(implementation.name, {})}
