"""What torch's own nodes do not do in releases that are not the newest, and so nobody's names for them."""

from __future__ import annotations

import torch

from impls.implementation import Known, known

# What torch 2.11 does and 2.13 no longer; 2.12 and 2.14 have not been looked at.
OLD: dict[str, Known] = {}
if torch.__version__.startswith("2.11."):
    OLD |= known("refuses", "a node of a custom Function takes no hook before it", "seen here", "nodes_are_known_as_such")
