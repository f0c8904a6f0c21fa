"""Nesting: regions in regions are plain to the outside, and what one saves is hidden from those around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from hypothesis import strategies as st

import impls
from conformance.costs.cost_oracle import costs
from conformance.costs.forward_trace import OPERATORS
from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.judging.verdicts import Diverges, Measured, difference
from conformance.meters.saved_tensors import Packs
from conformance.programs.backward_calls import Request, listed
from conformance.programs.generator.operators import PRODUCT
from conformance.programs.generator.rewrites import called_through
from conformance.programs.nesting_switch import if_nesting, nesting
from conformance.programs.notes import Note, Role
from conformance.programs.program import Noted, Op, Program, Region, gradients, walk
from conformance.programs.scenarios.regions import nesting as written
from conformance.programs.strategies import named, programs
from conformance.programs.sums import DIFFERENTIATED, Order, Sums
from conformance.rows.for_readers import for_readers


@for_readers("advanced", "wrong gradient", "recursion, transformer blocks in stages")
@law(programs(always=["nesting"], sometimes=["retain"], depth=3), needs=["nesting"], floor=8)
def test_trees_of_regions(case: Case) -> None:
    """Regions that nest three deep, several in one, give plain's outputs and gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "closure, recursion")
@law(
    programs(always=["nesting", "closure"], sometimes=["closure-intermediates", "escaping"], depth=3),
    needs=["nesting"],
    floor=8,
)
def test_trees_of_regions_that_share_values_through_closures(case: Case) -> None:
    """Regions at any depth may read values of those around them, and hand values out, past arguments and results."""
    case.equals_plain()


def _saving_is_noted(program: Program) -> Program:
    """The same program with a note of what hooks around it are to see.

    Its one output is computed with a parameter, so that backward runs even where a region has lost its inputs.
    """
    end = Op("end", PRODUCT.template, (program.outputs[0], "p0"), PRODUCT.terms)
    driver = (Request(("end",)), gradients("0", program.leaves))
    ended = replace(program, body=(*program.body, end), outputs=("end",), driver=driver)
    return replace(ended, body=(*ended.body, Noted(Note(Role.SAVED), listed(costs(ended).saved[""]))))


def _hooked(*features: str) -> st.SearchStrategy[Program]:
    return programs(always=["nesting", *features], operators=tuple(OPERATORS), depth=3).map(_saving_is_noted)


def _packs_are_due(case: Case, *, once: bool = False) -> None:
    packs = Packs()
    case.run(packs)
    missing = (packs.due - packs.forward).total()
    surplus = len(packs.forward - packs.due if once else packs.forward.keys() - packs.due.keys())
    if missing or surplus:
        due = packs.due.total()
        told = f"hooks around the program are to see {due} tensors; {missing} are missing, {surplus} are too many"
        raise Diverges(told, Measured("saved", at_most=once))


@for_readers("advanced", "leaked or late memory", "save_on_cpu, saved_tensors_hooks")
@law(_hooked(), needs=["hidden-saves"], floor=8)
def test_hooks_see_the_outermost_inputs_alone(case: Case) -> None:
    """Hooks on saved tensors see what is saved outside regions and each input of the outermost ones, nothing else."""
    _packs_are_due(case)


@for_readers("advanced", "leaked or late memory", "save_on_cpu, kwargs")
@law(_hooked("keyword"), needs=["hidden-saves", "keyword-arguments"], floor=8)
def test_hooks_see_inputs_passed_by_keyword(case: Case) -> None:
    """A tensor passed by keyword is saved like one that is passed by position."""
    _packs_are_due(case)


@for_readers("advanced", "leaked or late memory", "save_on_cpu, list, dict")
@law(_hooked("containers"), needs=["hidden-saves", "containers"], floor=8)
def test_hooks_see_inputs_in_containers(case: Case) -> None:
    """A tensor inside a container is saved like one that is passed by itself."""
    _packs_are_due(case)


@for_readers("advanced", "leaked or late memory", "save_on_cpu")
@law(_hooked("repeated-inputs"), needs=["hidden-saves"], floor=8)
def test_hooks_see_repeated_inputs_once(case: Case) -> None:
    """A tensor that is passed to a region several times is saved once for it."""
    _packs_are_due(case, once=True)


@for_readers("advanced", "leaked or late memory", "saved_tensors_hooks")
@law(programs(always=["nesting"], sometimes=["retain"], depth=3), floor=8)
def test_recomputation_is_hidden_from_hooks(case: Case) -> None:
    """Hooks that are active during backward see nothing of what a recomputation saves."""
    packs = Packs()
    case.run(packs)
    if packs.backward:
        told = f"{packs.backward.total()} tensors reach hooks that are active during backward, none is to"
        raise Diverges(told, Measured("packed", (("packed in backward", 0),)))


_HOOKS = {where: st.booleans() for where in ("outside", "between", "innermost", "backward")}


@for_readers("advanced", "wrong gradient", "save_on_cpu, saved_tensors_hooks")
@law(named(written.hooks, nested=st.just(True), **_HOOKS))
def test_hooks_around_and_inside_regions(case: Case) -> None:
    """Hooks around or inside regions pack and unpack as under plain; those that are active in backward do nothing."""
    case.equals_plain()


_INSIDE = {
    "of": st.sampled_from(["a detached leaf", "its own values"]),
    "retain": st.booleans(),
    "times": st.integers(1, 3),
    "depth": if_nesting(st.integers(0, 2), 0),
    "region": if_nesting(st.booleans(), False),
}


@for_readers("advanced", "wrong gradient", "implicit layer, DEQ, MAML, inner loop")
@law(named(written.backward_inside, **_INSIDE), about=REQUIRES_GRAD)
def test_backward_inside_a_region(case: Case) -> None:
    """A function may ask for gradients of what it has computed so far, as often as it likes (rule 6)."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "early_stop=False, implicit layer, MAML")
@law(named(written.backward_inside, **_INSIDE), needs=["early-stop-option"], effort=0.4, about=REQUIRES_GRAD, early_stop=False)
def test_backward_inside_a_region_without_early_stop(case: Case) -> None:
    """A function may ask for gradients of what it has computed so far where recomputations run to the end, too (rule 6)."""
    case.equals_plain()


_PENALTY = {"again": st.booleans(), "region": if_nesting(st.booleans(), False), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "double backward, gradient penalty, create_graph, force field")
@law(named(written.penalty_inside, DIFFERENTIATED, **_PENALTY), needs=["higher-order"], about=REQUIRES_GRAD)
def test_gradient_penalty_inside_a_region(case: Case) -> None:
    """A function may return a gradient that it took with create_graph=True, and backward goes through it (rule 6)."""
    case.equals_plain()


_ANOTHER = {name: st.booleans() for name in ("accumulate", "nested", "last")}


@for_readers("adversarial", "wrong gradient", "autograd.grad")
@law(named(written.backward_of_another, **_ANOTHER), floor=3, about=REQUIRES_GRAD)
def test_backward_of_another_region_inside_a_region(case: Case) -> None:
    """A function may run the backward of a region that was called before it."""
    case.equals_plain()


@dataclass(frozen=True)
class Mixed:
    """A program of which some regions are called through another implementation."""

    program: Program
    others: tuple[tuple[str, str], ...]

    @property
    def sums(self) -> Sums:
        """Not every implementation adds gradients up in plain's order."""
        return replace(self.program.sums, order=Order.ANY)

    @property
    def source(self) -> str:
        callers = {region: f"impls.get({name!r}).checkpoint" for region, name in self.others}
        body = called_through(self.program.body, callers)
        return replace(self.program, body=body, preamble=("import impls", *self.program.preamble)).source


def _pairs(program: Program) -> list[tuple[Region, Region]]:
    """Regions with one that is called inside them."""
    return [(outer, inner) for outer in program.regions for inner in walk(outer.body)]


@st.composite
def _mixed(draw: st.DrawFn) -> Mixed:
    """Of two regions, one inside the other, one is called through another implementation; for all others that is drawn."""
    program = draw(nesting(programs(always=["nesting"], depth=3), allowed=True))  # it may nest in others
    pair = draw(st.sampled_from(_pairs(program)))
    own, foreign = draw(st.permutations(pair))
    other = st.sampled_from([name for name in impls.names("checkpoint") if name != "plain"])
    chosen = [one for one in program.regions if one is foreign or (one is not own and draw(if_nesting(st.booleans(), True)))]
    return Mixed(program, tuple((one.name, draw(other)) for one in chosen))


@for_readers("advanced", "wrong gradient", "HuggingFace, mixed libraries")
@law(_mixed(), floor=8)
def test_any_implementation_inside_any_other(case: Case) -> None:
    """Regions of this implementation around and inside regions of any other one give plain's gradients."""
    expected = case.reference(cast(Mixed, case.program).program, case.device, case.kind)
    if case.seen.error is not None:
        raise case.verdict(case.seen)
    for label, value in expected.notes.items():
        found = difference(value, case.seen.notes[label], label, terms=case.terms, scale=case.scale)
        if found:
            raise Diverges(found.told())


_CAUGHT = {"nested": st.booleans(), "operator": st.sampled_from(["sin", "tanh"]), "early": st.booleans()}


@for_readers("advanced", "wrong gradient", "try, except, fallback")
@law(named(written.caught, **_CAUGHT), floor=3)
def test_no_except_exception_catches_the_stop(case: Case) -> None:
    """A function's own "except Exception" sees nothing of an early stop, so its fallback is not taken (rule 5)."""
    case.equals_plain()
