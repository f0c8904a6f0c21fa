"""Under ``torch.compile``: what is compiled computes what plain computes eagerly, and regions are recomputed in it."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import TRACING, names_one
from conformance.judging.verdicts import Crashes, Refuses
from conformance.programs.compiled import EXACT, Compiled, compiled, compiling, sums_of
from conformance.programs.scenarios.compiled import graphs, side_effects, values
from conformance.programs.strategies import CORE, programs
from conformance.rows.for_readers import for_readers
from impls import Implementation

BACKEND = st.sampled_from(EXACT)
PARTITIONS_FIRST = st.sampled_from(EXACT[::-1])  # of few cases, most are with the backend that has a backward graph
SHAPES = st.sampled_from([(2, 2, 5), (2, 2), (2, 5, 2, 7)])  # first what a short profile has to see
DYNAMIC = st.sampled_from([None, False, True])
ADVICE = "\n\nSet TORCHDYNAMO_VERBOSE"  # with which Dynamo ends the message of any error
FRAMES = re.compile(r"\n(?:from user code|Original traceback):")  # after which it shows frames: paths may have any word
COMPILING = frozenset({"torch.compile", "compile", "compiled", "compiling"})
CHANGING = frozenset({"mutate", "mutation", "mutated", "mutating", "side effect", "inplace", "in-place"})
OF_CLAIMS = {
    "closure-gradients": {"closure"},
    "containers": {"containers", "container-outputs"},
    "keyword-arguments": {"keyword"},
    "non-tensor-arguments": {"non-tensors"},
    "non-tensor-outputs": {"non-tensor-outputs"},
}


def as_expected(case: Case, names: Collection[str] = COMPILING) -> None:
    """What the program notes as seen is what it notes as expected.

    A refusal is what Dynamo raises for something that it does not support, or an error whose own message has one of these
    names. Any other error is a crash, also if it is about what is saved or recomputed, as refusals may be elsewhere.
    """
    try:
        case.as_expected()
    except Refuses as refusal:
        _require_refusal(case, refusal, names)
        raise


def _equals_plain(case: Case) -> None:
    """Every note equals plain's; refusals are those of ``as_expected``."""
    try:
        case.equals_plain()
    except Refuses as refusal:
        _require_refusal(case, refusal, COMPILING)
        raise


def _require_refusal(case: Case, refusal: Refuses, names: Collection[str]) -> None:
    from torch._dynamo.exc import InternalTorchDynamoError, Unsupported  # need numpy, which a device machine may lack

    error = (case.failed or case.seen).error
    own = FRAMES.split(str(error))[0].partition(ADVICE)[0]
    if isinstance(error, InternalTorchDynamoError) or not (isinstance(error, Unsupported) or names_one(own, names)):
        told = f"no refusal: it is not Dynamo's Unsupported, and its own message has none of {', '.join(sorted(names))}"
        raise Crashes(f"{refusal.detail}\n{told}", cause=refusal.cause)


def _as_expected_or_refused(case: Case, names: Collection[str] = COMPILING) -> None:
    """As ``as_expected``; a case that is refused proves nothing."""
    try:
        as_expected(case, names)
    except Refuses as refusal:
        case.refusal = refusal.detail


@for_readers("everyday", "wrong gradient", "torch.compile, Dynamo, AOTAutograd, fullgraph")
@law(compiled(programs(), BACKEND), needs=["compiled"], recomputes=False, effort=0.05, floor=1)
def test_compiled_regions_equal_plain(case: Case) -> None:
    """A program compiled into one graph, regions inside of regions among it, gives eager plain's values and gradients."""
    _equals_plain(case)


def _whatever_is_claimed(claims: Implementation) -> st.SearchStrategy[Compiled]:
    features = set[str]().union(*(OF_CLAIMS[one] for one in OF_CLAIMS.keys() & claims.capabilities))
    return compiled(programs(sometimes={*CORE, "retain", "view-outputs", "repeated-inputs", *features}), BACKEND)


@for_readers("everyday", "wrong gradient", "torch.compile, kwargs, containers, closures, retain_graph")
@law(_whatever_is_claimed, needs=["compiled"], recomputes=False, effort=0.05, floor=1)
def test_compiled_regions_take_what_is_claimed(case: Case) -> None:
    """Arguments and results that an implementation takes eagerly are right in a compiled region, too."""
    _equals_plain(case)


@for_readers("everyday", "wrong gradient", "torch.compile, recompilation, dynamic shapes, mark_dynamic")
@law(
    compiling(values.calls, backend=BACKEND, rows=SHAPES, dynamic=DYNAMIC),
    needs=["compiled"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_compiled_regions_called_again(case: Case) -> None:
    """The second call of a compiled region, and one with another shape, give plain's gradients, dynamic shapes or not."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", "torch.compile, inductor, C++, fusion")
@law(
    compiling(
        values.calls, sums_of("inductor"), backend=st.just("inductor"), rows=st.sampled_from([(2,), (2, 5)]), dynamic=DYNAMIC
    ),
    needs=["compiled"],
    recomputes=False,
    effort=0.01,
    floor=1,
    devices=["cpu"],
    compiler=True,
)
def test_regions_compiled_by_inductor(case: Case) -> None:
    """Regions that inductor compiles give plain's values and gradients up to rounding, also when they are called again."""
    as_expected(case)


def _exported(claims: Implementation, *, strict: bool) -> st.SearchStrategy[object]:
    random = st.booleans() if "rng" in claims.capabilities else st.just(False)
    regions = st.sampled_from(["one", "two", "nested"] if "nesting" in claims.capabilities else ["one", "two"])
    return compiling(values.exported, strict=st.just(strict), regions=regions, random=random)


@for_readers("advanced", "wrong gradient", "torch.export, ExportedProgram, ep.module(), set_grad_enabled")
@law(partial(_exported, strict=False), needs=["compiled"], recomputes=False, effort=0.05, floor=1)
def test_exported_regions_equal_plain(case: Case) -> None:
    """A module with regions that is exported gives plain's values and gradients, for other inputs, too."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "torch.export, strict=True, ExportedProgram, tag_activation_checkpoint")
@law(partial(_exported, strict=True), needs=["compiled"], recomputes=False, effort=0.05, floor=1)
def test_regions_exported_by_dynamo_equal_plain(case: Case) -> None:
    """With strict=True, by which Dynamo traces the module, what is exported gives plain's values and gradients, too."""
    as_expected(case)


_REGIONS = st.integers(1, 2)
_DROPOUT = {"regions": _REGIONS, "outside": st.booleans()}


@for_readers("everyday", "wrong gradient", "torch.compile, dropout, functionalize_rng_ops")
@law(
    compiling(values.dropout, backend=st.just("aot_eager"), budget=st.just(1.0), **_DROPOUT),
    needs=["compiled", "rng"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_masks_of_compiled_regions_are_replayed(case: Case) -> None:
    """Dropout in compiled regions draws plain's numbers, gradients are of the same mask, and the stream is where plain's is."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "torch.compile, dropout, backend eager, debugging")
@law(
    compiling(values.dropout, backend=st.just("eager"), budget=st.just(1.0), **_DROPOUT),
    needs=["compiled", "rng"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_masks_in_graphs_that_are_not_compiled(case: Case) -> None:
    """With the backend "eager", which only captures graphs, regions with dropout draw as they do in other graphs."""
    as_expected(case)


_BELOW_ONE = st.sampled_from([0.0, 0.5])


@for_readers("advanced", "wrong gradient", "torch.compile, dropout, activation_memory_budget")
@law(
    compiling(values.dropout, backend=st.just("aot_eager"), budget=_BELOW_ONE, regions=_REGIONS, outside=st.just(False)),
    needs=["compiled", "rng"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_masks_of_regions_within_a_memory_budget(case: Case) -> None:
    """Within an activation memory budget, dropout inside of regions draws forward's numbers in the recomputation."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "torch.compile, dropout, activation_memory_budget")
@law(
    compiling(values.dropout, backend=st.just("aot_eager"), budget=_BELOW_ONE, regions=_REGIONS, outside=st.just(True)),
    needs=["compiled", "rng"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_masks_within_a_memory_budget(case: Case) -> None:
    """Within an activation memory budget, dropout beside regions draws forward's numbers if the partitioner recomputes it."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "torch.compile, graph break, recompilation, recompile limit")
@law(
    compiling(graphs.counted_graphs, rows=SHAPES, regions=st.integers(1, 2), dynamic=DYNAMIC),
    needs=["compiled"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_compiled_regions_are_one_graph(case: Case) -> None:
    """A step with regions is one graph: none breaks it, and it is compiled once for a shape, or once more for all others."""
    as_expected(case)


_BLOCKS = st.integers(1, 3)


@for_readers("everyday", "leaked or late memory", "torch.compile, partitioner, min-cut, saved activations")
@law(
    compiling(graphs.kept_tensors, blocks=_BLOCKS, policy=st.just("nothing")),
    needs=["compiled", "recomputes"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_compiled_regions_save_what_they_are_passed(case: Case) -> None:
    """From the forward graph to the backward graph go the tensors that regions are passed, and no others."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "torch.compile, recomputation, is it enabled")
@law(
    compiling(graphs.kernels_again, blocks=_BLOCKS, policy=st.just("nothing")),
    needs=["compiled", "recomputes"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_compiled_regions_are_recomputed_once(case: Case) -> None:
    """The backward graph runs each operator again that backward needs the result of, once, as eager regions do."""
    as_expected(case)


_POLICY = st.sampled_from(["products", "sines"])


@for_readers(
    "advanced", "leaked or late memory", "torch.compile, SAC, selective checkpointing, create_selective_checkpoint_contexts"
)
@law(
    compiling(graphs.kept_tensors, blocks=_BLOCKS, policy=_POLICY)
    | compiling(
        graphs.kernels_again,
        blocks=st.integers(1, 2),
        policy=st.sampled_from(["sines", "exponentials"]),
    ),
    needs=["compiled", "context-fn"],
    gradients=False,  # plain takes no options
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_policies_keep_what_they_say_when_compiled(case: Case) -> None:
    """A selective policy keeps the same results in a compiled region, and they alone do not run again."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "torch.compile, SAC, in-place, selective checkpointing")
@law(
    compiling(values.in_place_under_a_policy, backend=BACKEND, keeps=st.booleans()),
    needs=["compiled", "context-fn"],
    gradients=False,  # plain takes no options
    recomputes=False,
    effort=0.05,
    floor=1,
    about=TRACING | CHANGING,
)
def test_operators_in_place_under_a_compiled_policy(case: Case) -> None:
    """An in-place operator in a compiled region with a selective policy is neither lost nor done twice, or is refused."""
    _as_expected_or_refused_for_a_change(case)


def _as_expected_or_refused_for_a_change(case: Case) -> None:
    try:
        as_expected(case, COMPILING | CHANGING)
    except Refuses as refusal:
        if not names_one(refusal.detail.partition(ADVICE)[0], CHANGING):
            raise  # what takes no policies is refused for that, and a script shows it
        case.refusal = refusal.detail


@for_readers("advanced", "wrong gradient", "torch.compile, SAC, lazy initialization, side effect, first step")
@law(
    (
        compiling(side_effects.in_the_first_run, backend=BACKEND, switched=st.just("after")),
        compiling(side_effects.in_the_first_run, backend=BACKEND, switched=st.just("inside")),
    ),
    needs=["compiled", "context-fn"],
    gradients=False,  # plain takes no options
    recomputes=False,
    effort=0.05,
    floor=1,
    about=TRACING | CHANGING,
)
def test_operators_of_the_first_run_alone(case: Case) -> None:
    """An operator that runs the first time only is right in a compiled region with a selective policy, or it is refused."""
    _as_expected_or_refused_for_a_change(case)


def _wrapped(claims: Implementation) -> tuple[st.SearchStrategy[object], ...]:
    choices = {"backend": PARTITIONS_FIRST, "rows": st.sampled_from([(2, 5, 7), (2,)])}
    takes_policies = "context-fn" in claims.capabilities
    orders = ["inside", "around", "both", *(["nested"] if "nesting" in claims.capabilities else [])]
    kinds = [(order, st.booleans() if takes_policies else st.just(False)) for order in orders]
    kinds += [("around", st.just(True))] if takes_policies else []
    return tuple(compiling(values.wrapped, order=st.just(order), policy=policy, **choices) for order, policy in kinds)


@for_readers("everyday", "wrong gradient", "torch.compile, wrapping order, apply_activation_checkpointing, cache limit")
@law(_wrapped, recomputes=False, effort=0.05, floor=1, about=TRACING)
def test_compiled_inside_or_around(case: Case) -> None:
    """Whether a region is compiled, what it calls, or both, also inside another region, changes no number: or it is refused."""
    _as_expected_or_refused(case)


def _breaks(claims: Implementation) -> tuple[st.SearchStrategy[object], ...]:
    random = st.sampled_from([True, False]) if "rng" in claims.capabilities else st.just(False)
    places = st.just("inside"), st.just("after")
    return tuple(compiling(values.broken, backend=st.just("aot_eager"), where=where, random=random) for where in places)


@for_readers("everyday", "wrong gradient", "torch.compile, graph break, print")
@law(_breaks, recomputes=False, effort=0.05, floor=1)
def test_graph_breaks_change_no_number(case: Case) -> None:
    """A graph break inside of a region, or between two, changes no value, no gradient and no random number."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "torch.compile, side effect, buffer, BatchNorm, in-place")
@law(
    tuple(compiling(values.mutated, backend=PARTITIONS_FIRST, what=st.just(what)) for what in ("buffer", "result", "argument")),
    needs=["compiled"],
    recomputes=False,
    effort=0.05,
    floor=1,
    about=TRACING | CHANGING,
)
def test_compiled_regions_that_change_tensors(case: Case) -> None:
    """A compiled region that changes a buffer, a result or an argument in place does so once, as plain, or is refused."""
    _as_expected_or_refused(case, COMPILING | CHANGING)


@for_readers("advanced", "wrong gradient", "torch.compile, saved_tensors_hooks, save_on_cpu, offload")
@law(
    compiling(values.hooked, backend=BACKEND, change=st.booleans()), needs=["compiled"], recomputes=False, effort=0.05, floor=1
)
def test_hooks_around_compiled_regions(case: Case) -> None:
    """Hooks for saved tensors that are around a compiled region are called, and change no gradient."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", "torch.compile, tied weights, shared layer, autocast")
@law(
    compiling(values.shared_weight, backend=BACKEND, autocast=st.booleans(), dynamic=DYNAMIC),
    needs=["compiled"],
    recomputes=False,
    effort=0.05,
    floor=1,
)
def test_compiled_regions_that_share_a_weight(case: Case) -> None:
    """Two compiled regions side by side that read one weight give plain's gradients, also under autocast."""
    as_expected(case)


OPTIONS = frozenset({"preserve_rng_state", "debug", "early_stop", "determinism_check", "context_fn"})


@for_readers("advanced", "poor error", "torch.compile, preserve_rng_state, early_stop, debug, context_fn")
@law(
    (
        compiling(values.options, backend=PARTITIONS_FIRST, option=st.just("debug")),
        compiling(values.options, backend=PARTITIONS_FIRST, option=st.just("determinism_check")),
        compiling(values.options, backend=PARTITIONS_FIRST, option=st.just("context_fn")),
        compiling(values.not_replayed, backend=PARTITIONS_FIRST, option=st.just("preserve_rng_state")),
        compiling(values.not_stopped, backend=PARTITIONS_FIRST, option=st.just("early_stop")),
    ),
    needs=["compiled"],
    gradients=False,  # plain takes no options
    recomputes=False,
    effort=0.04,
    floor=1,
    about=OPTIONS,
)
def test_options_of_compiled_regions_are_kept_or_refused(case: Case) -> None:
    """An option that a compiled region is given does what it does eagerly, in each call, or is refused by its name."""
    option = dict(case.program.arguments)["option"]  # type: ignore[attr-defined]  # programs written by hand say what they are
    try:
        as_expected(case, {option})
    except Refuses as refusal:
        if "compiled" not in case.implementation.capabilities:
            raise  # whatever it is given
        error = (case.failed or case.seen).error
        own = getattr(error, "msg", str(error))  # Dynamo's own message, without the user's code, which names the option, too
        if not names_one(own, {option}):
            raise Crashes(f"{refusal.detail}\nno refusal: it does not name {option}", cause=refusal.cause) from refusal


@for_readers("advanced", "leaked or late memory", "torch.compile, activation_memory_budget, knapsack, partitioner")
@law(compiling(graphs.budgets, regions=st.integers(1, 2)), needs=["compiled"], recomputes=False, effort=0.02, floor=1)
def test_less_budget_saves_no_more(case: Case) -> None:
    """With a smaller activation memory budget no more is saved, in the end less, and gradients are the same."""
    as_expected(case)


@for_readers("advanced", "leaked or late memory", "torch.compile, activation_memory_budget, peak memory, out of memory")
@law(compiling(graphs.peaks, regions=st.integers(2, 3)), needs=["compiled"], recomputes=False, effort=0.02, floor=1)
def test_less_budget_peaks_no_higher(case: Case) -> None:
    """With a smaller activation memory budget no more is alive at once in forward and backward."""
    as_expected(case)


def _with_autograd(claims: Implementation, *, eager: bool) -> st.SearchStrategy[object]:
    random = st.booleans() if "rng" in claims.capabilities else st.just(False)
    # In a graph, the backend eager draws other masks in the recomputation: another law is about that.
    backend = st.sampled_from(["eager", "aot_eager"] if eager else ["aot_eager"])
    choices = {"backend": backend, "passes": st.integers(1, 2), "random": random, "eager": st.just(eager)}
    return compiling(values.with_compiled_autograd, **choices)


@for_readers("advanced", "wrong gradient", "torch.compile, compiled autograd, DDP, FSDP")
@law(partial(_with_autograd, eager=False), recomputes=False, effort=0.02, floor=1, about=TRACING)
def test_compiled_autograd_changes_no_number(case: Case) -> None:
    """With compiled autograd a compiled step with regions gives plain's gradients, in the second call, too, or is refused."""
    _as_expected_or_refused(case)


@for_readers("advanced", "poor error", "torch.compile, compiled autograd, DDP, FSDP")
@law(partial(_with_autograd, eager=True), recomputes=False, effort=0.04, floor=1)
def test_compiled_autograd_over_eager_regions(case: Case) -> None:
    """A backward that compiled autograd compiles, over a region that ran eagerly, gives plain's gradients, each time."""
    as_expected(case)
