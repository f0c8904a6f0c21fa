"""Known limits under the laws that take ranks, by the names of implementations.

They stand beside the implementations and not in them: rows of laws that one process judges are no older for a limit that was
found under ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from impls.implementation import Known

LIMITS: Mapping[str, Mapping[str, Known]] = {}
