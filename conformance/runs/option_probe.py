"""Which options a checkpoint does not take, found by calling it with and without each, in a process of its own.

A summary can then say in one line why many laws fail. No verdict depends on it.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

import impls
from impls import nested

KEYWORDS = "keyword_arguments"
PARAMETERS = inspect.signature(nested.checkpoint).parameters.values()
OPTIONS = {one.name: one.default for one in PARAMETERS if one.kind is one.KEYWORD_ONLY}
SECONDS = 60.0


def not_taken(name: str, device: str) -> frozenset[str]:
    """The options that make an implementation raise, and KEYWORDS if it does not pass keyword arguments on.

    The set is also empty if this could not be found out: the process failed, or took longer than SECONDS.
    """
    command = [sys.executable, "-m", __name__, name, device]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=True)
        return frozenset(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError):
        return frozenset()


def probed(checkpoint: Callable[..., Any], device: str) -> list[str]:
    """The same for a callable in this process."""

    def raises(function: Callable[..., Any], **options: Any) -> bool:
        try:
            checkpoint(function, torch.ones(2, device=device, requires_grad=True), **options)
        except Exception:  # noqa: BLE001 - whatever it raises, it does not take this
            return True
        return False

    if raises(torch.Tensor.sin):
        return []
    scale = torch.ones(2, device=device)
    found = [KEYWORDS] if raises(lambda x, scale: x * scale, scale=scale) else []
    return found + [name for name, default in OPTIONS.items() if raises(lambda x: x.sin(), **{name: default})]


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(probed(impls.find(sys.argv[1]).checkpoint, sys.argv[2]))}\n")
