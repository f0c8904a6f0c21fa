"""Faults of the nested checkpoint that laws of the family modules must catch: what a region's callable is."""

from __future__ import annotations

import functools
import inspect
import weakref
from types import MethodType
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import change_restored, recompute_with
from conformance.mutants.mutant import Copy, mutant


def _change_function(copy: Copy, change: Any) -> None:
    """A region is made of ``change(function)`` in place of its function."""
    copy.change_arguments("nested.api", "_run", lambda given: given.update(function=change(given["function"])))


@mutant("nested.api", "modules", "callables_of_every_kind")
def calls_a_partial_without_its_keywords(copy: Copy) -> None:
    """A partial is taken apart, and its keyword arguments are lost."""
    _change_function(copy, lambda it: functools.partial(it.func, *it.args) if isinstance(it, functools.partial) else it)


@mutant("nested.api", "modules", "callables_of_every_kind")
def holds_the_owner_of_a_method_weakly(copy: Copy) -> None:
    """What a bound method is bound to may be gone when it is to be called again."""

    def weakly(function: Any) -> Any:
        if not isinstance(function, MethodType) or isinstance(function.__self__, type | torch.nn.Module):
            return function
        owner, bare = weakref.ref(function.__self__), function.__func__
        return lambda *args, **kwargs: bare(owner(), *args, **kwargs)

    _change_function(copy, weakly)


@mutant("nested.api", "modules", "callables_that_are_not_pythons")
def asks_a_function_for_its_signature(copy: Copy) -> None:
    """Arguments are bound by the signature, which builtins do not have."""
    copy.call_before("nested.api", "_run", lambda function, args, kwargs, *_: inspect.signature(function).bind(*args, **kwargs))


@mutant("nested.api", "modules", "hooks_on_modules_have_their_effect")
def calls_the_forward_of_a_module_itself(copy: Copy) -> None:
    """Of a module, forward is called, and its hooks are not."""
    _change_function(copy, lambda it: it.forward if isinstance(it, torch.nn.Module) else it)


@mutant("nested.region", "modules", "hooks_on_modules_have_their_effect")
def recomputes_past_the_hooks(copy: Copy) -> None:
    """When a module is recomputed, forward alone is called."""
    recompute_with(copy, "function", lambda region, _: getattr(region.function, "forward", region.function))


@mutant("nested.region", "modules", "hooks_on_all_modules_have_their_effect")
def recomputes_without_the_hooks_of_all_modules(copy: Copy) -> None:
    """While a region is recomputed, hooks that are registered for all modules are not called."""

    def recompute(there: Any, *args: Any) -> Any:
        known = torch.nn.modules.module
        registered = [known._global_forward_pre_hooks, known._global_forward_hooks]
        kept = [dict(hooks) for hooks in registered]
        for hooks in registered:
            hooks.clear()
        try:
            return there(*args)
        finally:
            for hooks, before in zip(registered, kept, strict=True):
                hooks.update(before)

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.region", "modules", "weights_that_a_module_computes")
def recomputes_with_cached_parametrizations(copy: Copy) -> None:
    """While a region is recomputed, parametrizations give what they gave when it was recomputed first."""
    cache: dict[Any, Any] = {}

    def recompute(there: Any, *args: Any) -> Any:
        parametrize = torch.nn.utils.parametrize
        with parametrize.cached():
            parametrize._cache.update(cache)
            try:
                return there(*args)
            finally:
                cache.update(parametrize._cache)

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.region", "modules", "a_functional_call_inside_a_region")
def recomputes_with_the_modules_own_weights(copy: Copy) -> None:
    """While a region is recomputed, a functional call takes the weights of the module."""

    def recompute(there: Any, *args: Any) -> Any:
        called = torch.func.functional_call
        torch.func.functional_call = lambda module, _, given, *others, **options: module(*given)
        try:
            return there(*args)
        finally:
            torch.func.functional_call = called

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.inputs", "modules", "fast_weights")
def gives_a_recomputation_detached_results(copy: Copy) -> None:
    """An argument that is the result of another computation comes back as a leaf without a graph."""

    def detached(args: Any, kwargs: Any) -> Any:
        return tuple(one.detach().requires_grad_() if _is_result(one) else one for one in args), kwargs

    change_restored(copy, detached)


def _is_result(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


@mutant("nested.recomputation", "modules", "modules_that_are_given_other_weights")
def takes_any_weights_for_those_of_forward(copy: Copy) -> None:
    """Nobody looks whether a module has other weights than in forward; their versions alone are compared."""
    copy.change_arguments("nested.recomputation", "Recomputation.__init__", lambda given: given.update(origins={}))


@mutant("nested.api", "modules", "a_copied_module_is_checkpointed_as_well")
def copies_decorated_methods_as_the_methods_of_their_class(copy: Copy) -> None:
    """A copy of a decorated method is looked up by its name, whether or not the class has it decorated."""

    def reduce(there: Any, decorated: Any, protocol: Any) -> Any:
        instance = getattr(decorated._function, "__self__", None)
        return (getattr, (instance, "forward")) if instance is not None else there(decorated, protocol)

    copy.call_instead("nested.api", "_Decorated.__reduce_ex__", reduce)


@mutant("nested.api", "modules", "a_lazy_module_is_initialised_by_its_first_call")
def asks_weights_for_their_shapes_before_the_call(copy: Copy) -> None:
    """Before a region begins, the weights of a module that it calls are asked for their shapes."""

    def call(there: Any, function: Any, args: Any, *others: Any) -> Any:
        for weight in function.parameters() if isinstance(function, torch.nn.Module) else ():
            assert weight.shape
        return there(function, args, *others)

    copy.call_instead("nested.api", "_run", call)
