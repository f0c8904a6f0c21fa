"""Costs: what is recomputed, how far, how often, and what is alive meanwhile follow from the rules of nesting alone."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Literal, cast

from hypothesis import strategies as st

from conformance.costs.cost_oracle import costs
from conformance.costs.forward_trace import OPERATORS, SAVING_CONSTANTS
from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.verdicts import Diverges, Measured
from conformance.meters.meter import Calls, Kernels, Storages
from conformance.programs.backward_calls import Request
from conformance.programs.generator.operators import SAVED_LAST, SIN, Operator
from conformance.programs.generator.rewrites import ending_in_a_region
from conformance.programs.nesting_switch import allows_nesting, if_nesting
from conformance.programs.notes import WHOLE_FORWARD, Note, Role, read
from conformance.programs.program import Block, Leaf, Line, Named, Noted, Op, Program, Region, Statement, gradients
from conformance.programs.scenarios import kept_objects
from conformance.programs.scenarios.regions import exec_groups, visible_operators
from conformance.programs.scenarios.regions import nesting as written
from conformance.programs.strategies import CORE, named, programs
from conformance.rows.for_readers import for_readers

_OPERATORS = (*OPERATORS, *SAVING_CONSTANTS)


def _costed(*always: str, sometimes: tuple[str, ...] = ()) -> st.SearchStrategy[Program]:
    """Programs with predicted costs."""
    return programs(always, [*CORE, *sometimes], operators=_OPERATORS, depth=3)


def _program(case: Case) -> Program:
    return cast(Program, case.program)


def _told(what: str, expected: Counter[str], seen: Counter[str]) -> str:
    wrong = sorted(name for name in expected | seen if expected[name] != seen[name])
    return ", ".join(f"{what} of {name}: {expected[name]} due, {seen[name]} seen" for name in wrong)


def _differ(what: Literal["calls", "kernels"], expected: Counter[str], seen: Counter[str], told: str = "") -> None:
    """Raise Diverges, which a script measures, if two counts differ. Its message is ``told``, or says where they do."""
    due = tuple((name, expected[name]) for name in sorted(expected | seen) if expected[name] != seen[name])
    if due:
        raise Diverges(told or _told(what, expected, seen), Measured(what, due))


def _calls(case: Case, early_stop: bool) -> None:
    _differ("calls", costs(_program(case), early_stop).calls, case.seen.calls)


def _kernels(case: Case, early_stop: bool) -> None:
    kernels = Kernels({kernel for kernel, _ in (OPERATORS | SAVING_CONSTANTS).values()})
    case.run(kernels)
    _differ("kernels", costs(_program(case), early_stop).kernels, kernels.counts)


_ANY = _costed(sometimes=("retain",))
_ENDING = _ANY.map(lambda program: ending_in_a_region(program) if allows_nesting() else program)
_SUBSET = _costed("grad", "through-regions") | _costed("inputs", "through-regions")


@for_readers("advanced", "more work than needed", "recomputation, overhead")
@law(_ANY | _ENDING, needs=["early-stop"], floor=8)
def test_calls_with_early_stop(case: Case) -> None:
    """Every region's function is called exactly as often as rules 2, 3 and 5 say."""
    _calls(case, early_stop=True)


@for_readers("advanced", "more work than needed", "recomputation, FLOPs, overhead")
@law(_ANY, needs=["early-stop"], floor=8)
def test_kernels_with_early_stop(case: Case) -> None:
    """A recomputation runs exactly the operators up to the last tensor that is needed (rule 5)."""
    _kernels(case, early_stop=True)


@for_readers("advanced", "more work than needed", "early_stop=False")
@law(_ANY, needs=["early-stop-option"], floor=8, early_stop=False)
def test_calls_without_early_stop(case: Case) -> None:
    """With early stop switched off, every region's function is called exactly as often as rules 2 and 3 say."""
    _calls(case, early_stop=False)


@for_readers("advanced", "more work than needed", "early_stop=False, FLOPs")
@law(_ANY, needs=["early-stop-option"], floor=8, early_stop=False)
def test_kernels_without_early_stop(case: Case) -> None:
    """With early stop switched off, every recomputation runs all operators of its region."""
    _kernels(case, early_stop=False)


@for_readers("everyday", "more work than needed", "recomputation, FLOPs, overhead")
@law(_costed(), floor=8)
def test_no_region_runs_too_often(case: Case) -> None:
    """No function is called more often than once in forward and once per backward for it and each region around it."""
    bound = costs(_program(case), early_stop=False).calls
    for name, count in case.seen.calls.items():
        if count > bound[name]:
            measured = Measured("calls", ((name, bound[name]),), at_most=True)
            raise Diverges(f"{name} was called {count} times, {bound[name]} at most are due", measured)


@for_readers("advanced", "more work than needed", "partial backward, multi-task")
@law(_costed("partial"), needs=["early-stop"], floor=8)
def test_backward_of_one_output_recomputes_what_it_needs(case: Case) -> None:
    """A backward of one output recomputes the regions that it passes through and those around them alone."""
    _calls(case, early_stop=True)
    _kernels(case, early_stop=True)


@for_readers("advanced", "more work than needed", "autograd.grad, partial backward")
@law(_SUBSET, needs=["early-stop", "subset-requests"], floor=8)
def test_requests_for_a_subset_recompute_what_they_need(case: Case) -> None:
    """A request for the gradients of some leaves recomputes the regions on the way to them alone."""
    _calls(case, early_stop=True)
    _kernels(case, early_stop=True)


_TAIL = """\
ran = []

def tail(h):
    h = torch.neg(h)
    ran.append(h)
    return h
"""


def _before_a_tail(operator: Operator) -> Program:
    """A region of an operator, and one after it that saves nothing."""
    made = "torch.{}(3, 3, dtype=torch.float64, device=device{})"
    leaves = (
        Leaf("c", made.format("rand", ""), False),
        Leaf("x", made.format("randn", ", requires_grad=True"), True),
    )
    body = (
        Op("h", SIN.template, ("x",), SIN.terms),
        Op("last", operator.template, ("h", "c"), operator.roundings(3)),
        Op("end", "tail({0})", ("last",), 5),
    )
    region = Region("f", ("x",), (), "x", ("x",), body, "end", ("end",), (("y", ""),))
    tail = Noted(Note(Role.EXPECTED, ("tail",)), "1"), Noted(Note(Role.SEEN, ("tail",)), "len(ran)")
    driver = (Request(("y",)), gradients("0", leaves), *tail)
    return Program(leaves, (region,), ("y",), driver, preamble=tuple(_TAIL.splitlines()))


@for_readers("everyday", "more work than needed", "recomputation, FLOPs")
@law(st.sampled_from([*itertools.chain(*SAVED_LAST.values())]).map(_before_a_tail), needs=["early-stop"], floor=8)
def test_nothing_runs_after_the_operator_that_saves_last(case: Case) -> None:
    """Whatever operator saves the last tensor that is needed, and whatever it saves, none after it runs again (rule 5)."""
    case.as_expected()


@for_readers("advanced", "more work than needed", "TorchDispatchMode, FLOP counter, profiler")
@law(
    named(
        visible_operators.operators,
        body=st.sampled_from(("simple", "normed", "dropped", "in place", "noisy", "hooked", "biased")),
        computed=st.booleans(),
        nested=st.booleans(),
        retain=st.booleans(),
        outputs=st.integers(1, 2),
        alone=st.booleans(),
    ),
    floor=8,
)
def test_no_operators_are_seen_but_the_functions(case: Case) -> None:
    """A dispatch mode around forward sees plain's operators, and around backward plain's and those of forward again."""
    case.as_expected()


@for_readers("advanced", "more work than needed", "recursion")
@law(named(written.chain, depth=st.integers(1, 6), before=st.booleans()), needs=["nesting", "recomputes"])
def test_a_leaf_at_depth_d_runs_d_plus_one_times(case: Case) -> None:
    """What lies below d regions runs d + 1 times: in forward, and once for each of these regions."""
    for name, count in case.seen.calls.items():
        due = int(name.split()[1]) + 1
        if count != due:
            measured = Measured("calls", ((name, due),))
            raise Diverges(f"the function of {name} was called {count} times, {due} are due", measured)


@for_readers("advanced", "more work than needed", "transformer blocks in stages")
@law(named(written.siblings, siblings=st.integers(1, 5)), needs=["nesting", "recomputes"], floor=3)
def test_a_parent_is_recomputed_once_for_all_its_regions(case: Case) -> None:
    """Regions that share inputs make their parent run once more in a backward, not once for each of them."""
    if case.equals_plain().calls["parent"] != 2:
        measured = Measured("calls", (("parent", 2),))
        raise Diverges(f"the parent ran {case.seen.calls['parent']} times, 2 are due", measured)


_READ_AGAIN = {"saved": st.integers(1, 5), "times": st.integers(1, 3), "passes": st.integers(1, 2), "nested": st.booleans()}


@for_readers("advanced", "more work than needed", "ctx.saved_tensors")
@law(named(kept_objects.read_again, before=st.just(1), after=st.integers(0, 1), **_READ_AGAIN), floor=5)
def test_reading_saved_tensors_again_recomputes_once(case: Case) -> None:
    """All that a node has saved is there after one recomputation, each time that it is read within a backward."""
    program = cast(Named, case.program)
    times, passes, nested = (dict(program.arguments)[name] for name in ("times", "passes", "nested"))
    for name, runs in {"outer": 1, "inner": 2}.items() if nested else [("outer", 1)]:
        due, calls = 1 + runs * times * passes, case.equals_plain().calls[name]
        if calls > due:
            told = f"{name} was called {calls} times; due are one in forward and {runs} for each of {times * passes} readings"
            raise Diverges(told, Measured("calls", ((name, due),), at_most=True))


_SPLIT = {"parts": st.integers(1, 4), "apart": st.booleans(), "nested": st.booleans()}


def _at_most(case: Case, due: dict[str, int], told: str) -> None:
    for name, count in case.equals_plain().calls.items():
        if count > due[name]:
            measured = Measured("calls", ((name, due[name]),), at_most=True)
            raise Diverges(f"{name} was called {count} times, {due[name]} are due: {told}", measured)


@for_readers("advanced", "more work than needed", "pipeline, split backward")
@law(named(exec_groups.split, before=st.just(False), **_SPLIT), floor=5)
def test_a_group_of_backward_calls_recomputes_once(case: Case) -> None:
    """Backward calls of one GraphExecGroup, which need different parts of a region, recompute it once for all of them."""
    _at_most(case, {"outer": 2, "inner": 3}, "once in forward, and once for the group and each region around")


@for_readers("advanced", "more work than needed", "pipeline, split backward")
@law(named(exec_groups.split, before=st.just(True), **_SPLIT), floor=5)
def test_calls_of_a_group_that_overlap(case: Case) -> None:
    """Backward calls of one GraphExecGroup that need the same tensor are right, and recompute no more than without one."""
    parts = dict(cast(Named, case.program).arguments)["parts"]
    _at_most(case, {"outer": 1 + parts, "inner": 1 + 2 * parts}, f"once in forward, and for each of {parts} calls")


@for_readers("advanced", "more work than needed", "retain_graph")
@law(_costed("retain"), floor=8)
def test_every_backward_recomputes_anew(case: Case) -> None:
    """Each backward over a retained graph calls every function as often as the first one did."""
    calls = Calls()
    case.run(calls)
    marks = {read(label): counts for label, counts in calls.until.items()}
    forward, *until = [it for note, it in marks.items() if note == WHOLE_FORWARD or note.role is Role.GRADIENTS]
    first, *others = [after - before for before, after in itertools.pairwise([forward, *until])]
    for other in others:
        if told := _told("calls in a later backward", first, other):
            _differ("calls", sum([first] * len(until), forward), until[-1], told)
            raise Diverges(told, None)  # in another backward there are as many too few or too many


def _watched(program: Program) -> Program:
    """The same program with a note at each tensor's gradient, that is, when its node is due."""

    def watch(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        lines: list[Statement] = []
        for statement in body:
            if isinstance(statement, Region | Block):
                statement = replace(statement, body=watch(statement.body))
            lines.append(statement)
            if isinstance(statement, Op):
                noted = Noted(Note(Role.DUE, (statement.target,))).code
                lines.append(Line(f"{{0}}.requires_grad and {{0}}.register_hook(lambda grad: {noted})", (statement.target,)))
        return tuple(lines)

    return replace(program, body=watch(program.body))


@for_readers("advanced", "leaked or late memory", "peak memory")
@law(_costed(sometimes=("retain", "partial")).map(_watched), needs=["hidden-saves"], floor=8)
def test_recomputed_tensors_die_as_they_are_unpacked(case: Case) -> None:
    """When a node is due, no tensor of the inside is alive but those that this backward has yet to unpack (rule 4)."""
    storages = Storages()
    case.run(storages)
    bounds: dict[Note, list[int]] = {}
    for name, count in costs(_program(case)).alive:
        bounds.setdefault(Note(Role.DUE, (name,)), []).append(count)
    most = {note: max(counts) for note, counts in bounds.items()}  # of a note that is made several times
    for moment in storages.moments:
        if moment.note in bounds:
            bound = bounds[moment.note].pop(0) if bounds[moment.note] else 0
            alive = sum(bool(made.region) for made in moment.alive)
            if alive > bound:
                told = f"when {moment.note.words[0]} is due, {alive} tensors of the inside are alive, not {bound}"
                due = most[moment.note]
                measured = Measured("inside", ((moment.label, due),), at_most=True) if alive > due else None
                raise Diverges(told, measured)


@st.composite
def _branches(draw: st.DrawFn) -> Program:
    """A region of two outputs that share nothing but its input, and a backward of each, without retaining the graph."""
    unary = sorted((one for one in _OPERATORS if not one.reads_another), key=lambda one: one.template)
    body: list[Statement] = []
    for branch in ("left", "right"):
        ops = [SIN, *draw(st.lists(st.sampled_from(unary), max_size=3))]
        names = ["x", *(f"{branch}{i}" for i in range(1, len(ops))), f"{branch}_end"]
        steps = zip(ops, names, names[1:], strict=False)
        lines = [Op(target, op.template, (source,), op.roundings(2)) for op, source, target in steps]
        inner = (Region(branch, ("x",), (), "x", ("x",), tuple(lines), names[-1], (names[-1],), ((names[-1], ""),)),)
        body += inner if draw(if_nesting(st.booleans(), False)) else lines
    ends = ("left_end", "right_end")
    targets = (("left_out", "[0]"), ("right_out", "[1]"))
    region = Region("both", ("x",), (), "x", ("x",), tuple(body), ", ".join(ends), ends, targets)
    leaf = Leaf("x", "torch.randn(2, 2, device=device, requires_grad=True)", True)
    last_first = ("right_out", "left_out")
    driver = [(Request((out,)), gradients(out, [leaf])) for out in last_first]
    return Program((leaf,), (region,), last_first, tuple(itertools.chain(*driver)))


@for_readers("advanced", "more work than needed", "partial backward")
@law(_branches(), needs=["early-stop"], floor=8)
def test_what_the_graph_has_freed_is_not_recomputed(case: Case) -> None:
    """What one backward has freed is not wanted by the next, whose recomputation stops without it (rules 5 and 6)."""
    case.equals_plain()
    _kernels(case, early_stop=True)


@for_readers("advanced", "more work than needed", "hooks, autograd.grad")
@law(named(written.backward_in_a_hook, after=st.booleans(), nested=st.booleans()), needs=["subset-requests"], floor=3)
def test_a_backward_during_another_recomputes_for_itself(case: Case) -> None:
    """A backward that starts during another one neither reads nor uses up what that one has recomputed (rule 4)."""
    around = 2 if dict(cast(Named, case.program).arguments)["nested"] else 1
    calls, due = case.equals_plain().calls["function"], 1 + 2 * around
    if calls > due:
        measured = Measured("calls", (("function", due),), at_most=True)
        raise Diverges(f"the function was called {calls} times; due are one in forward, {around} in each backward", measured)
