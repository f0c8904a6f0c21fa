"""Changes of saved tensors: where they are allowed, backward sees what was saved, and no more is cloned than must be."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.generator.operators import OPERATORS
from conformance.programs.scenarios.graph.generated import Around
from conformance.programs.scenarios.graph.mutation import changes as mutation
from conformance.programs.strategies import CORE, named, programs
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", recomputes=False)

BOTH = st.booleans()
CONTEXT = "graph.allow_mutation_on_saved_tensors()"
# An operator that saves a buffer and then writes it gives a hook what is not there yet.
INSIDE = sorted({*OPERATORS, *CORE, "no-grad", "hooks", "closure", "escaping"} - {"late-noise"})
REQUESTS = ["grad", "inputs", "partial", "retain", "complex", "bfloat16", "non-contiguous"]


def _around(*always: str, requests: list[str]) -> st.SearchStrategy[Around]:
    return st.builds(Around, programs(always, [*INSIDE, *requests], depth=1), st.just(CONTEXT), st.just(True))


@for_readers("everyday", "wrong gradient", "allow_mutation_on_saved_tensors")
@graph_law(_around(requests=[*REQUESTS, "create-graph"]), effort=0.7, floor=3)
def test_nothing_changes_where_nothing_is_changed(case: Case) -> None:
    """Programs that change no saved tensor get plain's gradients where such changes are allowed."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place")
@graph_law(_around("mutated", requests=REQUESTS), effort=0.7, floor=3)
def test_tensors_changed_after_forward(case: Case) -> None:
    """Tensors changed in place after forward give the gradients of their values in forward, whatever had saved them."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place")
@graph_law(_around("corrupted", requests=REQUESTS), effort=0.7, floor=3)
def test_tensors_changed_in_forward(case: Case) -> None:
    """Tensors that forward changes in place after they were saved give the gradients of the values that were saved."""
    case.equals_plain()


OPERATOR = st.sampled_from(
    ["sin", "exp", "mul", "square", "pow", "div", "matmul", "linear", "softmax", "layer_norm", "where", "max", "function"]
)
SAVED = st.sampled_from(["first", "second", "result", "leaf"])
WAYS = ["method", "zero", "copy", "item", "index", "masked", "random"]
VIEWS = ["part", "column", "flat", "transposed"]


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place")
@graph_law(
    named(
        mutation.mutated,
        operator=OPERATOR,
        saved=SAVED,
        mutation=st.sampled_from([*WAYS, "swap"]),
        grad=BOTH,
        passes=st.just(1),
    ),
    effort=0.8,
    floor=3,
)
def test_a_saved_tensor_changed_by_a_method(case: Case) -> None:
    """A saved tensor, input, result or leaf of any operator, that a method writes to gives the gradients of its saved value."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place, view")
@graph_law(
    named(mutation.mutated, operator=OPERATOR, saved=SAVED, mutation=st.sampled_from(VIEWS), grad=BOTH, passes=st.just(1)),
    effort=0.7,
    floor=3,
)
def test_a_saved_tensor_changed_through_a_view(case: Case) -> None:
    """A saved tensor that is written to through a view of it, at any offset, gives the gradients of its saved value."""
    case.equals_plain()


BASED = st.sampled_from(["base", "method", "part", "column", "flat"])


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place, view")
@graph_law(
    named(mutation.mutated, operator=OPERATOR, saved=st.just("view"), mutation=BASED, grad=st.just(False), passes=st.just(1)),
    effort=0.6,
    floor=3,
)
def test_a_saved_view_changed_through_its_base(case: Case) -> None:
    """A view that was saved gives the gradients of its saved value when its base is written to, or another view of that."""
    case.equals_plain()


INDEX = st.tuples(st.just("gather"), st.just("index")) | st.tuples(st.just("where"), st.just("condition"))


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, mask")
@graph_law(
    INDEX.flatmap(
        lambda pair: named(
            mutation.mutated,
            operator=st.just(pair[0]),
            saved=st.just(pair[1]),
            mutation=st.sampled_from(["zero", "copy", "item", "random"]),
            grad=st.just(False),
            passes=st.just(1),
        )
    ),
    floor=4,
)
def test_a_saved_index_or_condition_changed(case: Case) -> None:
    """Indices and conditions that were saved and then changed give the gradients of what they were."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, retain_graph")
@graph_law(
    named(mutation.mutated, operator=OPERATOR, saved=SAVED, mutation=st.sampled_from(["method", "zero"]), grad=st.just(False),
          passes=st.integers(2, 3)), effort=0.6, floor=3)  # fmt: skip
def test_changes_between_backward_passes(case: Case) -> None:
    """A tensor that is changed before each backward over a retained graph gives the gradients of its saved value each time."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, .data")
@graph_law(
    named(mutation.mutated, operator=OPERATOR, saved=SAVED, mutation=st.just("data"), grad=st.just(False), passes=st.just(1)),
    effort=0.5,
)
def test_changes_through_data(case: Case) -> None:
    """A saved tensor that is changed through .data gives the gradients of its saved value."""
    case.equals_plain()


_SPARSE = {"layout": st.sampled_from(["coo", "csr", "csc"]), "way": st.sampled_from(["values", "method"])}


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, torch.sparse")
@graph_law(named(mutation.sparse, passes=st.integers(1, 2), **_SPARSE), gradients=False)
def test_a_sparse_tensor_changed_by_its_values(case: Case) -> None:
    """A saved sparse tensor, compressed or not, that is changed by a method or through its values gives the right gradients."""
    case.as_expected()


WRITTEN = st.sampled_from(["mul", "square", "exp", "gather", "many"])


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, out=")
@graph_law(named(mutation.written, operator=WRITTEN, mutation=st.sampled_from(["add out", "mul out", "mm out", "cat out"])))
def test_a_saved_tensor_as_out(case: Case) -> None:
    """A saved tensor to which an operator writes its result gives the gradients of its saved value."""
    case.equals_plain()


SEVERAL = st.sampled_from(["sort out", "max out", "topk out", "frexp out"])


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, out=")
@graph_law(named(mutation.written, operator=WRITTEN, mutation=SEVERAL), effort=0.5)
def test_saved_tensors_as_several_outs(case: Case) -> None:
    """Saved tensors to which an operator writes several results give the gradients of their saved values."""
    case.equals_plain()


FOREACH = st.sampled_from(["foreach mul", "foreach add", "foreach copy", "foreach zero"])


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, foreach, optimizer")
@graph_law(named(mutation.written, operator=WRITTEN, mutation=FOREACH))
def test_saved_tensors_in_a_list(case: Case) -> None:
    """Saved tensors to which a foreach operator writes give the gradients of their saved values."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, foreach")
@graph_law(named(mutation.written, operator=WRITTEN, mutation=st.just("foreach of views")), floor=4)
def test_views_of_saved_tensors_in_a_list(case: Case) -> None:
    """Saved tensors to whose views a foreach operator writes give the gradients of their saved values."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, in place")
@graph_law(named(mutation.saved_again, change=st.sampled_from(["method", "view"]), times=st.integers(1, 2)), floor=3)
def test_what_is_changed_is_saved_again(case: Case) -> None:
    """A tensor that is saved, changed and saved again gives the gradients of its value at each time."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, foreach")
@graph_law(
    named(mutation.saved_again, change=st.sampled_from(["foreach add", "foreach mul"]), times=st.integers(1, 2)), floor=3
)
def test_what_is_changed_in_a_list_is_saved_again(case: Case) -> None:
    """A tensor that is saved, changed by a foreach operator and saved again gives the gradients of its value at each time."""
    case.equals_plain()


OPTIMIZER = st.sampled_from(["SGD", "Adam", "AdamW", "RMSprop"])


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, optimizer step, pipeline")
@graph_law(
    named(mutation.stepped, optimizer=OPTIMIZER, foreach=st.sampled_from([None, True, False]), steps=st.integers(1, 2)),
    effort=0.4,
)
def test_weights_stepped_before_backward_where_allowed(case: Case) -> None:
    """Weights that an optimizer changes between forward and backward give the gradients of what they were in forward."""
    case.equals_plain()


SAVES, CHANGES = ["sin", "square"], ["change", "out", "drop", "backward", "unrelated"]


def _events(kinds: list[str]) -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 1)), min_size=1, max_size=8).map(tuple)


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, out=, resize")
@graph_law(named(mutation.grown, size=st.sampled_from([1, 3, 6]), offset=st.sampled_from([1, 2, 4])), gradients=False)
def test_an_out_that_grows(case: Case) -> None:
    """An out= argument that is given another size, and so reaches what was saved, gives the gradients of what was there."""
    case.as_expected()


BY = st.sampled_from(["module", "operator"])


@for_readers("advanced", "wrong gradient", "BatchNorm, running statistics, eval")
@graph_law(named(mutation.normalised, by=BY, passes=st.integers(1, 2), later=st.integers(0, 2)), gradients=False)
def test_statistics_changed_before_backward(case: Case) -> None:
    """Running statistics that batch norm read in eval mode, and changes in training, give the gradients of what it read."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, rrelu")
@graph_law(named(mutation.drawn_late, inplace=BOTH, times=st.integers(1, 4)), gradients=False)
def test_noise_that_is_drawn_once_it_is_saved(case: Case) -> None:
    """What an operator, such as rrelu, draws into a buffer that it has saved is what backward reads; that is no change."""
    case.as_expected()


@for_readers("advanced", "more work than needed", "allow_mutation_on_saved_tensors, copies")
@graph_law(named(mutation.counted, events=_events([*SAVES, *CHANGES])), gradients=False, effort=0.7, floor=3)
def test_counts_of_clones_are_exact(case: Case) -> None:
    """Each saved tensor that is changed while a graph needs it is cloned once, and nothing else is cloned."""
    case.as_expected()


@for_readers("advanced", "more work than needed", "allow_mutation_on_saved_tensors, copies, view")
@graph_law(named(mutation.counted, events=_events([*SAVES, "result", *CHANGES, "view", "view"])), gradients=False, effort=0.7)
def test_counts_of_clones_are_exact_through_views(case: Case) -> None:
    """Each saved tensor or result that is changed, also through a view, while a graph needs it is cloned once, nothing else."""
    case.as_expected()


SPAN = st.sampled_from([(start, end) for start in range(8) for end in range(start + 1, 9)])


@for_readers("advanced", "more work than needed", "allow_mutation_on_saved_tensors, copies, view")
@graph_law(named(mutation.beside, saved=SPAN, changed=SPAN), gradients=False)
def test_a_change_beside_a_saved_view_clones_nothing(case: Case) -> None:
    """A saved view is cloned when a change of its base reaches it, and not when other elements are changed."""
    case.as_expected()
