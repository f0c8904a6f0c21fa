"""Adapters for implementations that others ship: each imports a package and declares what it claims."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from impls.implementation import Implementation, Kind


@dataclass(frozen=True)
class Peer:
    """An implementation that others ship: its kind, its adapter's module, and what that needs besides torch.

    ``package`` is what is imported and ``distribution`` what is installed; ``device`` is the only type of device on
    which the peer can compute. Each is "" where nothing is needed.
    """

    kind: Kind
    module: str
    package: str = ""
    distribution: str = ""
    device: str = ""

    def runs_on(self, device: str) -> bool:
        """Whether the peer computes on devices of this type."""
        return self.device in ("", torch.device(device).type)

    def load(self) -> Implementation:
        """What the adapter declares. Raises ValueError, which says what to do, where its package cannot be had."""
        if self.package and importlib.util.find_spec(self.package) is None:
            told = f"it needs {self.distribution}, which is not installed here"
            where = "nox -s peers and nox -s compare have environments of their own"
            raise ValueError(f"{told}; {where}, and install it there or say why they cannot")
        try:
            return importlib.import_module(f"impls.peers.{self.module}").IMPLEMENTATION
        except Exception as error:
            raise ValueError(f"importing {self.package or self.module!r} failed: {type(error).__name__}: {error}") from error


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "torch-selective": Peer("checkpoint", "torch_selective"),
        "torch-remat": Peer("checkpoint", "torch_remat", "torch_remat", "torch-remat"),
        "fairscale": Peer("checkpoint", "fairscale_checkpoint", "fairscale", "fairscale"),
        "deepspeed-reentrant": Peer("checkpoint", "deepspeed_reentrant", "deepspeed", "deepspeed"),
        "deepspeed-nonreentrant": Peer("checkpoint", "deepspeed_nonreentrant", "deepspeed", "deepspeed"),
        "megatron-core": Peer("checkpoint", "megatron_core", "megatron", "megatron-core", "cuda"),
        "fairscale-offload": Peer("offload", "fairscale_offload", "fairscale", "fairscale", "cuda"),
    }
)
