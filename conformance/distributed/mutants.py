"""Copies of nested with one fault each that shows under ranks, and for each law the one that it must catch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor, Replicate

from conformance.distributed.case import COUNTED, HANGS, KEPT
from conformance.distributed.law import FAMILY, LAWS, all_laws
from conformance.distributed.laws.ranks import SWALLOWED
from conformance.judging import causes
from conformance.judging.causes import Cause, Difference
from conformance.judging.verdicts import Verdict
from conformance.mutants.mutant import Copy, Mutant
from conformance.programs.notes import read

Function = Callable[..., Any]
# Laws that nested is declared not to keep, so that no fault of ours changes the verdict: what they must catch is nested itself,
# and what they must not is nested with its regions' functions run once, ``recomputes_nothing``.
BROKEN_BY_NESTED = frozenset(
    {
        "statistics_over_ranks_are_updated_once",
        "regions_that_ranks_recompute_in_another_order",
        "several_fsdp_units_under_a_region_whose_policy_keeps_all",
        "regions_of_other_kinds_that_ranks_recompute_in_another_order",
    }
)
_kept: list[Any] = []  # what a fault holds on to


def _fault(part: str, law: str) -> Callable[[Callable[[Copy], None]], Mutant]:
    """A mutant from a function that makes the fault in a copy; ``law`` is one that catches it."""

    def made(change: Callable[[Copy], None]) -> Mutant:
        name, what = change.__name__.replace("_", "-"), inspect.getdoc(change) or ""
        return Mutant(name, FAMILY, law, part, change, what)

    return made


def _again(copy: Copy, run: Callable[[Function, tuple[Any, ...]], Any]) -> None:
    """Call ``run(function, arguments)`` in place of the function of a region, but for the first time, which is forward's."""

    def change(given: dict[str, Any]) -> None:
        function, calls = given["function"], list[None]()

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            calls.append(None)
            return function(*args, **kwargs) if len(calls) == 1 else run(functools.partial(function, **kwargs), args)

        given["function"] = called

    copy.change_arguments("nested.api", "_run", change)


@_fault("nested.api", "ddp_trains_as_with_plain_regions")
def recomputes_other_inputs_on_one_rank(copy: Copy) -> None:
    """On rank 1 a recomputation computes with inputs that are twice forward's."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        doubled = [one.data for one in args if torch.is_tensor(one) and one.is_floating_point() and dist.get_rank() == 1]
        _scale(doubled, 2.0)  # where they are: another tensor in their place would be refused
        try:
            return function(*args)
        finally:
            _scale(doubled, 0.5)

    _again(copy, run)


def _scale(tensors: list[torch.Tensor], factor: float) -> None:
    with torch.no_grad():
        for one in tensors:
            one.mul_(factor)


@_fault("nested.api", "collectives_inside_regions")
def skips_a_collective_in_recomputation(copy: Copy) -> None:
    """A recomputation sums over no ranks."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        with mock.patch.object(dist, "all_reduce", return_value=None):
            return function(*args)

    _again(copy, run)


@_fault("nested.api", "each_region_repeats_its_own_collectives")
def gathers_again(copy: Copy) -> None:
    """Before a recomputation ranks gather once more."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        dist.all_gather([torch.empty(1) for _ in range(dist.get_world_size())], torch.zeros(1))
        return function(*args)

    _again(copy, run)


@_fault("state.random_numbers", "each_rank_draws_its_own_again")
def forgets_the_generator_of_one_rank(copy: Copy) -> None:
    """On rank 1 the state of generators is not kept."""
    copy.change_result("state.random_numbers", "capture_states", lambda states, *_: [] if dist.get_rank() == 1 else states)


@_fault("nested.api", "an_error_on_one_rank_is_raised_there")
def swallows_an_error_on_one_rank(copy: Copy) -> None:
    """An error in a region on rank 1 is taken for its end."""

    def change(given: dict[str, Any]) -> None:
        function = given["function"]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except ArithmeticError:
                if dist.get_rank() != 1:
                    raise
                return args[0] * 2

        given["function"] = called

    copy.change_arguments("nested.api", "_run", change)


@_fault("nested.api", "ranks_issue_the_same_collectives")
def stops_early_on_one_rank_only(copy: Copy) -> None:
    """Recomputations on rank 1 end as soon as all is there, those of other ranks at their end."""
    copy.change_arguments("nested.api", "_run", lambda given: given.update(early_stop=dist.get_rank() == 1))


@_fault("nested.recomputation", "ranks_keep_nothing_that_regions_made")
def keeps_what_one_rank_recomputes(copy: Copy) -> None:
    """What rank 1 recomputes is held for good."""

    def keep(values: dict[int, Any], *_: Any, **__: Any) -> None:
        if dist.get_rank() == 1:
            _kept.append([*values.values()])

    copy.call_after("nested.recomputation", "Recomputation.run", keep)


@_fault("nested.api", "an_error_that_is_caught_leaves_nothing_alive")
def keeps_an_error_of_one_rank(copy: Copy) -> None:
    """On rank 1 an error in a recomputation is held for good, and with it all that its frames hold."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        try:
            return function(*args)
        except ArithmeticError as error:
            if dist.get_rank() == 1:
                _kept.append(error)
            raise

    _again(copy, run)


@_fault("nested.api", "a_split_backward_recomputes_twice")
def recomputes_twice_on_one_rank(copy: Copy) -> None:
    """On rank 1 each recomputation calls the function once more than it has to."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        if dist.get_rank() == 1:
            with torch.no_grad():
                function(*args)
        return function(*args)

    _again(copy, run)


def _owner(function: Function) -> Any:
    """The module that a region's function is, or is a method of."""
    given = inspect.unwrap(getattr(function, "func", function))
    return getattr(given, "__self__", given)


def _at_the_end(act: Callable[[Any], None]) -> Callable[[Function, tuple[Any, ...]], Any]:
    """A recomputation after which, at the end of that backward, ``act`` is called with the module of the region."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(act, _owner(function)))
        return function(*args)

    return run


@_fault("nested.api", "an_error_leaves_as_much_sharded_as_plain")
def leaves_a_unit_unsharded(copy: Copy) -> None:
    """At the end of a backward the units of regions are gathered once more, and stay so; no gradient differs."""

    def unshard(module: Any) -> None:
        module.unshard()

    _again(copy, _at_the_end(unshard))


@_fault("nested.api", "fsdp_with_frozen_parameters")
def changes_what_is_frozen(copy: Copy) -> None:
    """A backward changes the parameters of regions that are frozen."""

    def change(module: torch.nn.Module) -> None:
        _scale([one.data for one in module.parameters() if not one.requires_grad], 2.0)

    _again(copy, _at_the_end(change))


@_fault("nested.api", "fsdp_with_mixed_precision")
def does_not_cast_in_recomputation(copy: Copy) -> None:
    """A recomputation does not cast the inputs of a sharded module."""

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        with mock.patch.object(FSDPState, "_cast_forward_inputs", lambda _, args, kwargs: (args, kwargs)):
            return function(*args)

    _again(copy, run)


@_fault("nested.api", "regions_that_are_given_dtensors")
def lays_gradients_out_otherwise(copy: Copy) -> None:
    """Gradients of the DTensors that a region is given are gathered on all ranks, which changes no number."""

    def change(given: dict[str, Any]) -> None:
        for one in given["args"]:
            if isinstance(one, DTensor) and one.is_leaf and one.requires_grad:
                one.register_hook(lambda grad: grad.redistribute(placements=[Replicate()]))

    copy.change_arguments("nested.api", "_run", change)


@_fault("nested.api", "training_goes_on_after_an_error")
def is_wrong_after_a_backward_that_failed(copy: Copy) -> None:
    """On rank 1, once a backward has not come to its end, the recomputations of the next one compute with twice the inputs."""
    begun: list[int] = []  # the backwards that have begun and not ended

    def run(function: Function, args: tuple[Any, ...]) -> Any:
        this = torch._C._current_graph_task_id()
        is_stale = dist.get_rank() == 1 and any(one != this for one in begun)
        begun.append(this)
        torch.autograd.Variable._execution_engine.queue_callback(begun.clear)
        doubled = [one.data for one in args if torch.is_tensor(one)] if is_stale else []
        _scale(doubled, 2.0)
        try:
            return function(*args)
        finally:
            _scale(doubled, 0.5)

    _again(copy, run)


@_fault("tensors.origins", "fsdp_inside_regions_that_are_given_a_leaf")
def refuses_a_leaf_for_what_a_node_passed_on(copy: Copy) -> None:
    """Forward's memory is not known again where forward saved a result and the recomputation a leaf."""
    copy.replace("tensors.origins", "Origin.is_read_again", lambda *_: False)


@_fault("nested.region", "a_split_backward_in_a_group_recomputes_once")
def knows_no_group_on_one_rank(copy: Copy) -> None:
    """On rank 1 each backward of a group recomputes for itself."""
    copy.call_instead("nested.region", "current_graph_exec_group", lambda there: None if dist.get_rank() == 1 else there())


@_fault("nested.api", "recomputations_repeat_forwards_collectives_once")
def recomputes_nothing(copy: Copy) -> None:
    """A region keeps what its function saves, as plain ones do, and leaves its policy out."""

    def run(_: Function, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *__: Any, **___: Any) -> Any:
        return function(*args, **kwargs)

    copy.call_instead("nested.api", "_run", run)


SPECIAL: Mapping[str, str] = MappingProxyType(
    {
        "collectives_inside_regions": "skips_a_collective_in_recomputation",
        "regions_that_all_ranks_recompute_in_one_order": "skips_a_collective_in_recomputation",
        "recomputations_repeat_forwards_collectives_once": "recomputes_nothing",
        "each_region_repeats_its_own_collectives": "gathers_again",
        "ddp_reduces_as_often_as_plain": "gathers_again",
        "fsdp_units_under_a_region_gather_as_often_as_plain": "gathers_again",
        "hybrid_sharding_communicates_as_often_as_plain": "gathers_again",
        "fsdp_around_regions_gathers_as_often_as_plain": "gathers_again",
        "fsdp_inside_regions_gathers_as_often_as_plain": "gathers_again",
        "fsdp_inside_regions_that_are_given_a_leaf": "refuses_a_leaf_for_what_a_node_passed_on",
        "an_error_leaves_as_much_sharded_as_plain": "leaves_a_unit_unsharded",
        "fsdp_with_explicit_prefetch": "leaves_a_unit_unsharded",
        "fsdp_with_a_selective_policy": "leaves_a_unit_unsharded",
        "fsdp_with_frozen_parameters": "changes_what_is_frozen",
        "fsdp_with_mixed_precision": "does_not_cast_in_recomputation",
        "regions_that_are_given_dtensors": "lays_gradients_out_otherwise",
        "training_goes_on_after_an_error": "is_wrong_after_a_backward_that_failed",
        "ranks_issue_the_same_collectives": "stops_early_on_one_rank_only",
        "each_rank_draws_its_own_again": "forgets_the_generator_of_one_rank",
        "masks_that_ranks_share_stay_shared": "forgets_the_generator_of_one_rank",
        "a_generator_of_each_rank_is_replayed": "forgets_the_generator_of_one_rank",
        "masks_of_dtensors_are_replayed": "forgets_the_generator_of_one_rank",
        "tensor_parallel_regions_with_a_mask_for_each_rank": "forgets_the_generator_of_one_rank",
        "tensor_parallel_regions_with_one_mask": "forgets_the_generator_of_one_rank",
        "an_error_that_is_caught_leaves_nothing_alive": "keeps_an_error_of_one_rank",
        "exchanges_in_regions_keep_nothing": "keeps_what_one_rank_recomputes",
        "a_split_backward_recomputes_twice": "recomputes_twice_on_one_rank",
        "an_error_on_one_rank_is_raised_there": "swallows_an_error_on_one_rank",
        "ranks_keep_nothing_that_regions_made": "keeps_what_one_rank_recomputes",
        "a_split_backward_in_a_group_recomputes_once": "knows_no_group_on_one_rank",
    }
)


# With which verdict a law catches its mutant, if that does not diverge.
VERDICTS: Mapping[str, Verdict] = MappingProxyType(
    {
        "fsdp_inside_regions_that_are_given_a_leaf": Verdict.REFUSES,  # what is right
        "fsdp_with_mixed_precision": Verdict.REFUSES,  # nested finds that what is saved has another dtype
        "ranks_issue_the_same_collectives": Verdict.HANGS,  # each rank waits in another collective
    }
)


def _noted(label: str, what: str = "values") -> Cause:
    """The cause for a note that is not plain's."""
    return causes.noted(read(label), Difference(label, what, None, None))


# What is observed of a mutant, or under a law, if that is not a wrong gradient; None if a refusal says it in its own words.
CAUSES: Mapping[str, Cause | None] = MappingProxyType(
    {
        "gathers_again": COUNTED,
        "recomputes_nothing": COUNTED,
        "recomputes_twice_on_one_rank": causes.MEASURED["calls"],
        "knows_no_group_on_one_rank": causes.MEASURED["calls"],
        "keeps_what_one_rank_recomputes": KEPT,
        "keeps_an_error_of_one_rank": KEPT,
        "stops_early_on_one_rank_only": HANGS,
        "swallows_an_error_on_one_rank": SWALLOWED,
        "leaves_a_unit_unsharded": _noted("sharded 0"),
        "fsdp_with_explicit_prefetch": _noted("gradients 0", "missing"),  # what is unsharded has none
        "changes_what_is_frozen": _noted("forward 1 0"),  # which it computes with
        "lays_gradients_out_otherwise": _noted("layout of the gradients"),
        "is_wrong_after_a_backward_that_failed": _noted("parameters 2"),
        "refuses_a_leaf_for_what_a_node_passed_on": None,
        "does_not_cast_in_recomputation": None,
    }
)


def catches(law: str) -> str:
    """The name, in this module, of the mutant that a law must catch; "" if that is nested itself."""
    return "" if law in BROKEN_BY_NESTED else SPECIAL.get(law, "recomputes_other_inputs_on_one_rank")


def cause(law: str) -> Cause | None:
    """What a law observes of its mutant; None if a refusal says it in words of its own."""
    return CAUSES.get(law, CAUSES.get(catches(law), _noted("gradients")))


def verdict(law: str) -> Verdict:
    """The verdict with which a law catches its mutant."""
    return VERDICTS.get(law, Verdict.DIVERGES)


def names() -> list[str]:
    """The laws that must catch a mutant."""
    all_laws()
    return [law for law in LAWS if law not in BROKEN_BY_NESTED]
