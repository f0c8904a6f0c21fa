"""What of a model and of the process is looked at around each run of a region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from reprise.model_check.reachable.walk import Known
from reprise.model_check.regions import RegionRun

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = "_backward_hooks", "_post_accumulate_grad_hooks"


@dataclass(frozen=True)
class WatchedModel:
    """A model's modules and parameters, looked up once: regions may run hundreds of times."""

    modules: Mapping[str, nn.Module]
    parameters: tuple[nn.Parameter, ...]
    known: Known

    @classmethod
    def of(cls, model: nn.Module) -> WatchedModel:
        return cls(dict(model.named_modules()), tuple(model.parameters()), Known.of(model))

    def training(self) -> list[bool]:
        """Whether each module is in train()."""
        return [module.training for module in self.modules.values()]

    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Those that modules have now, by name; to ask the model for them takes as long as an operator for each module."""
        found = {(name, key): one for name, module in self.modules.items() for key, one in _own_buffers(module)}
        return {f"{name}.{key}" if name else key: one for (name, key), one in found.items()}

    def hooks(self, one: RegionRun) -> int:
        """How many hooks modules, parameters and the region's arguments have."""
        tensors = (*self.parameters, *(leaf for leaf in tree_leaves(one.arguments) if isinstance(leaf, torch.Tensor)))
        of_modules = sum(len(vars(module).get(name) or ()) for module in self.modules.values() for name in _HOOKS)
        return of_modules + sum(len(getattr(one, name, None) or ()) for one in tensors for name in _HOOKS_OF_TENSORS)


def _own_buffers(module: nn.Module) -> Iterable[tuple[str, torch.Tensor | None]]:
    own = vars(module).get("_buffers")  # a scripted module has none
    return module.named_buffers(recurse=False) if own is None else own.items()


def hash_of_numpy_state() -> int:
    """A hash of the state of the generator that all of numpy shares."""
    _, keys, *rest = np.random.get_state()
    return hash((np.asarray(keys).tobytes(), *rest))
