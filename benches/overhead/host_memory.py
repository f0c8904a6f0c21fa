"""Bytes of host memory that a checkpoint takes, whether Python or C++ allocates them, as counted by glibc's allocator.

Python's own allocator takes memory in arenas, which would hide what is in them; so this is measured in a process of its own, in
which Python allocates by malloc, too. That process runs without glibc's caches of freed memory for each thread: what is in them
counts as allocated, which made the same program differ by kilobytes in two runs. A graph whose saved tensors are all dropped
takes memory as well: what a checkpoint has beyond that graph is its own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benches.overhead.chain import Checkpoint, Function, available, chain, theirs

ROOT = Path(__file__).parents[2]
REPEATS = 5


class UnmeasurableError(RuntimeError):
    """The C library does not say how many bytes are allocated."""


class _AllocatedBytes(ctypes.Structure):
    """What mallinfo2 returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]  # fmt: skip


def allocated_bytes() -> Callable[[], int]:
    """The function that says how many bytes are allocated by malloc. Raises UnmeasurableError without glibc 2.33 or later."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        raise UnmeasurableError("host memory is counted by mallinfo2, which this C library lacks; glibc has it since 2.33")
    mallinfo.restype = _AllocatedBytes

    def allocated() -> int:
        gc.collect()
        found = mallinfo()
        return int(found.uordblks + found.hblkhd)

    return allocated


def measure_in_process_of_its_own(length: int, passes: int) -> dict[str, dict[str, float]]:
    """As ``measure``, in a new process. Raises UnmeasurableError as ``allocated_bytes`` does."""
    allocated_bytes()
    command = [sys.executable, "-m", "benches.overhead.host_memory", str(length), str(passes)]
    tunables = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.tcache_count=0")))
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": tunables}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"host memory could not be measured, status {run.returncode}: {run.stderr[-2000:]}")
    found: dict[str, dict[str, float]] = json.loads(run.stdout)
    return found


def measure(length: int, passes: int) -> dict[str, dict[str, float]]:
    """By checkpoint, PyTorch's as "torch" among them: bytes for each "saved" tensor, and what a retained backward "left"."""
    torch.set_num_threads(1)
    checkpoints = {**available()[0], "torch": theirs}
    allocated = allocated_bytes()
    graph = _after_forward(_drop_saved, length, allocated)
    return {
        name: {
            "saved": (_after_forward(one, length, allocated) - graph) / length,
            "left": _left_by_backward(one, passes, allocated) / passes,
        }
        for name, one in checkpoints.items()
    }


def _drop_saved(function: Function, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda tensor: None, lambda _: None):  # type: ignore[arg-type, return-value]
        return function(x)


def _after_forward(checkpoint: Checkpoint, length: int, allocated: Callable[[], int]) -> float:
    function, x = chain(length), torch.ones(4, requires_grad=True)

    def taken() -> int:
        before = allocated()
        y: Any = checkpoint(function, x)
        found = allocated() - before
        del y
        return found

    taken()  # what is made once only
    return statistics.median(taken() for _ in range(REPEATS))


def _left_by_backward(checkpoint: Checkpoint, passes: int, allocated: Callable[[], int]) -> int:
    y, ones = checkpoint(chain(10), torch.ones(4, requires_grad=True)), torch.ones(4)

    def backward(times: int) -> None:
        for _ in range(times):
            y.backward(ones, retain_graph=True)

    backward(passes)  # what is made once only, and what allocators keep in reserve
    before = allocated()
    backward(passes)
    return allocated() - before


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))  # noqa: T201 - which the process that started this one reads
