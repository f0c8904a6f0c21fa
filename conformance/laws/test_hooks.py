"""Hooks for saved tensors: the innermost pair is asked for what is saved, in order, and what it brings is used."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch
from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed, no_growth
from conformance.programs.generator.operators import DTYPES, OPERATORS
from conformance.programs.scenarios import saved_leaves
from conformance.programs.scenarios.graph import hook_errors as errors
from conformance.programs.scenarios.graph import hooks, saved
from conformance.programs.scenarios.graph.generated import Around, Steps
from conformance.programs.schedules import schedules
from conformance.programs.strategies import CORE, named, programs
from conformance.programs.sums import DIFFERENTIATED
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", recomputes=False)

BOTH = st.booleans()
# An operator that saves a buffer and then writes it gives a hook what is not there yet.
INSIDE = {*OPERATORS, "nesting", "no-grad", "hooks", "closure", "escaping"} - {"late-noise"}
REQUESTS = {"grad", "create-graph", "inputs", "partial", "retain", "stream"}
FEATURES = sorted({*INSIDE, *REQUESTS, *DTYPES, "non-contiguous"})

KEEPING = ("lambda t: t, lambda t: t", "lambda t: t.detach(), lambda t: t", "lambda t: [t], lambda box: box[0]")
COPYING = (
    "lambda t: t.detach().clone(), lambda t: t",
    "lambda t: (t.device, t.detach().to('cpu', copy=True)), lambda packed: packed[1].to(packed[0])",
    "lambda t: [t.detach().clone()], lambda box: box[0].clone()",
)
ERROR = st.sampled_from([None, "Exception", "KeyboardInterrupt"])


def _pair(texts: Collection[str]) -> st.SearchStrategy[str]:
    return st.sampled_from([f"graph.saved_tensors_hooks({text})" for text in texts])


def _around(texts: Collection[str], sometimes: Collection[str], always: Collection[str] = ()) -> st.SearchStrategy[Around]:
    return st.builds(Around, programs(always, sometimes, depth=1), _pair(texts), BOTH)


@for_readers("everyday", "wrong gradient", "saved_tensors_hooks, offload, compression, quantisation")
@graph_law(_around(COPYING, FEATURES), effort=0.8, floor=3)
def test_copies_of_saved_tensors_do_as_well(case: Case) -> None:
    """Under hooks that bring back copies gradients equal plain's, whatever was saved and however they are asked for."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "saved_tensors_hooks")
@graph_law(_around(KEEPING, [*FEATURES, "late-noise"]), effort=0.8, floor=3)
def test_hooks_that_keep_the_tensor_change_nothing(case: Case) -> None:
    """Under hooks that bring back the saved tensor itself gradients equal plain's."""
    case.equals_plain()


@for_readers("advanced", "poor error", "retain_graph")
@graph_law(_around([*KEEPING, *COPYING], [*CORE, "retain", "partial", "create-graph"], ["again"]), gradients=False, floor=8)
def test_a_freed_graph_is_refused_under_hooks(case: Case) -> None:
    """A second backward over a graph that was not retained raises what plain raises."""
    case.equals_plain()


SHAPES = ("leaf", "intermediate", "detached", "scalar", "empty", "transposed", "channels last", "conj", "neg", "bfloat16")
ANY = st.sampled_from([*SHAPES, "slice", "expanded", "sparse", "csr", "integer"])
KEEPS = st.sampled_from(["identity", "detach", "box"])


@for_readers("everyday", "wrong gradient", "autograd.Function, ctx.saved_tensors, FlashAttention")
@graph_law(named(hooks.unlike, kind=ANY, hooks=KEEPS, reader=st.just("function")), gradients=False)
def test_a_custom_function_reads_what_it_saved(case: Case) -> None:
    """Values, strides, dtype, device, layout, conjugation and requires_grad of ctx.saved_tensors are those without hooks."""
    case.equals_plain()


CONTEXT = st.sampled_from(["hooks", "save_on_cpu", "allow_mutation_on_saved_tensors"])
THEN = st.sampled_from(["another backward", "clipping", "zeroing"])


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, clip_grad_norm_, fused kernel")
@graph_law(named(saved_leaves.returned_under_hooks, context=CONTEXT, then=THEN), effort=0.5, floor=3)
def test_gradients_under_hooks_are_no_weights(case: Case) -> None:
    """Under hooks, a custom Function whose backward returns a leaf that it saved makes .grad a copy of it."""
    case.equals_plain()


USE = st.sampled_from(["an attribute", "the gradient"])


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, main_grad, fused accumulation")
@graph_law(named(saved_leaves.itself_under_hooks, context=CONTEXT, use=USE), effort=0.5, floor=2)
def test_a_saved_leaf_is_itself_under_hooks(case: Case) -> None:
    """Under hooks, ctx.saved_tensors of a custom Function has the leaf that was saved, with its attributes and its .grad."""
    case.equals_plain()


LENGTHS = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
RAGGED = st.sampled_from(["kept", "copied", "on the CPU", "changed"])
LAYOUT = st.sampled_from([torch.strided, torch.jagged])


@for_readers("advanced", "wrong gradient", "NestedTensor, jagged")
@graph_law(named(hooks.ragged, how=RAGGED, lengths=LENGTHS, layout=LAYOUT, passes=st.integers(1, 2)), effort=0.5)
def test_nested_tensors_under_hooks(case: Case) -> None:
    """Nested tensors, which have no size, that are saved, copied, moved to the CPU or changed give plain's gradients."""
    case.equals_plain()


READER = st.sampled_from(["operands", "result"])


@for_readers("advanced", "wrong gradient", "grad_fn, _saved_self")
@graph_law(named(hooks.unlike, kind=st.sampled_from(SHAPES), hooks=KEEPS, reader=READER), gradients=False, effort=0.6, floor=3)
def test_a_node_shows_what_it_saved(case: Case) -> None:
    """Values, strides, dtype, device, conjugation and requires_grad of a node's saved tensors are those without hooks."""
    case.equals_plain()


# A copy of a lazy conjugate is materialised, and one of a view that skips bytes is made without them.
COPIED = st.sampled_from([shape for shape in SHAPES if shape not in ("conj", "neg")])


@for_readers("advanced", "wrong gradient", "grad_fn, _saved_self")
@graph_law(named(hooks.unlike, kind=COPIED, hooks=st.just("clone"), reader=READER), gradients=False, effort=0.5)
def test_a_node_shows_what_a_copy_is(case: Case) -> None:
    """A node's saved tensors look the same when hooks bring back copies of them."""
    case.equals_plain()


STEPS = st.lists(st.sampled_from(["sin", "exp", 0, 1, 2, 3]), min_size=1, max_size=5).map(tuple)


@for_readers("advanced", "more work than needed", "saved_tensors_hooks, overhead")
@graph_law(named(hooks.order, steps=STEPS, reads=st.integers(1, 2), passes=st.integers(1, 3)), effort=0.6, floor=3)
def test_each_tensor_is_packed_once_and_unpacked_once_a_read(case: Case) -> None:
    """Tensors are packed once in the order in which they are saved, and unpacked once each time that a backward reads them."""
    case.as_expected()


@for_readers("advanced", "wrong state", "saved_tensors_hooks")
@graph_law(named(hooks.pairs, depth=st.integers(1, 4), error=ERROR, after=st.integers(0, 2)))
def test_the_innermost_pair_alone_is_asked(case: Case) -> None:
    """Of nested pairs only the innermost is asked; once it is exited, by an error too, the one around it is."""
    case.as_expected()


PATTERN = st.tuples(st.text("ab-", max_size=3), st.sampled_from("ab"), st.text("ab-", max_size=4)).map("".join)


@for_readers("advanced", "wrong state", "saved_tensors_hooks")
@graph_law(named(hooks.reentered, pattern=PATTERN))
def test_a_pair_can_be_entered_again(case: Case) -> None:
    """One pair can be entered again, after it was left and inside of itself or of another."""
    case.as_expected()


ORDER = st.integers(1, 4).flatmap(lambda count: st.permutations(range(count))).map(tuple)


@for_readers("adversarial", "wrong state", "saved_tensors_hooks, generator function")
@graph_law(named(hooks.left, order=ORDER))
def test_pairs_may_be_left_in_any_order(case: Case) -> None:
    """Pairs may be exited in any order, as generators do it: the innermost of those that are still entered is asked."""
    case.as_expected()


@for_readers("advanced", "wrong state", "saved_tensors_hooks, threads")
@graph_law(named(hooks.threads, main=BOTH, other=BOTH, waits=BOTH), floor=4)
def test_hooks_belong_to_a_thread(case: Case) -> None:
    """A pair is asked for what the thread saves that entered it, and for nothing else."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "saved_tensors_hooks, create_graph")
@graph_law(named(hooks.later, DIFFERENTIATED, around=BOTH, create=BOTH), floor=3)
def test_what_a_pair_packed_it_unpacks(case: Case) -> None:
    """A backward asks the pair that packed; the pair around backward is asked for what backward saves."""
    case.as_expected()


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@graph_law(_around(KEEPING, [*CORE, "closure", "custom-function", "views", "retain"], ["mutated"]), gradients=False, floor=8)
def test_hooks_do_not_hide_a_change(case: Case) -> None:
    """A saved tensor that was changed in place after forward is an error under hooks that bring it back, as it is in plain."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@graph_law(_around(KEEPING, [*CORE, "custom-function"], ["corrupted"]), gradients=False, floor=8)
def test_hooks_do_not_hide_a_change_in_forward(case: Case) -> None:
    """A saved tensor that forward itself changes in place is an error under hooks that bring it back, as it is in plain."""
    case.equals_plain()


CHANGES = st.sampled_from(["method", "part", "item", "out", "foreach", "copy", "nothing"])
LATE = ("detached late", "copied late", "detached and copied late")
ALIASES = st.sampled_from(["identity", "detach", "view", *LATE, "box"])
SAVED = st.sampled_from(["input", "result", "function", "result of function"])


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@graph_law(
    named(saved.changed, hooks=ALIASES, saved=SAVED, change=CHANGES),
    gradients=False,
)  # fmt: skip
def test_a_change_in_any_way_is_noticed(case: Case) -> None:
    """Under hooks that bring back the tensor or a view of it, whatever wrote to a saved input or output is an error."""
    case.equals_plain()


HOOKS, OPERATOR = (
    st.sampled_from(["clone", "clone late", "bytes", "list"]),
    st.sampled_from(["sin", "exp", "square", "function"]),
)


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@graph_law(
    named(saved.copied, hooks=HOOKS, operator=OPERATOR, change=st.sampled_from(["method", "add", "copy"])), gradients=False
)
def test_a_change_after_a_copy_is_harmless(case: Case) -> None:
    """Where hooks bring back a copy, the tensor may be changed in place, and gradients are those of its value when saved."""
    case.as_expected()


OPERATORS_FREED = st.lists(
    st.sampled_from(["exp", "tanh", "sigmoid", "sin", "sqrt", "matmul", "function"]), min_size=1, max_size=3
).map(tuple)
FREEING = st.lists(st.sampled_from(["backward", "grad", "read"]), max_size=2).map(tuple)


@for_readers("everyday", "leaked or late memory", "saved_tensors_hooks, memory leak")
@graph_law(
    named(saved.freed, hooks=st.sampled_from(["detach", "clone"]), operators=OPERATORS_FREED, leaf=BOTH, steps=FREEING),
    gradients=False,
    effort=0.5,
    floor=3,
)
def test_a_graph_under_hooks_is_freed(case: Case) -> None:
    """A graph under hooks that detach or copy is freed with its outputs, whatever was asked of it before."""
    all_freed(case)


RETURNING = st.sampled_from(["identity", "tuple", "view", "deep tuple", "named tuple"])


@for_readers("everyday", "leaked or late memory", "saved_tensors_hooks, memory leak, garbage collector")
@graph_law(
    named(saved.freed, hooks=RETURNING, operators=OPERATORS_FREED, leaf=BOTH, steps=FREEING),
    gradients=False,
    effort=0.6,
    floor=3,
)
def test_a_pair_that_returns_its_argument_makes_no_cycle(case: Case) -> None:
    """A graph under hooks that return the tensor itself, or a view of it, is freed with its outputs, saved ones too."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "saved_tensors_hooks, memory leak")
@graph_law(
    st.builds(Steps, schedules(["whole", "some", "part", "forward", "drop"], drop=True), _pair(KEEPING[1:2] + COPYING)),
    effort=0.6,
    floor=3,
)
def test_dropped_graphs_under_hooks_are_freed(case: Case) -> None:
    """Graphs under hooks are freed as they are dropped, before any backward, after a retained one and a partial one."""
    all_freed(case)


@for_readers("adversarial", "leaked or late memory", "stack overflow, segmentation fault")
@graph_law(
    named(saved.deep, hooks=st.sampled_from(["identity", "identity of results", "save_on_cpu"]), operators=st.just(5_000)),
    floor=3,
)
def test_deep_graphs_under_hooks_are_freed(case: Case) -> None:
    """A graph of five thousand operators under hooks is freed on a thread whose stack is small, of 512 KiB."""
    case.equals_plain()


@for_readers("everyday", "leaked or late memory", "saved_tensors_hooks, memory leak, training loop")
@graph_law(named(saved.grows, hooks=st.sampled_from(["identity", "save_on_cpu"]), retained=BOTH), floor=3)
def test_hooks_leave_nothing_behind(case: Case) -> None:
    """Step after step under one pair, over one retained graph or over new ones, there are no more objects than before."""
    case.equals_plain()
    no_growth(case)


RAISED = st.sampled_from(["Exception", "ValueError", "KeyboardInterrupt"])


def _failing(where: str) -> st.SearchStrategy[Any]:
    return named(errors.failing, where=st.just(where), error=RAISED, turn=st.integers(1, 3), around=BOTH)


@for_readers("advanced", "poor error", "saved_tensors_hooks, exception")
@graph_law(_failing("pack"), gradients=False)
def test_an_error_in_pack_reaches_the_user(case: Case) -> None:
    """What a pack hook raises comes out of the operator as it is; the hooks around are asked again, and a retry is right."""
    case.as_expected()


@for_readers("advanced", "poor error", "saved_tensors_hooks, exception")
@graph_law(_failing("unpack"), gradients=False)
def test_an_error_in_unpack_reaches_the_user(case: Case) -> None:
    """What an unpack hook raises comes out of backward as it is; the hooks around are asked again, and a retry is right."""
    case.as_expected()


WRONG = st.sampled_from([3, None, "text", "tensor"])
OPERATORS_READING = st.sampled_from(["sin", "exp", "function"])


@for_readers("adversarial", "poor error", "saved_tensors_hooks")
@graph_law(named(errors.returned, wrong=WRONG, operator=OPERATORS_READING), gradients=False)
def test_unpack_must_bring_a_tensor(case: Case) -> None:
    """An unpack hook that returns no tensor is refused with a TypeError, and no gradient comes of it."""
    case.as_expected()


@for_readers("adversarial", "wrong gradient", "saved_tensors_hooks, in place")
@graph_law(
    named(errors.modifying, operator=st.sampled_from(["sin", "cos"]), change=st.sampled_from(["add", "zero", "part"])),
    gradients=False,
)
def test_pack_must_not_change_its_argument(case: Case) -> None:
    """A pack hook that changes its argument in place is refused in forward."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "saved_tensors_hooks, rrelu, copies")
@graph_law(named(errors.copied_early, inplace=BOTH, rows=st.integers(1, 4)), gradients=False)
def test_copies_of_noise_that_is_not_drawn_yet(case: Case) -> None:
    """A copy that a pack hook made of the noise of rrelu, which is drawn once it is saved, is refused in backward."""
    case.as_expected()


@for_readers("advanced", "poor error", "saved_tensors_hooks")
@graph_law(named(errors.uncallable, wrong=st.sampled_from([3, None, "text"]), first=BOTH), gradients=False)
def test_hooks_must_be_callable(case: Case) -> None:
    """What cannot be called is refused as a hook before anything is saved, and the hooks around stay."""
    case.as_expected()


@for_readers("advanced", "wrong state", "saved_tensors_hooks, save_on_cpu, subclass")
@graph_law(named(errors.derived, base=st.sampled_from(["hooks", "host"]), nested=BOTH), gradients=False, floor=4)
def test_classes_can_be_derived(case: Case) -> None:
    """A class that is derived from saved_tensors_hooks or save_on_cpu works as one, and shows its pair of hooks."""
    case.as_expected()


CONTEXT = st.sampled_from(["hooks", "save_on_cpu"])


@for_readers("advanced", "poor error", "disable_saved_tensors_hooks")
@graph_law(named(errors.disabled, depth=st.integers(1, 3), error=ERROR, context=CONTEXT), gradients=False)
def test_disabled_hooks_cannot_be_entered(case: Case) -> None:
    """Where hooks are disabled, entering them raises the innermost message; the one before is back afterwards, always."""
    case.as_expected()


@for_readers("advanced", "wrong state", "disable_saved_tensors_hooks, threads")
@graph_law(named(errors.disabled_elsewhere, before=BOTH), gradients=False, floor=2)
def test_disabling_belongs_to_a_thread(case: Case) -> None:
    """Hooks are disabled for the thread that says so, and for no other."""
    case.as_expected()


@for_readers("advanced", "poor error", "disable_saved_tensors_hooks")
@graph_law(named(errors.disabled_inside, depth=st.integers(1, 3), context=CONTEXT), floor=3)
def test_hooks_cannot_be_disabled_while_they_are_on(case: Case) -> None:
    """Disabling inside of hooks raises the message, and leaves both the hooks and their being enabled as they were."""
    case.as_expected()
