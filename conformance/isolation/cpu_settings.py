"""Which kernels a process computes with: the instructions that torch, MKL and oneDNN may use, and on how many threads.

The suite runs it as ``python -m conformance.isolation.cpu_settings``, which prints the kernels of that process as JSON. A
process that judges calls :func:`hold`, so that workers and sandboxes have the kernels that the environment asks for, or end.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

VARIABLE = "REPRISE_KERNELS"


@dataclass(frozen=True)
class Kernels:
    """What selects kernels: torch's CPU capability, MKL's code for its instruction set, threads, oneDNN.

    MKL's number is 0 on processors that are not Intel's, 3 for SSE4.2, 5 for AVX2, more for AVX-512; None if there is no MKL,
    or one that does not say.
    """

    capability: str
    mkl: int | None
    threads: int
    onednn: bool


def present() -> Kernels:
    """The kernels of this process."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Kernels(capability, _mkl(), torch.get_num_threads(), bool(torch.backends.mkldnn.enabled))


def _mkl() -> int | None:
    """The number by which MKL chooses kernels, from a function of its own, as no public one returns it."""
    try:
        return int(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_serv_cpu_detect())
    except (OSError, AttributeError):
        return None


def told(environment: Mapping[str, str]) -> Mapping[str, object]:
    """The kernel settings in the environment; empty means one thread and the processor's own kernels."""
    return json.loads(environment.get(VARIABLE, "{}"))


def hold() -> None:
    """Apply the settings of the environment, one thread without any. Raises RuntimeError for a setting without effect."""
    said = told(os.environ)
    torch.set_num_threads(int(str(said.get("threads", 1))))  # tensors are tiny, and other processes need the other cores
    torch.backends.mkldnn.set_flags(bool(said.get("onednn", torch.backends.mkldnn.enabled)))
    found = asdict(present())
    if other := {name: found[name] for name in said if found[name] != said[name]}:
        raise RuntimeError(f"{VARIABLE} is {dict(said)}; this process has {other}: a setting did not reach it")


def main() -> int:
    """Apply the settings, run one oneDNN kernel so that it logs its instruction set, and print the settings as JSON."""
    hold()
    if torch.backends.mkldnn.is_available():
        torch.ones(2, 2).to_mkldnn().to_dense()
    sys.stdout.write(json.dumps(asdict(present())) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
