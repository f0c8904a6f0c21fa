"""Every private name of torch that ``reprise check`` calls, under a plain name: what it is for.

If a release of torch lacks one, importing this module raises an ImportError that names both, before a model is run: an error in
the middle of a step would be taken for one of the model. Names that ``impls`` uses, too, are those of ``impls.torch_private``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.modules.lazy
import torch.overrides
import torch.utils._python_dispatch
from torch import Tensor, nn

from impls.torch_private import RELEASES
from impls.torch_private import DeviceContext as DeviceContext
from impls.torch_private import current_graph_task_id as current_graph_task_id
from impls.torch_private import disable_hooks as disable_hooks
from impls.torch_private import dispatch_mode_count as dispatch_mode_count
from impls.torch_private import dispatch_modes as dispatch_modes
from impls.torch_private import enable_hooks as enable_hooks
from impls.torch_private import hooks_disabled_message as hooks_disabled_message
from impls.torch_private import pop_hooks as pop_hooks
from impls.torch_private import push_hooks as push_hooks
from impls.torch_private import top_hooks as top_hooks

try:
    # Modes that a step left on the stacks are taken off; the public way is to leave each one's own context.
    pop_dispatch_mode = torch.utils._python_dispatch._pop_mode
    pop_function_mode = torch._C._pop_torch_function_stack
    function_modes = torch.overrides._get_current_function_mode_stack

    # torch.backends.mkldnn.set_flags sets others with it.
    is_mkldnn_enabled = torch._C._get_mkldnn_enabled
    set_mkldnn_enabled = torch._C._set_mkldnn_enabled

    # Of a backend and a part of it. torch.backends.mkldnn.fp32_precision sets that of all backends.
    fp32_precision = torch._C._get_fp32_precision_getter
    set_fp32_precision = torch._C._set_fp32_precision_setter

    # torch.autograd.set_multithreading_enabled, as a function that can be asked.
    has_backward_threads = torch._C._is_multithreading_enabled
    set_backward_threads = torch._C._set_multithreading_enabled

    # Frames of these codes are calls of modules, and lazy modules that initialize themselves.
    code_of_module_call = nn.Module._call_impl.__code__
    code_of_lazy_initialization = torch.nn.modules.lazy.LazyModuleMixin._infer_parameters.__code__
except AttributeError as error:
    raise ImportError(
        f"torch {torch.__version__} lacks a private name that reprise check uses: {error}. Install a release of {RELEASES}"
    ) from error


def jagged_values(tensor: Any) -> Tensor:
    """The values of a jagged tensor. Its public ``values()`` is an operator, and never ends inside of a dispatch mode."""
    return cast(Tensor, tensor._values)


def jagged_lengths(tensor: Any) -> Tensor | None:
    """How long each row of a jagged tensor is; None if it ends where the next one begins."""
    return cast("Tensor | None", tensor._lengths)


def jagged_dim(tensor: Any) -> int:
    """Along which dimension of its values the rows of a jagged tensor lie."""
    return int(tensor._ragged_idx) - 1


def jagged_offsets(tensor: Any) -> Tensor:
    """Where each row of a jagged tensor begins in its values; its public ``offsets()``, as for ``jagged_values``."""
    return cast(Tensor, tensor._offsets)
