"""Implementations with one fault each: copies of nested, native, graph or offload, with one function, class or value replaced.

A mutant names the law that must catch it. It replaces something that has a name: a function, method, hook or class attribute.
It is an error if there is no such name, or if it is replaced by itself, so a mutant is never silently the right implementation.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from conformance.mutants import faults
from impls import Implementation
from impls.nested.user_hooks import POLICIES_ASK_SINCE
from impls.torch_private import POLICIES_ASK_FOR_HOOKS

# The implementations that faults are put into, in the order of their laws. Each owns the modules of its package.
ORIGINALS = ("nested", "native", "graph", "offload")
SHARED = "impls.implementation"  # what an implementation says of itself, which the suite knows by its classes
# What a recomputation restores, for all implementations. A fault in it is one of nested's.
STATE = "impls.state"

# Laws that no fault of ours can break, each with its reason.
UNBREAKABLE = {
    "a_freed_graph_is_refused_under_hooks": "autograd refuses a freed graph before any hook is asked",
    "hooks_belong_to_a_thread": "torch keeps the stack of hooks, one a thread",
    "disabling_belongs_to_a_thread": "torch keeps what disables hooks, one a thread",
    "nodes_are_known_as_such": "the check is of the class that torch's nodes are registered with",
    "scripted_functions_that_save_in_another_order": "nested is declared to diverge here, so no fault changes the verdict",
    "what_a_function_switches_back_on_a_module": "nested is declared to diverge here, so no fault changes the verdict",
    "what_is_drawn_after_what_a_policy_keeps": "nested is declared to diverge here, so no fault changes the verdict",
    "masks_in_graphs_that_are_not_compiled": "nested is declared to diverge here, so no fault changes the verdict",
    "masks_within_a_memory_budget": "nested is declared to diverge here, so no fault changes the verdict",
    "less_budget_peaks_no_higher": "nested is declared to diverge here, so no fault changes the verdict",
    "containers_whose_tensors_are_watched": "nested is declared to diverge here, so no fault changes the verdict",
    "what_is_computed_from_a_tensor_that_is_replaced": "nested is declared to diverge here, so no fault changes the verdict",
    **dict.fromkeys(
        (
            "buffers_that_the_function_replaces",
            "hooks_that_remove_themselves",
            "outputs_that_their_own_region_reaches_are_freed",
            "arguments_overwritten_with_the_output_are_freed",
            "what_a_function_detaches_is_freed",
            "results_that_an_inner_function_keeps_are_freed",
            "gradients_are_no_weights",
            "a_saved_leaf_is_itself",
        ),
        "nested is declared to diverge here, so no fault changes the verdict",
    ),
    **dict.fromkeys(
        (
            "kept_results_that_may_be_changed_and_are_read",
            "kept_results_that_change_where_no_version_tells",
            "higher_order_operators_write_once",
        ),
        "nested is declared to diverge here, so no fault changes the verdict",
    ),
    "weights_cached_around_forward": "nested is declared to diverge here, so no fault changes the verdict",
    "a_buffer_that_is_changed_through_numpy": "offload is declared to diverge here, so no fault changes the verdict",
    "buffers_that_higher_order_operators_write_where_no_version_tells": "offload is declared to diverge here, so no fault "
    "changes the verdict",
    **dict.fromkeys(
        (
            "a_buffer_that_a_module_returns_is_the_buffer",
            "what_a_module_keeps_is_of_the_whole_batch",
            "gradients_of_offloaded_models_are_no_weights",
            "a_saved_leaf_of_an_offloaded_model_is_itself",
        ),
        "offload is declared to diverge here, so no fault changes the verdict",
    ),
    **dict.fromkeys(
        ("gradients_under_hooks_are_no_weights", "a_saved_leaf_is_itself_under_hooks"),
        "graph is declared to diverge here, so no fault changes the verdict",
    ),
    "autocast_casts_a_weight_once": "offload is declared to diverge here, so no fault changes the verdict",
    **dict.fromkeys(
        ("the_device_is_not_started_by_a_region_on_the_cpu", "a_device_that_is_started_inside"),
        "it takes a device that is not started yet: the simulated one always is",
    ),
    **dict.fromkeys(
        (
            "a_captured_graph_replays_regions",
            "capturing_a_region_is_right_or_refused",
            "regions_compiled_with_reduced_overhead",
        ),
        "it takes CUDA graphs, and the simulated device has none",
    ),
    **dict.fromkeys(
        ()
        if POLICIES_ASK_FOR_HOOKS
        else ("a_policy_takes_no_hooks_for_the_users", "hooks_get_what_a_policy_keeps_if_asked_to"),
        f"policies ask for no hooks before torch {POLICIES_ASK_SINCE}",
    ),
    "generators_of_several_devices_are_replayed": "it takes two devices with generators of their own, and one is simulated",
}


class Copy:
    """The modules of one implementation, run once more for one mutant, so that a fault in them is in nobody else's.

    ``copy["nested.region"]`` is the copy of ``impls.nested.region``. Modules that the implementation shares with others are
    not copied, and are not to be changed: KeyError.
    """

    def __init__(self, own: Mapping[str, ModuleType]) -> None:
        self._own = own

    def __getitem__(self, part: str) -> Any:
        if part not in self._own:
            raise KeyError(f"{part} is not copied for this mutant; there are {', '.join(self._own)}")
        return self._own[part]

    def wrap(self, part: str, path: str, make: Callable[[Any], Any], *, only_here: bool = False) -> None:
        """Put ``make(what is there)`` in the place of a function, class or value, by its path within a module.

        A method, as ``"Region.unpack"``, is replaced on its class; what stands in a module is replaced wherever a copied
        module has imported it, too, or with ``only_here`` in this module alone. A static method stays one.
        Raises AttributeError when the path leads nowhere, ValueError when nothing changes.
        """
        *inside, name = path.split(".")
        holder = functools.reduce(getattr, inside, self[part])
        there = inspect.getattr_static(holder, name)
        static = isinstance(there, staticmethod)
        function = there.__func__ if static else there
        new = make(function)
        if new is function:
            raise ValueError(f"{part}: {path} is replaced by itself")
        for one in [holder] if inside or only_here else self._own.values():
            if inspect.getattr_static(one, name, None) is there:
                setattr(one, name, staticmethod(new) if static else new)

    def replace(self, part: str, path: str, new: Any, *, only_here: bool = False) -> None:
        """Put ``new`` in the place of what is there; see :meth:`wrap`, also for all others."""
        self.wrap(part, path, lambda _: new, only_here=only_here)

    def call_instead(self, part: str, path: str, function: Callable[..., Any], *, only_here: bool = False) -> None:
        """Call ``function(there, *arguments)`` instead of the function that is there."""
        self.wrap(part, path, lambda there: lambda *args, **kwargs: function(there, *args, **kwargs), only_here=only_here)

    def call_before(self, part: str, path: str, function: Callable[..., object]) -> None:
        """Call ``function(*arguments)`` first."""
        self.call_instead(part, path, lambda there, *args, **kwargs: (function(*args, **kwargs), there(*args, **kwargs))[1])

    def call_after(self, part: str, path: str, function: Callable[..., object]) -> None:
        """Call ``function(result, *arguments)`` afterwards, unless there was an error."""

        def both(there: Any, *args: Any, **kwargs: Any) -> Any:
            result = there(*args, **kwargs)
            function(result, *args, **kwargs)
            return result

        self.call_instead(part, path, both)

    def change_result(self, part: str, path: str, change: Callable[..., Any], *, only_here: bool = False) -> None:
        """Return ``change(result, *arguments)``."""

        def changed(there: Any, *args: Any, **kwargs: Any) -> Any:
            return change(there(*args, **kwargs), *args, **kwargs)

        self.call_instead(part, path, changed, only_here=only_here)

    def change_arguments(self, part: str, path: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Let ``change`` change the arguments by name, each of them, in a dict."""

        def changed(there: Any, *args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(there).bind(*args, **kwargs)
            change(given.arguments)
            return there(*given.args, **given.kwargs)

        self.call_instead(part, path, changed)

    def raise_instead(self, part: str, path: str, error: Callable[[], BaseException]) -> None:
        """Raise ``error()``."""

        def failing(*_: Any, **__: Any) -> NoReturn:
            raise error()

        self.replace(part, path, failing)

    def set_before(self, part: str, path: str, **values: Callable[[Any], Any]) -> None:
        """Set attributes of the object before a method of it runs, each to ``value(object)``."""
        self.call_before(part, path, lambda owner, *_, **__: _set(owner, values))

    def set_after(self, part: str, path: str, **values: Callable[[Any], Any]) -> None:
        """Set attributes of the object after a method of it, each to ``value(object)``."""
        self.call_after(part, path, lambda _, owner, *__, **___: _set(owner, values))


@dataclass(frozen=True)
class Mutant:
    """One fault: ``change`` is made to a copy of an implementation; ``law``, which is one of ``family``, catches it.

    ``part`` is the name of the module below ``impls`` where the fault is, such as ``"nested.region"`` or ``"graph.hooks"``;
    whose module it is says which implementation the mutant is one of. ``profile`` names how many cases the law needs. With
    ``ends_process`` the fault is a segmentation fault, in torch 2.13 or later. Raises ValueError when a field is empty or
    ``part`` is no module of an implementation.
    """

    name: str
    family: str
    law: str
    part: str
    change: Callable[[Copy], None]
    what: str
    profile: str = "quick"
    ends_process: bool = False

    def __post_init__(self) -> None:
        for each in ("name", "family", "law", "part", "what"):
            if not getattr(self, each):
                raise ValueError(f"mutant {self.name!r}: {each} is empty; it must not be")
        if self.part not in _owners():
            raise ValueError(f"mutant {self.name!r}: part is {self.part!r}; it must be one of {', '.join(_owners())}")

    @property
    def original(self) -> Implementation:
        """The implementation without the fault."""
        original: Implementation = importlib.import_module(f"impls.{_owners()[self.part]}").IMPLEMENTATION
        return original

    @functools.cached_property
    def implementation(self) -> Implementation:
        """The faulty implementation, which claims all that the original claims."""
        package = f"reprise_mutant_{self.name.replace('-', '_')}"
        owner = _owners()[self.part]
        sys.modules[package] = ModuleType(package)
        copies = {}
        for module, own in modules(owner).items():
            copied = module.replace("impls", package, 1)
            # What has one lock for the process keeps it, unless that is where the fault is.
            anew = own and (not module.startswith(f"{STATE}.") or f"impls.{self.part}" in _reached(module))
            sys.modules[copied] = ModuleType(copied) if anew else importlib.import_module(module)
            if anew:
                copies[module.removeprefix("impls.")] = sys.modules[copied]
                # A package may be one of the modules, and native's source in C++ stands beside one.
                vars(sys.modules[copied]).update(__path__=[], __file__=importlib.import_module(module).__file__)
                text = _renamed(_text(module), package)
                exec(compile(text, f"<{self.name}: {module}>", "exec"), vars(sys.modules[copied]))
        self.change(Copy(copies))
        made = replace(sys.modules[f"{package}.{owner}"].IMPLEMENTATION, name=self.name, source=__name__)
        return replace(made, summary=f"{owner}, but: {self.what}")


def mutant(
    part: str, family: str, law: str, *, profile: str = "quick", ends_process: bool = False
) -> Callable[[Callable[[Copy], None]], Mutant]:
    """A mutant from a function that makes the fault in a copy: its name is the mutant's, its docstring says what is wrong."""

    def made(change: Callable[[Copy], None]) -> Mutant:
        name, what = change.__name__.replace("_", "-"), inspect.getdoc(change) or ""
        return Mutant(name, family, law, part, change, what, profile, ends_process)

    return made


@functools.cache
def mutants() -> tuple[Mutant, ...]:
    """Every mutant there is, by the names of the modules in ``conformance.mutants.faults``."""
    names = sorted(module.name for module in pkgutil.walk_packages(faults.__path__, f"{faults.__name__}."))
    there = [vars(importlib.import_module(name)) for name in names]
    return tuple(value for each in there for value in each.values() if isinstance(value, Mutant))


@functools.cache
def modules(implementation: str) -> dict[str, bool]:
    """The modules of ``impls`` that an implementation consists of, each after those that it imports.

    They map to whether they are its own, which are those of its package, and of ``STATE`` for nested: the others it
    shares with other implementations, and a mutant takes them as they are.
    """
    root = f"impls.{implementation}"
    packages = {root, "impls", STATE, "impls.tensors"} if implementation == "nested" else {root}
    imports: dict[str, list[str]] = {}
    own: dict[str, bool] = {}
    unread = [root]
    while unread:
        name = unread.pop()
        own[name] = name == root or (name.rpartition(".")[0] in packages and name != SHARED)
        imports[name] = _imports(name) if own[name] else []
        unread += [each for each in imports[name] if each not in imports]
    return {name: own[name] for name in graphlib.TopologicalSorter(imports).static_order()}


def _set(owner: Any, values: Mapping[str, Callable[[Any], Any]]) -> None:
    for name, value in values.items():
        setattr(owner, name, value(owner))


@functools.cache
def _reached(module: str) -> frozenset[str]:
    """A module and those that it imports, and that those import."""
    return frozenset({module}).union(*map(_reached, _imports(module)))


@functools.cache
def _owners() -> dict[str, str]:
    """Whose own each part is."""
    return {name.removeprefix("impls."): one for one in ORIGINALS for name, own in modules(one).items() if own}


@functools.cache
def _text(module: str) -> str:
    return Path(str(importlib.import_module(module).__file__)).read_text()


def _imports(module: str) -> list[str]:
    """The modules of ``impls`` that a module imports when it is run, in the order of their names."""
    statements = [node for node in ast.parse(_text(module)).body if isinstance(node, ast.ImportFrom)]
    named = {node.module for node in statements if node.module and node.module.startswith("impls.")}
    inside = {f"{node.module}.{each.name}" for node in statements if node.module in ("impls", STATE) for each in node.names}
    return sorted(named | inside)


def _renamed(text: str, package: str) -> str:
    return re.sub(r"^( *)from impls\b", rf"\1from {package}", text, flags=re.MULTILINE)
