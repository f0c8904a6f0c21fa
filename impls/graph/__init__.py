"""A drop-in for ``torch.autograd.graph`` that keeps autograd's checks and leaks no memory."""

from __future__ import annotations

import sys

import torch

from impls.graph.backward_log import log, logged_backward
from impls.graph.callbacks import queue_callback
from impls.graph.edges import GradientEdge, Node, get_gradient_edge, increment_version
from impls.graph.gradients import register_multi_grad_hook
from impls.graph.hooks import disable_saved_tensors_hooks, saved_tensors_hooks
from impls.graph.mutation import allow_mutation_on_saved_tensors
from impls.graph.newer_torch_names import (
    node_creation_hook,
    region_activation_memory_budget,
    set_override_stale_capture_stream,
    set_warn_on_accumulate_grad_stream_mismatch,
)
from impls.graph.save_on_device import save_on_cpu, saved_on
from impls.implementation import Implementation, optional_capabilities
from impls.known_failures import UNPACKED_UNDER_HOOKS

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "log",
    "logged_backward",
    "node_creation_hook",
    "queue_callback",
    "region_activation_memory_budget",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_on",
    "saved_tensors_hooks",
    "set_override_stale_capture_stream",
    "set_warn_on_accumulate_grad_stream_mismatch",
]

IMPLEMENTATION = Implementation(
    name="graph",
    kind="graph",
    provides=sys.modules[__name__],
    summary="saved-tensor hooks that keep autograd's checks and own no graph, and graph tools",
    source="the public names of torch.autograd.graph; designed anew",
    capabilities=frozenset({"end-of-backward", "logging", "min-bytes"}) | optional_capabilities(torch.autograd.graph),
    known=UNPACKED_UNDER_HOOKS,
)
