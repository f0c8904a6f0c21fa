"""Modules by name: those that the user's globs match, and the largest ones, for a message."""

from __future__ import annotations

from collections.abc import Iterable, Set
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class NoRegions(ValueError):
    """The model has no region."""


def matching(model: nn.Module, globs: tuple[str, ...]) -> list[str]:
    """The modules that match a glob, without those inside another. Raises NoRegions if a glob matches none.

    A module that has several names matches by any of them, and is named by its first.
    """
    first_names = {module: name for name, module in model.named_modules() if name}
    names = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if module in first_names]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name, _ in names):
            raise NoRegions(f"regions: {glob!r} matches no module; {largest_modules(model)}")
    found = {first_names[module] for name, module in names if any(fnmatchcase(name, glob) for glob in globs)}
    return _outermost(name for name in first_names.values() if name in found)


def uncalled(model: nn.Module, globs: tuple[str, ...], called: Set[str]) -> dict[str, tuple[str, ...]]:
    """By glob, the matching modules that are in no region: neither they nor a matching module around them is in ``called``."""
    regions = [name for name in matching(model, globs) if name in called]
    found: dict[str, tuple[str, ...]] = {}
    for glob in globs:
        names = matching(model, (glob,))
        if missing := tuple(name for name in names if not any(f"{name}.".startswith(f"{one}.") for one in regions)):
            found[glob] = missing
    return found


def is_in_scripted(model: nn.Module, name: str) -> bool:
    """Whether a module is inside one that ``torch.jit`` traced or scripted, so that Python does not call it."""
    modules = model.named_modules()
    return any(
        isinstance(one, torch.jit.ScriptModule) and f"{name}.".startswith(f"{of}." if of else "")
        for of, one in modules
        if of != name
    )


def _outermost(names: Iterable[str]) -> list[str]:
    """Names of modules, without those inside another; outer ones come first."""
    found: list[str] = []
    for name in names:
        if not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return found


def largest_modules(model: nn.Module, count: int = 10) -> str:
    """The modules with most parameters, for a message."""
    sizes = {
        name: sum(0 if is_lazy(one) else one.numel() for one in module.parameters())
        for name, module in model.named_modules()
        if name
    }
    if not sizes:
        return "the model has no modules inside it"
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:count]
    return f"its largest modules: {', '.join(f'{name} ({size:,} parameters)' for name, size in largest)}"
