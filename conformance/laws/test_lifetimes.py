"""Lifetimes: what a region computes lives while a backward needs it and no longer; nothing waits for the collector."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from hypothesis import strategies as st

from conformance.judging.judge import Case, execute
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed, no_growth, nothing_kept
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.judging.verdicts import Diverges, Measured
from conformance.meters.meter import Made, Moment, Storages
from conformance.programs.nesting_switch import if_nesting
from conformance.programs.notes import WHOLE_FORWARD, Note, Role
from conformance.programs.program import Named
from conformance.programs.scenarios import kept_objects, lifetimes, reached_outputs
from conformance.programs.scenarios.regions import exec_groups
from conformance.programs.schedules import exactly, schedules, watched
from conformance.programs.strategies import named
from conformance.programs.sums import Order, Sums
from conformance.rows.for_readers import for_readers
from impls import Implementation
from impls.plain import checkpoint as plain
from impls.schedules import Keep, Plan, Region, interpret, unit_chain

PASSES = st.integers(1, 3)


_KINDS = {"nesting", "views", "inplace", "indices", "custom-function", "complex", "bfloat16"}


@for_readers("everyday", "leaked or late memory", "activation memory, peak memory, OOM")
@law(exactly("forward", "backward", sometimes=_KINDS), floor=8)
def test_nothing_of_the_inside_is_alive_after_forward(case: Case) -> None:
    """After forward, and after a backward, no tensor that a region made is alive but its outputs."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "retain_graph")
@law(schedules(["whole"]), floor=8)
def test_a_retained_backward_keeps_nothing(case: Case) -> None:
    """After each backward over a retained graph nothing is alive that was not alive before it, but gradients."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "partial backward, multi-task")
@law(schedules(["some", "part", "spent"]), floor=8)
def test_a_backward_of_some_outputs_keeps_nothing(case: Case) -> None:
    """After a backward of some outputs, and of others later on, what was recomputed but not needed is gone."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "autograd.grad, partial backward")
@law(schedules(["inputs", "grad"]), needs=["subset-requests"], floor=8)
def test_a_request_for_some_gradients_keeps_nothing(case: Case) -> None:
    """After gradients of some leaves were asked for, what was recomputed but not needed is gone."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "double backward, create_graph, gradient penalty")
@law(schedules(["create-graph"], steps=2), needs=["higher-order"], floor=8)
def test_a_differentiable_backward_keeps_nothing(case: Case) -> None:
    """Once gradients that were taken with create_graph=True are dropped, what was recomputed for them is gone."""
    nothing_kept(case)


@for_readers("advanced", "wrong gradient", "pipeline, zero bubble, split backward")
@law(exactly("forward", "inputs", "inputs", "backward", "drop"), needs=["subset-requests"], floor=8)
def test_partial_backward_passes_over_one_graph(case: Case) -> None:
    """Gradients of some leaves first and of others later, as pipelines split them, are plain's, and all is freed."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "autograd.grad, partial backward")
@law(named(lifetimes.branches, length=st.integers(2, 4), passes=PASSES), needs=["subset-requests"], floor=3)
def test_what_a_request_did_not_need_dies_with_it(case: Case) -> None:
    """A recomputed tensor that belongs to another input than the one asked about is gone when backward ends."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "retain_graph")
@law(exactly("forward", "backward", "again", "drop"), floor=8)
def test_a_backward_that_is_refused_keeps_nothing(case: Case) -> None:
    """A second backward over a graph that was not retained raises where plain raises, and leaves nothing alive."""
    nothing_kept(case)


@for_readers("everyday", "leaked or late memory", "memory leak, skipped step, validation")
@law(schedules(["drop", "whole", "some", "part", "forward"], drop=True), floor=8)
def test_dropping_the_outputs_frees_everything(case: Case) -> None:
    """A graph is freed with its outputs, before any backward, after a retained one, and after a partial one."""
    all_freed(case)


CONTAINERS = st.sampled_from(["list", "tuple", "dict", "deque"])


@for_readers("everyday", "leaked or late memory", "memory leak, list, dict, garbage collector")
@law(named(lifetimes.contained, kind=CONTAINERS, passes=PASSES), needs=["containers"], floor=4)
def test_arguments_in_containers_are_freed(case: Case) -> None:
    """What a region is passed in a container is freed with the graph, and does not wait for the collector."""
    all_freed(case)


@for_readers("advanced", "poor error", "retain_graph")
@law(named(lifetimes.again, regions=st.integers(1, 4), nested=st.booleans()), floor=3)
def test_a_second_backward_raises_what_plain_raises(case: Case) -> None:
    """The error of a second backward over a graph that was not retained is of plain's type and says the same."""
    case.equals_plain()


def _due(moments: list[Moment]) -> list[tuple[Note, Counter[str], Counter[str]]]:
    """For each note in backward, by region, how many storages are alive, and how many of those were made after forward."""
    before = next(moment.alive for moment in moments if moment.note in (WHOLE_FORWARD, Note(Role.HELD, ("1",))))
    due = [moment for moment in moments if moment.note.role is Role.DUE]
    return [(moment.note, _by_region(moment.alive), _by_region(moment.alive - before)) for moment in due]


def _by_region(alive: frozenset[Made]) -> Counter[str]:
    return Counter(made.region for made in alive if made.region)


@for_readers("everyday", "leaked or late memory", "peak memory, backward")
@law(named(lifetimes.chain, length=st.integers(1, 12), passes=PASSES), floor=5)
def test_each_recomputed_tensor_dies_at_its_unpack(case: Case) -> None:
    """In a chain, when the node of the operator at index i is due, at most i recomputed tensors are alive."""
    storages = Storages()
    case.run(storages)
    for note, _, recomputed in _due(storages.moments):
        index, count = note.number, recomputed["f"]
        if count > index:
            told = f"when operator {index} is due, {count} recomputed tensors are alive, expected at most {index}"
            raise Diverges(told, Measured("recomputed", ((note.label, index),), at_most=True, region="f"))


@for_readers("advanced", "leaked or late memory", "peak memory, retain_graph")
@law(exactly("forward", "whole", "backward", depth=1).map(watched), floor=8)
def test_recomputed_tensors_live_no_longer_than_saved_ones(case: Case) -> None:
    """In a retained backward no more recomputed tensors are alive at a node than saved ones in a plain backward that frees."""
    expected, storages = Storages(), Storages()
    execute(case.program, plain, case.device, (expected,))
    case.run(storages)
    freeing = {note: alive for note, alive, _ in _due(expected.moments)}  # of the last backward, which retains nothing
    for note, _, recomputed in _due(storages.moments):
        region = note.words[0]
        for other, count in recomputed.items():
            allowed = freeing[note][region] if other == region else 0
            if count > allowed:
                told = f"at '{note.label}' {count} recomputed tensors of {other} are alive, expected at most {allowed}"
                raise Diverges(told, Measured("recomputed", ((note.label, allowed),), at_most=True, region=other))


LEVELS = if_nesting(st.integers(1, 3), 1)


@for_readers("everyday", "more work than needed", "recomputation, FLOPs")
@law(named(lifetimes.tail, saving=st.integers(1, 3), after=st.integers(0, 2), levels=LEVELS, passes=PASSES),
     needs=["early-stop"], floor=5)  # fmt: skip
def test_early_stop_leaves_the_tail_unrun(case: Case) -> None:
    """A recomputation does not reach the end of a function whose last operators save nothing."""
    case.equals_plain()


@for_readers("everyday", "leaked or late memory", "memory leak, training loop")
@law(named(lifetimes.steps, retained=st.booleans(), regions=st.integers(1, 3), fails=st.booleans()), floor=2)
def test_steps_leave_nothing_behind(case: Case) -> None:
    """Step after step, over one retained graph or new ones, failed or not, there are no more Python objects than before."""
    no_growth(case)


@for_readers("everyday", "leaked or late memory", "memory leak, garbage collector, lambda, partial")
@law(named(lifetimes.callables, kind=st.sampled_from(("module", "method", "partial", "lambda")), passes=PASSES), floor=5)
def test_a_callable_of_any_kind_makes_no_cycle(case: Case) -> None:
    """A module, bound method, partial or lambda is freed with the outputs, and what it holds with it."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "grad_fn, torchviz, _saved_self")
@law(named(lifetimes.read, length=st.integers(1, 4), times=PASSES, nested=st.booleans()), floor=5)
def test_reading_saved_tensors_keeps_nothing(case: Case) -> None:
    """Saved tensors that are read from the graph, outside of any backward, are freed with the outputs."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "register_hook, memory leak")
@law(named(lifetimes.hooked, where=st.sampled_from(("inside", "outside", "both")), passes=PASSES), floor=5)
def test_hooks_of_the_user_make_no_cycle(case: Case) -> None:
    """Hooks on tensors and nodes, inside and outside of a region, keep nothing alive."""
    all_freed(case)


ENDS = st.sampled_from(["other", "returned", "raises"])


@for_readers("advanced", "leaked or late memory", "in place, memory leak")
@law(named(lifetimes.changed_input, ends=ENDS, wrapped=if_nesting(st.booleans(), False)), floor=2)
def test_a_region_that_changes_its_input_makes_no_cycle(case: Case) -> None:
    """A region that changes its input in place, and may return it or raise, is freed with its outputs, or refused at once."""
    all_freed(case)


@for_readers("adversarial", "leaked or late memory", "custom attribute, memory leak")
@law(named(kept_objects.attributed, special=st.booleans(), passes=PASSES, nested=st.booleans()), floor=2)
def test_attributes_that_are_tensors_are_freed(case: Case) -> None:
    """A tensor that is an attribute of what an inner region is passed lives no longer than what it is an attribute of."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "ctx.saved_tensors, peak memory")
@law(
    named(kept_objects.read_again, saved=st.integers(1, 3), times=st.just(2), before=st.integers(1, 3), after=st.integers(0, 2),
          passes=PASSES, nested=st.booleans()),
    floor=5,
)  # fmt: skip
def test_what_is_read_again_dies_as_it_is_unpacked(case: Case) -> None:
    """What is brought back for a second reading within one backward dies with its node, and nothing else comes with it."""
    storages = Storages()
    case.run(storages)
    for note, _, recomputed in _due(storages.moments):
        where, index = note.words
        alive, due = recomputed.total(), int(index)
        if where == "before" and alive > due:
            told = f"when operator {index} is due, {alive} recomputed tensors are alive, expected at most {due}"
            raise Diverges(told, Measured("recomputed", ((note.label, due),), at_most=True))


@for_readers("advanced", "leaked or late memory", "pipeline, split backward")
@law(named(exec_groups.unfinished, drop=st.sampled_from(("group", "graph")), length=st.integers(1, 4)), floor=3)
def test_what_a_group_left_dies_with_it(case: Case) -> None:
    """What was recomputed for a GraphExecGroup is gone once its calls have used it, and what they left with the group."""
    nothing_kept(case)


_DEEP = (
    named(lifetimes.deep_graphs, regions=st.just(1), length=st.just(5_000)),
    named(lifetimes.deep_graphs, regions=st.just(50), length=st.just(100)),
)


@for_readers("adversarial", "leaked or late memory", "RNN, stack overflow, segmentation fault")
@law(st.one_of(*_DEEP), floor=2)
def test_deep_graphs_are_freed(case: Case) -> None:
    """A graph in which regions have saved five thousand tensors is freed on a thread whose stack is small, of 512 KiB."""
    case.equals_plain()


_OBJECTS = {"where": st.sampled_from(["argument", "list", "function"]), "passes": PASSES, "nested": st.booleans()}


@for_readers("advanced", "leaked or late memory", "memory leak")
@law(named(kept_objects.objects, **_OBJECTS), needs=["non-tensor-arguments"], floor=4)
def test_objects_are_let_go_with_the_graph(case: Case) -> None:
    """What a region is passed or its function holds that is no tensor is let go with the outputs, at once."""
    case.equals_plain()


_FILLED = functools.partial(named, kept_objects.filled, kind=st.sampled_from(["list", "dict", "dataclass"]))
_NO_BACKWARD: dict[str, Any] = {"gradients": False, "recomputes": False}


@for_readers("advanced", "leaked or late memory", "KV cache, list, memory leak")
@law(
    _FILLED(when=st.just("inside"), steps=st.just(1), others=st.just(0)),
    needs=["non-tensor-arguments"],
    floor=3,
    **_NO_BACKWARD,
)
def test_what_a_function_puts_into_its_arguments_is_freed(case: Case) -> None:
    """A tensor that the function puts into a container that it is passed is freed with that, before any backward."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "hidden states, memory leak")
@law(
    _FILLED(when=st.just("afterwards"), steps=st.integers(8, 12), others=st.sampled_from([0, 40])),
    needs=["non-tensor-arguments"],
    floor=3,
    **_NO_BACKWARD,
)
def test_lists_that_outputs_are_appended_to(case: Case) -> None:
    """Graphs whose outputs are put into containers that were passed to their regions do not pile up without a backward."""
    _no_more_from_step_to_step(case)


def _no_more_from_step_to_step(case: Case) -> None:
    """From the fifth note "step" on, no more storages are alive that the program does not hold than in the first four."""
    storages = Storages()
    case.seen = case.run(storages)
    case.equals_plain()
    alive = [(moment.label, len(moment.kept)) for moment in storages.moments if moment.note.role is Role.STEP]
    allowed = max(count for _, count in alive[:4])
    for label, count in alive[4:]:
        if count > allowed:
            told = f"at '{label}' {count} storages are alive that the program does not hold, in the first four steps {allowed}"
            raise Diverges(told, Measured("alive", ((label, allowed),), at_most=True))


_COPIED = {"through": st.sampled_from(["the output", "a result"]), "nested": st.booleans()}


def _reached(*ends: str, besides: st.SearchStrategy[Any] | None = None) -> Callable[[Implementation], Any]:
    """Programs in which a region reaches its output, by an object among its arguments if an implementation takes any."""

    def of(claims: Implementation) -> Any:
        by = ["list", "module", *(["argument"] if "non-tensor-arguments" in claims.capabilities else [])]
        drawn = {"by": st.sampled_from(by), "regions": st.integers(1, 2), "nested": st.booleans()}
        made = named(reached_outputs.reached, ends=st.sampled_from(ends), **drawn)
        return made if besides is None else st.one_of(made, besides)

    return of


@for_readers("everyday", "leaked or late memory", "memory leak, validation, self.cache, attribute, closure, skipped step")
@law(_reached("nothing"), floor=4, **_NO_BACKWARD)
def test_outputs_that_their_own_region_reaches_are_freed(case: Case) -> None:
    """A region whose function or argument reaches its output, and that gets no backward, is freed once the program drops it."""
    all_freed(case)


@for_readers("adversarial", "leaked or late memory", "memory leak, in place, copy_, static buffer")
@law(named(reached_outputs.overwritten, ends=st.just("nothing"), **_COPIED), floor=2, **_NO_BACKWARD)
def test_arguments_overwritten_with_the_output_are_freed(case: Case) -> None:
    """An argument that is overwritten with the output is freed with it, without a backward, once the program drops both."""
    all_freed(case)


_VALUES = named(reached_outputs.overwritten, ends=st.just("values"), **_COPIED)


@for_readers("everyday", "leaked or late memory", "memory leak, self.cache, attribute, closure, copy_, detach")
@law(_reached("backward", "values", besides=_VALUES), floor=4, **_NO_BACKWARD)
def test_outputs_that_their_own_region_reaches_after_backward(case: Case) -> None:
    """A region that reaches its output, and gets a backward, or reaches the detached values alone, is freed when dropped."""
    all_freed(case)


def _kept(nested: bool) -> Callable[[Implementation], Any]:
    """Programs in which a function keeps a result that has a graph."""

    def of(claims: Implementation) -> Any:
        by = ["list", "module", *(["argument"] if "non-tensor-arguments" in claims.capabilities else [])]
        return named(reached_outputs.kept, by=st.sampled_from(by), steps=st.integers(1, 3), nested=st.just(nested))

    return of


@for_readers(
    "everyday", "leaked or late memory", "memory leak, auxiliary loss, router loss, MoE, features, self.cache, closure"
)
@law(_kept(nested=False), floor=4)
def test_results_that_a_function_keeps_are_freed(case: Case) -> None:
    """A result that a function keeps, with its graph, in what belongs to the step is freed with that after backward."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "memory leak, auxiliary loss, nested checkpoint, features, closure")
@law(_kept(nested=True), needs=["nesting"], floor=4)
def test_results_that_an_inner_function_keeps_are_freed(case: Case) -> None:
    """The same for the function of a region inside another one: what it keeps is freed after backward."""
    all_freed(case)


_ORDER = st.sampled_from(["one after the other", "a penalty", "a force inside"])


@for_readers("everyday", "poor error", "auxiliary loss, router loss, MoE, gradient penalty, forces, self.cache")
@law(
    named(reached_outputs.differentiated_later, Sums(order=Order.ANY), order=_ORDER, nested=st.booleans()),
    needs=["higher-order", "subset-requests"],
    floor=3,
    about=REQUIRES_GRAD,
)
def test_results_that_a_function_keeps_are_differentiated(case: Case) -> None:
    """A result that a function keeps has plain's gradients, also if others were taken from the same graph before."""
    case.equals_plain()


_DETACHING = {"steps": st.integers(8, 12), "nested": st.booleans()}


@for_readers("advanced", "leaked or late memory", "memory leak, detach, truncated backpropagation, recurrent network")
@law(named(reached_outputs.detached, where=st.just("inside"), **_DETACHING), floor=3, **_NO_BACKWARD)
def test_what_a_function_detaches_is_freed(case: Case) -> None:
    """In a loop of regions that detach what they are passed, the results of earlier steps do not pile up."""
    _no_more_from_step_to_step(case)


@for_readers("advanced", "leaked or late memory", "memory leak, detach, truncated backpropagation, recurrent network")
@law(named(reached_outputs.detached, where=st.just("outside"), **_DETACHING), floor=3, **_NO_BACKWARD)
def test_what_is_detached_before_a_region_is_freed(case: Case) -> None:
    """In a loop of regions that are passed detached tensors, the results of earlier steps do not pile up."""
    _no_more_from_step_to_step(case)


_BOXES = st.sampled_from(["list", "dict"])


@for_readers("advanced", "leaked or late memory", "peak memory, pop, list, dict, nested checkpoint")
@law(named(kept_objects.emptied_at_each_level, kind=_BOXES, layers=st.integers(2, 10), reads=st.booleans()),
     needs=["containers", "nesting", "early-stop"], floor=4)  # fmt: skip
def test_containers_that_nested_regions_empty(case: Case) -> None:
    """Where nested regions take the tensor out of a container, no more are alive in backward than the plan allows."""
    storages = Storages()
    case.seen = case.run(storages)
    case.equals_plain()
    layers = int(dict(cast(Named, case.program).arguments)["layers"])
    allowed = interpret(_halves(0, layers), unit_chain(layers)).peak
    due = [moment for moment in storages.moments if moment.note.role is Role.DUE]
    if len({moment.label for moment in due}) != layers:
        raise Diverges(f"hooks of {len(due)} layers were called in backward, expected {layers}", None)
    for moment in due:
        if len(moment.kept) > allowed:
            count = f"{len(moment.kept)} storages are alive that the program does not hold"
            told = f"at '{moment.label}' {count}, expected at most {allowed}"
            raise Diverges(told, Measured("alive", ((moment.label, allowed),), at_most=True))


def _halves(first: int, count: int) -> Plan:
    """A chain of so many layers as two regions, each of which consists of two regions again, down to single layers."""
    if count == 1:
        return (Keep(first),)
    half = count // 2
    return Region(_halves(first, half)), Region(_halves(first + half, count - half))


@for_readers("advanced", "leaked or late memory", "peak memory, pop, list, dict, nested checkpoint")
@law(named(kept_objects.left_by_a_stop, kind=_BOXES, levels=st.integers(1, 5), passes=PASSES),
     needs=["containers", "nesting", "early-stop"], floor=4)  # fmt: skip
def test_containers_that_a_stopped_run_leaves(case: Case) -> None:
    """What a recomputation had put into a container when it was stopped is freed once its backward is over."""
    storages = Storages()
    case.seen = case.run(storages)
    case.equals_plain()
    for note, _, recomputed in _due(storages.moments):
        if note.number == 0 and (count := recomputed.total()):
            told = f"after the backward of the second layer {count} recomputed tensors are alive, expected none"
            raise Diverges(told, Measured("recomputed", ((note.label, 0),), at_most=True))
