"""Faults of what takes the nested checkpoint's place in a graph, which laws of the family compiled must catch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._functorch import config
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from conformance.mutants.mutant import Copy, mutant


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_budget() -> bool:
    return bool(config.activation_memory_budget < 1)


def _tensor_by_tensor(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """A value with its tensors that require grad changed."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.requires_grad else value
    return tuple(_tensor_by_tensor(change, one) for one in value) if type(value) is tuple else value


def _change_gradient(copy: Copy, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What a traced region returns is changed in a way that keeps its values."""
    copy.change_result("compiled", "trace", lambda value, *_, **__: _tensor_by_tensor(change, value))


@mutant("compiled", "compiled", "compiled_regions_equal_plain")
def detaches_what_is_passed(copy: Copy) -> None:
    """A traced region is passed tensors without their history."""
    copy.call_instead(
        "compiled",
        "trace",
        lambda there, function, args, *rest, **options: there(function, tuple(map(_detached, args)), *rest, **options),
    )


@mutant("compiled", "compiled", "compiled_regions_take_what_is_claimed", profile="long")
def detaches_what_is_passed_by_keyword(copy: Copy) -> None:
    """A traced region is passed tensors by keyword without their history."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        return there(function, args, {name: _detached(one) for name, one in kwargs.items()}, *rest, **options)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_regions_called_again")
def bakes_in_the_first_batch(copy: Copy) -> None:
    """What a traced region returns is right for as many rows as the first call had, and off in proportion for others."""
    first: list[int] = []

    def trace(there: Any, function: Any, args: Any, *rest: Any, **options: Any) -> Any:
        rows = args[0].shape[0]
        if not first:
            first.append(rows)
        return there(function, args, *rest, **options) * (rows / first[0])

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "regions_compiled_by_inductor")
def is_a_little_off(copy: Copy) -> None:
    """What a traced region returns is larger by a ten thousandth."""
    copy.change_result("compiled", "trace", lambda value, *_, **__: _tensor_by_tensor(lambda y: y * 1.0001, value))


@mutant("compiled", "compiled", "exported_regions_equal_plain")
def exports_without_grad_mode(copy: Copy) -> None:
    """An exported region has plain's value and no gradient."""

    def trace(there: Any, *args: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not torch.compiler.is_exporting()):
            return there(*args, **options)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "regions_exported_by_dynamo_equal_plain")
def exports_nothing_of_a_region(copy: Copy) -> None:
    """An exported region returns what it is passed; a compiled one runs."""

    def trace(there: Any, function: Any, args: Any, *rest: Any, **options: Any) -> Any:
        return args[0] if torch.compiler.is_exporting() else there(function, args, *rest, **options)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "masks_of_compiled_regions_are_replayed")
def draws_anew_for_the_gradient(copy: Copy) -> None:
    """The value of a traced region is that of one run, and its gradient that of another, which draws other numbers."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        value, again = function(*args, **kwargs).detach(), there(function, args, kwargs, *rest, **options)
        return value + (again - again.detach())

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "masks_of_regions_within_a_memory_budget")
def draws_anew_within_a_budget(copy: Copy) -> None:
    """If the activation memory budget is below 1, the value of a traced region is that of another run than its gradient."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        if not _has_budget():
            return there(function, args, kwargs, *rest, **options)
        value, again = function(*args, **kwargs).detach(), there(function, args, kwargs, *rest, **options)
        return value + (again - again.detach())

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "operators_of_the_first_run_alone")
def runs_first_and_differentiates_another_run(copy: Copy) -> None:
    """A traced region runs outside of what the compiler watches first, and its gradient is that of a second run."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        value, again = function(*args, **kwargs).detach(), there(function, args, kwargs, *rest, **options)
        return value + (again - again.detach())

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "kinds_of_regions_compiled_by_inductor")
def differentiates_no_inner_region(copy: Copy) -> None:
    """A traced region inside of another has no gradient."""
    depth: list[int] = []

    def trace(there: Any, *args: Any, **options: Any) -> Any:
        depth.append(len(depth))
        value = there(*args, **options)
        depth.pop()
        return _tensor_by_tensor(torch.Tensor.detach, value) if depth else value

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_regions_are_one_graph")
def breaks_the_graph(copy: Copy) -> None:
    """A region is not traced: the graph ends before it."""
    copy.call_before("compiled", "trace", lambda *_, **__: torch._dynamo.graph_break())


@mutant("compiled", "compiled", "compiled_regions_save_what_they_are_passed")
def keeps_everything(copy: Copy) -> None:
    """A traced region is no region: its function is called."""
    copy.replace("compiled", "trace", lambda function, args, kwargs, *_, **__: function(*args, **kwargs))


@mutant("compiled", "compiled", "compiled_regions_are_recomputed_once")
def keeps_results_of_exp(copy: Copy) -> None:
    """A traced region without a policy has one that keeps results of exp."""
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.exp.default])

    def trace(there: Any, function: Any, args: Any, kwargs: Any, preserve: Any, context_fn: Any = None, *rest: Any) -> Any:
        return there(function, args, kwargs, preserve, context_fn or contexts, *rest)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "policies_keep_what_they_say_when_compiled")
def drops_the_policy(copy: Copy) -> None:
    """A traced region recomputes all, whatever context_fn says."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, preserve: Any, context_fn: Any = None, *rest: Any) -> Any:
        return there(function, args, kwargs, preserve, None, *rest)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "options_of_compiled_regions_are_kept_or_refused", profile="long")
def ignores_that_nothing_is_replayed(copy: Copy) -> None:
    """A traced region replays random numbers although preserve_rng_state is False."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, preserve: Any, *rest: Any, **options: Any) -> Any:
        return there(function, args, kwargs, True, *rest, **options)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_regions_are_one_graph", profile="default")
def compiles_anew_for_each_call(copy: Copy) -> None:
    """A traced region reads how often it was called, so that each call is compiled anew."""
    calls: list[int] = []

    def trace(there: Any, function: Any, args: Any, *rest: Any, **options: Any) -> Any:
        calls.append(len(calls))
        return there(function, args, *rest, **options)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_regions_that_change_tensors")
def changes_buffers_twice(copy: Copy) -> None:
    """A traced region runs its function a second time, as a recomputation does, and keeps what that changes."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        value = there(function, args, kwargs, *rest, **options)
        function(*args, **kwargs)
        return value

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_inside_or_around")
def doubles_the_gradient(copy: Copy) -> None:
    """The gradient of a traced region is twice what it should be."""
    _change_gradient(copy, lambda y: 2 * y - y.detach())


@mutant("compiled", "compiled", "graph_breaks_change_no_number", profile="long")
def halves_the_gradient(copy: Copy) -> None:
    """The gradient of a traced region is half of what it should be."""
    _change_gradient(copy, lambda y: (y + y.detach()) / 2)


@mutant("compiled", "compiled", "hooks_around_compiled_regions")
def passes_gradients_straight_through(copy: Copy) -> None:
    """A traced region saves nothing, so that hooks around it are never called, and passes its gradient on as it is."""

    def trace(there: Any, function: Any, args: Any, *rest: Any, **options: Any) -> Any:
        value = there(function, tuple(map(_detached, args)), *rest, **options)
        return value.detach() + (args[0] - args[0].detach())

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_regions_that_share_a_weight")
def differentiates_every_other_region(copy: Copy) -> None:
    """Of the regions that are traced, the second, fourth and so on have no gradient."""
    calls: list[int] = []

    def trace(there: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(calls))
        value = there(*args, **options)
        return _tensor_by_tensor(torch.Tensor.detach, value) if len(calls) % 2 == 0 else value

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "less_budget_saves_no_more")
def keeps_all_within_a_budget(copy: Copy) -> None:
    """A traced region has a policy that keeps all if the activation memory budget is below 1: it saves more than without."""
    aten = torch.ops.aten
    contexts = functools.partial(create_selective_checkpoint_contexts, [aten.mm.default, aten.sin.default, aten.exp.default])

    def trace(there: Any, function: Any, args: Any, kwargs: Any, preserve: Any, context_fn: Any = None, *rest: Any) -> Any:
        return there(function, args, kwargs, preserve, contexts if _has_budget() else context_fn, *rest)

    copy.call_instead("compiled", "trace", trace)


@mutant("compiled", "compiled", "compiled_autograd_changes_no_number")
def quarters_the_gradient(copy: Copy) -> None:
    """The gradient of a traced region is a quarter of what it should be."""
    _change_gradient(copy, lambda y: (y + 3 * y.detach()) / 4)


@mutant("compiled", "compiled", "operators_in_place_under_a_compiled_policy")
def loses_the_gradient_under_a_policy(copy: Copy) -> None:
    """A traced region with a policy is passed tensors without their history."""

    def trace(there: Any, function: Any, args: Any, kwargs: Any, preserve: Any, context_fn: Any = None, *rest: Any) -> Any:
        return there(function, args if context_fn is None else tuple(map(_detached, args)), kwargs, preserve, context_fn, *rest)

    copy.call_instead("compiled", "trace", trace)


@mutant("nested.region", "compiled", "compiled_autograd_over_eager_regions", profile="default")
def traces_what_unpacks(copy: Copy) -> None:
    """Compiled autograd may trace the hook that unpacks."""
    copy.wrap("nested.region", "Region.unpack", lambda there: FunctionType(there.__code__.replace(), there.__globals__))
