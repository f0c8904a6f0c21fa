"""What a region is called: by the module that it runs, the segment of a sequential, or the function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.utils.checkpoint
from torch import nn

Key = tuple[int, ...]  # of a region: the place of its call among those of its parent, after the parent's own key
_OF_CLOSURES = frozenset({"<locals>", "<lambda>"})  # parts of the qualified name of a function that is defined in another
_CALLS = "forward", "__call__", nn.Module.__call__.__name__  # methods that run a whole module
_SEGMENT = "checkpoint_sequential.<locals>.run_function.<locals>.forward"  # the function of a segment of PyTorch's
_OF_SEGMENT = frozenset({"start", "end", "functions"})  # variables that it has


class RegionNames:
    """Names of the regions of a model. Closures that share a name are told apart by their number in a step."""

    def __init__(self, model: nn.Module) -> None:
        named = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self.modules = {id(module): name for module, name in named.items()}
        self.forwards = {id(own): name for module, name in named.items() if (own := vars(module).get("forward")) is not None}
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the closures of the step before."""
        self.closures: dict[str, dict[Key, int]] = {}  # by the name that they share, regions and their numbers

    def add_forward(self, forward: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The forward, which takes the place of that of the module of this name."""
        self.forwards[id(forward)] = name
        return forward

    def of(self, function: Any, key: Key, line: str) -> str:
        """The name of a region that runs a function, and is called at this line."""
        if (segment := _segment(function)) is not None:
            return self._of_segment(*segment, key, line)
        name, is_closure = self._of_function(function)
        return self._told_apart(name, key) if is_closure else name

    def _of_function(self, function: Any) -> tuple[str, bool]:
        """The name of the module that is run, with the method if that is another than forward, else the function's.

        And whether the function is a closure, of which there may be several of one name.
        """
        while isinstance(function, functools.partial):
            if id(function) in self.forwards:
                return self.forwards[id(function)], False
            if function.args and (owner := self.modules.get(id(function.args[0]))) is not None:
                return self._of_function_with(function.func, function.args[0], owner)
            function = function.func
        if isinstance(function, nn.Module):
            return self.modules.get(id(function), type(function).__name__), False
        if id(function) in self.forwards:  # an attribute of the module
            return self.forwards[id(function)], False
        owner, method = self.modules.get(id(getattr(function, "__self__", None))), getattr(function, "__name__", "")
        if owner is not None:
            return owner if method in _CALLS else f"{owner}.{method}", False
        attribute = "__name__" if inspect.isbuiltin(function) else "__qualname__"  # which is _VariableFunctionsClass.sin
        name, code = str(getattr(function, attribute, type(function).__name__)), getattr(function, "__code__", None)
        if _OF_CLOSURES.isdisjoint(name.split(".")):
            return name, False
        return name if code is None else f"{name} at {Path(code.co_filename).name}:{code.co_firstlineno}", True

    def _of_function_with(self, function: Any, module: nn.Module, owner: str) -> tuple[str, bool]:
        """The name of a function that is passed a module: the module's, if it is a method that runs it, as in transformers."""
        method = getattr(function, "__name__", "")
        if getattr(type(module), method, None) is function:
            return owner if method in _CALLS else f"{owner}.{method}", False
        name, is_closure = self._of_function(function)
        return f"{name} of {owner}", is_closure

    def _told_apart(self, name: str, key: Key) -> str:
        """The name of a closure, with a number if another closure of that name came before."""
        numbers = self.closures.setdefault(name, {})
        number = numbers.setdefault(key, len(numbers) + 1)
        return name if number == 1 else f"{name} ({number})"

    def _of_segment(self, number: int, functions: Sequence[Any], key: Key, line: str) -> str:
        """Of a segment of ``checkpoint_sequential``: its module's name, or its number and what is first and last in it."""
        (first, one_is_closure), (last, other_is_closure) = map(self._of_function, (functions[0], functions[-1]))
        if len(functions) == 1 and isinstance(functions[0], nn.Module):
            return first
        told = f"segment {number} ({first}" + (f" to {last})" if len(functions) > 1 else ")")
        if not all(isinstance(one, nn.Module) for one in functions):
            told = f"{told} at {Path(line).name}"  # functions may have the same names in other calls
        return self._told_apart(told, key) if one_is_closure or other_is_closure else told


def _segment(function: Any) -> tuple[int, Sequence[Any]] | None:
    """The number, from 1 on, and the functions of a segment of PyTorch's ``checkpoint_sequential``; None if it is none."""
    code = getattr(function, "__code__", None)
    if code is None or (code.co_filename, code.co_qualname) != (torch.utils.checkpoint.__file__, _SEGMENT):
        return None
    found = inspect.getclosurevars(function).nonlocals
    if not found.keys() >= _OF_SEGMENT:  # another release of torch
        return None
    start, end = found["start"], found["end"]
    return start // (end - start + 1) + 1, [found["functions"][place] for place in range(start, end + 1)]
