"""A model cut into slices, and the models that cannot be cut."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Chain(nn.Module):
    """Consecutive modules under the names that they have in the model; the first gets all arguments, the others one value.

    Forward runs the first ``count`` of them, and ``under_way`` is the place of the one that it is in.
    """

    def __init__(self, modules: dict[str, nn.Module], count: int | None = None) -> None:
        super().__init__()
        self._modules.update(modules)
        self.count = len(modules) if count is None else count
        self.under_way = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first, *others = list(self._modules.values())[: self.count]
        assert first is not None
        self.under_way = 0
        value = first(*args, **kwargs)
        for self.under_way, module in enumerate(others, 1):
            assert module is not None
            value = module(value)
        return value

    def again(self, *, as_far_as_it_is: bool) -> Chain:
        """Another run of the same modules: of all, or up to the one that forward is in, that one included.

        It has them all, since one that runs may use a later one that it has a reference to.
        """
        return Chain(dict(self._modules), self.under_way + 1 if as_far_as_it_is else None)  # type: ignore[arg-type]

    __call__ = forward  # the model has no such module: hooks that are registered for all modules are not to see it


def slices(counts: Sequence[int], num_slices: int) -> tuple[tuple[int, ...], ...]:
    """Indices of the modules in each of ``num_slices`` slices, for modules that have ``counts`` parameters, in order.

    A slice aims at total // num_slices parameters: if it has any, and the next module would take it beyond that, a new slice
    begins, as long as one is left. The last slices may be empty. Raises ValueError when num_slices is below 1. Source:
    FairScale's OffloadModel.
    """
    if num_slices < 1:
        raise ValueError(f"num_slices is {num_slices}; it must be 1 or more")
    share = sum(counts) // num_slices
    cut: list[list[int]] = [[]]
    held = 0
    for index, count in enumerate(counts):
        if held and held + count > share and len(cut) < num_slices:
            cut.append([])
            held = 0
        cut[-1].append(index)
        held += count
    return tuple(map(tuple, [*cut, *([] for _ in range(num_slices - len(cut)))]))


# Methods of a model that say how it is made or shown, so that nothing is lost with them.
_MAY_BE_OWN = frozenset(
    {"__init__", "__new__", "__init_subclass__", "__repr__", "__str__", "extra_repr", "_get_name", "__dir__"}
)


def children(model: Any) -> dict[str, nn.Module]:
    """The modules that ``model`` runs one after the other, by name.

    Raises TypeError for anything but an nn.Sequential, or a list, tuple or ModuleList of modules, or for one that has methods
    of its own in place of torch's; ValueError for one that is empty, that has tensors or hooks beside its modules, or
    parameters without a shape.
    """
    if isinstance(model, nn.Sequential):
        named = dict(model._modules)
    elif isinstance(model, nn.ModuleList | list | tuple):
        named = {str(index): module for index, module in enumerate(model)}
    else:
        accepted = "it must be an nn.Sequential, or a list, tuple or nn.ModuleList of modules"
        raise TypeError(f"model is of type {type(model).__name__}; {accepted}")
    if not named:
        raise ValueError("model is empty; it must have a module at least")
    if isinstance(model, nn.Module):
        _refuse_methods(model, nn.Sequential if isinstance(model, nn.Sequential) else nn.ModuleList)
        _refuse_extras(model)
    for name, module in named.items():
        _refuse_module(name, module)
    return named


def _refuse_methods(model: nn.Module, kind: type[nn.Module]) -> None:
    """The OffloadModel has torch's methods. Others that a program may call by torch's names would be lost."""
    own = type(model)
    for name in dir(kind):
        if name in _MAY_BE_OWN or not callable(getattr(kind, name)):
            continue
        if name in vars(model) or inspect.getattr_static(own, name) is not inspect.getattr_static(kind, name):
            raise TypeError(
                f"model is a {own.__name__} with a {name}() of its own, which would be lost; it must be an nn.Sequential or "
                "nn.ModuleList that has no methods of its own in place of torch's. Or pass a list of its modules"
            )


def _refuse_extras(model: nn.Module) -> None:
    if model._parameters or model._buffers:
        names = sorted([*model._parameters, *model._buffers])
        raise ValueError(f"model has parameters or buffers of its own ({', '.join(names)}); they must belong to its modules")
    hooks = [name for name, value in vars(model).items() if name.endswith("_hooks") and value]
    if hooks:
        raise ValueError(
            f"model has hooks of its own ({', '.join(hooks)}), which would not run; it must have none. Register them on the "
            "OffloadModel or on its modules"
        )


def _refuse_module(name: str, module: Any) -> None:
    if isinstance(module, torch.jit.ScriptModule) or not isinstance(module, nn.Module):
        raise TypeError(
            f"module {name!r} of model is a {type(module).__name__}; it must be an nn.Module, and not a scripted one"
        )
    for inner, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(f"parameter {name}.{inner} of model has no shape yet; run the model once before it is cut")


def refuse_shared(cut: Sequence[Sequence[str]], named: dict[str, nn.Module]) -> None:
    """Raise ValueError when a module, or one inside it, belongs to two slices."""
    owner: dict[nn.Module, tuple[int, str]] = {}
    for number, names in enumerate(cut):
        for name in names:
            for inner, module in named[name].named_modules(prefix=name):
                before, where = owner.setdefault(module, (number, inner))
                if before != number:
                    raise ValueError(
                        f"model has one {type(module).__name__} as {where!r} in slice {before} and as {inner!r} in slice "
                        f"{number}; a module must belong to one slice. Share its parameters between two modules instead"
                    )
