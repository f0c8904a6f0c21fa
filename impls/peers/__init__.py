"""Adapters for implementations that others ship: each imports a package and declares what it claims."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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

    def missing(self) -> str:
        """Why the peer cannot be had here, and what to do about it; "" if it can."""
        if not self.package or importlib.util.find_spec(self.package) is not None:
            return ""
        return f"it needs {self.distribution}, which is not installed; nox -s peers installs it, or says why it cannot"

    def load(self) -> Implementation:
        """What the adapter declares. Raises ValueError where it is missing or its package cannot be imported."""
        if reason := self.missing():
            raise ValueError(reason)
        try:
            return importlib.import_module(f"impls.peers.{self.module}").IMPLEMENTATION
        except ImportError as error:
            raise ValueError(f"importing {self.package!r} failed: {type(error).__name__}: {error}") from error


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "torch-selective": Peer("checkpoint", "torch_selective"),
        "torch-compile": Peer("checkpoint", "torch_compile"),
        "torch-remat": Peer("checkpoint", "torch_remat", "torch_remat", "torch-remat"),
        "fairscale": Peer("checkpoint", "fairscale_checkpoint", "fairscale", "fairscale"),
        "deepspeed-reentrant": Peer("checkpoint", "deepspeed_reentrant", "deepspeed", "deepspeed"),
        "deepspeed-nonreentrant": Peer("checkpoint", "deepspeed_nonreentrant", "deepspeed", "deepspeed"),
        "megatron-core": Peer("checkpoint", "megatron_core", "megatron", "megatron-core", "cuda"),
        "fairscale-offload": Peer("offload", "fairscale_offload", "fairscale", "fairscale", "cuda"),
    }
)
