"""What the installed release's ``torch.utils.checkpoint.checkpoint`` takes, as its signature shows."""

from __future__ import annotations

import inspect

import torch.utils.checkpoint

OPTIONS = inspect.signature(torch.utils.checkpoint.checkpoint).parameters
# The capabilities that it cannot have: a decorator since torch 2.14.
LACKING: frozenset[str] = frozenset() if OPTIONS["function"].default is None else frozenset({"decorator"})
