"""FairScale's OffloadModel, as it is; judged with ``--impl fairscale-offload --device cuda``.

FairScale 0.4.13 installs from its source archive with ``pip install --no-build-isolation``. Without CUDA every law is refused
with an error that says so.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from impls.implementation import Implementation


def offload_model(
    model: Any,
    device: torch.device | str,
    offload_device: torch.device | str = torch.device("cpu"),  # noqa: B008 - the signature is given
    num_slices: int = 3,
    checkpoint_activation: bool = False,
    num_microbatches: int = 1,
) -> nn.Module:
    """FairScale's OffloadModel; a list becomes the nn.Sequential that it asks for, names become devices.

    Raises RuntimeError where FairScale or CUDA is missing, or ``device`` is not a CUDA device, since FairScale computes
    on CUDA whatever it is told. What the other arguments are is left to FairScale to check.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise RuntimeError(f"FairScale's OffloadModel computes on CUDA alone; device is {str(device)!r}: use --device cuda")
    try:
        fairscale = importlib.import_module("fairscale.experimental.nn.offload")
    except ImportError as error:
        raise RuntimeError(
            f"FairScale cannot be imported ({error}); install fairscale 0.4.13 from its source archive with "
            "pip install --no-build-isolation"
        ) from error
    return fairscale.OffloadModel(
        model=nn.Sequential(*model) if isinstance(model, list | tuple) else model,
        device=torch.device(device),
        offload_device=torch.device(offload_device),
        num_slices=num_slices,
        checkpoint_activation=checkpoint_activation,
        num_microbatches=num_microbatches,
    )


# Never run so far: no machine with CUDA was at hand. So nothing is declared in known, and a run will show what it breaks;
# its source leads to expect that of dropout, microbatches, outputs of one column, and forwards that overlap.
IMPLEMENTATION = Implementation(
    name="fairscale-offload",
    kind="offload",
    provides=offload_model,
    summary="FairScale's OffloadModel (0.4.13)",
    source="https://github.com/facebookresearch/fairscale, fairscale/experimental/nn/offload.py",
)
