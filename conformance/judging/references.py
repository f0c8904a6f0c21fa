"""What implementations of each kind are compared with: plain, the same names without checkpointing, hooks or offloading."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from impls import GRAPH_NAMES, Kind
from impls.graph.newer_torch_names import FIRST_RELEASES, from_torch
from impls.plain import checkpoint


def _nothing(*_: object, **__: object) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _clone_whatever_is_saved() -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        yield


def _model(model: Any, device: Any, *_: object, **__: object) -> torch.nn.Module:
    """The model itself, as one that runs on ``device``."""
    whole = model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)
    return whole.to(device)


# Hooks that change nothing are left out, and what may be changed later is cloned at once. The rest is torch's own, and laws
# about it say themselves what they expect.
GRAPH = SimpleNamespace(
    **{
        **{name: getattr(torch.autograd.graph, name) for name in GRAPH_NAMES},
        **{name: from_torch(name) for name in FIRST_RELEASES},
        "saved_tensors_hooks": _nothing,
        "save_on_cpu": _nothing,
        "allow_mutation_on_saved_tensors": _clone_whatever_is_saved,
        "logged_backward": _nothing,
        "log": logging.getLogger("conformance.judging.references"),
    }
)
REFERENCES: Mapping[Kind, Any] = MappingProxyType({"checkpoint": checkpoint, "graph": GRAPH, "offload": _model})
