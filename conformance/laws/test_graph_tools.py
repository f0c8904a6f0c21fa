"""Tools for graphs: edges stand for tensors, versions count changes, and a backward can be logged."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed
from conformance.programs.scenarios.graph import newer_names, tools
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", recomputes=False)

BOTH = st.booleans()
INNER = ("result", "view", "view of a leaf", "changed", "one of several", "sorted", "function", "above a function")


def _edge(kinds: tuple[str, ...], role: str) -> st.SearchStrategy[Any]:
    return named(tools.edge, kind=st.sampled_from(kinds), role=st.just(role), dies=BOTH)


@for_readers("advanced", "wrong gradient", "get_gradient_edge")
@graph_law(_edge(("leaf", "parameter", *INNER), "input"), gradients=False)
def test_an_edge_stands_for_an_input(case: Case) -> None:
    """The gradient of a loss with respect to an edge is that of its tensor: a leaf, view, or any output of any node."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "get_gradient_edge")
@graph_law(_edge(INNER, "output"), gradients=False)
def test_an_edge_stands_for_an_output(case: Case) -> None:
    """Gradients that are asked of an edge are those of its tensor, also once the tensor is gone."""
    case.as_expected()


@for_readers("advanced", "leaked or late memory", "get_gradient_edge")
@graph_law(
    named(tools.edge_freed, kind=st.sampled_from(["result", "function", "above a function"]), used=BOTH), effort=0.5, floor=4
)
def test_an_edge_keeps_its_graph_and_no_longer(case: Case) -> None:
    """An edge keeps the graph below it alive, custom Functions too, and the graph is freed with it."""
    all_freed(case)


MODES = st.sampled_from(["no_grad", "inference_mode", "enable_grad"])


@for_readers("advanced", "wrong gradient", "get_gradient_edge, no_grad")
@graph_law(named(tools.edge_in_a_mode, mode=MODES, leaf=BOTH), gradients=False)
def test_an_edge_is_found_in_any_mode(case: Case) -> None:
    """An edge that is asked for under no_grad or in inference_mode is the tensor's, for a leaf too."""
    case.as_expected()


WRONG = st.sampled_from(["no grad", "integer", "none", "number", "list", "node"])


@for_readers("advanced", "poor error", "get_gradient_edge")
@graph_law(named(tools.edge_refused, wrong=WRONG), gradients=False)
def test_what_has_no_edge_is_refused(case: Case) -> None:
    """A tensor that does not require grad and what is no tensor is refused by an error that says so."""
    case.as_expected()


KIND = st.sampled_from(["result", "leaf", "function", "view", "sum", "tensor", "none"])


@for_readers("advanced", "wrong state", "Node, grad_fn, isinstance")
@graph_law(named(tools.nodes, kind=KIND), gradients=False)
def test_nodes_are_known_as_such(case: Case) -> None:
    """Nodes of operators, leaves and custom Functions are instances of Node, and nothing else is."""
    case.as_expected()


FORM = st.sampled_from(["tensor", "list", "tuple", "generator", "set", "nothing"])


@for_readers("advanced", "wrong gradient", "increment_version, custom kernel")
@graph_law(named(tools.versions, form=FORM, times=st.integers(1, 2), view=BOTH), gradients=False)
def test_an_incremented_version_is_a_change(case: Case) -> None:
    """increment_version counts a change of one tensor or several, no other, and backward refuses what was saved before."""
    case.as_expected()


NOT = st.sampled_from([3, None, "text"])


@for_readers("advanced", "poor error", "increment_version")
@graph_law(named(tools.versions_refused, wrong=NOT, first=BOTH, alone=BOTH), gradients=False)
def test_versions_of_tensors_alone(case: Case) -> None:
    """What is no tensor is refused, and no version is changed, not even of tensors beside it."""
    case.as_expected()


@for_readers("adversarial", "wrong state", "increment_version, inference_mode")
@graph_law(named(tools.versions_of_inference, form=st.sampled_from(["alone", "list"])), gradients=False, floor=2)
def test_inference_tensors_have_no_version(case: Case) -> None:
    """An inference tensor is passed over by increment_version, and others beside it are not."""
    case.as_expected()


STEP = st.sampled_from([("sin",), ("t",), ("dtype",), ("unsqueeze", "squeeze"), ("function",)])
STEPS = st.lists(STEP, min_size=1, max_size=4).map(lambda steps: sum(steps, ()))


def _logged(order: st.SearchStrategy[str], level: str, error: bool) -> st.SearchStrategy[Any]:
    return named(tools.logged, steps=STEPS, order=order, level=st.just(level), error=st.just(error))


LOGGING: dict[str, Any] = {"needs": ["logging"], "gradients": False, "effort": 0.5}


@for_readers("advanced", "more work than needed", "logging")
@graph_law(_logged(st.just("alone"), "INFO", False), **LOGGING)
def test_nothing_is_logged_below_debug_level(case: Case) -> None:
    """When the logger is not at debug level, a backward logs nothing."""
    case.as_expected()


@for_readers("advanced", "wrong state", "logging")
@graph_law(_logged(st.sampled_from(["outside first", "other first", "twice"]), "DEBUG", False), **LOGGING)
def test_one_backward_alone_is_logged(case: Case) -> None:
    """Each node that the backward executes is logged once with shape and dtype of its gradients, and no other backward is."""
    case.as_expected()


@for_readers("advanced", "wrong state", "logging, exception")
@graph_law(_logged(st.just("alone"), "DEBUG", True), **LOGGING)
def test_logging_ends_with_an_error(case: Case) -> None:
    """A backward that raises is logged up to there, and the next one is not."""
    case.as_expected()


FORMS = st.sampled_from([("tensor", "tensor"), ("tensor", "edge"), ("edge", "tensor"), ("edge", "edge")])


SHARED = st.sampled_from(["nothing", "leaf", "node"])


@for_readers("advanced", "wrong state", "logging")
@graph_law(named(tools.logged_several, forms=FORMS, shared=SHARED), **LOGGING)
def test_a_backward_of_several_outputs_is_logged(case: Case) -> None:
    """Of a backward of several outputs, tensors or edges, the nodes of all of them are logged, each once."""
    case.as_expected()


STEPS_OF_CREATION = st.lists(st.sampled_from(["sin", "exp", "view", "function"]), min_size=1, max_size=3).map(tuple)


@for_readers("advanced", "wrong state", "node_creation_hook, grad_fn")
@graph_law(
    named(newer_names.created, steps=STEPS_OF_CREATION, contexts=st.integers(1, 3), twice=BOTH),
    needs=["node-creation"],
    gradients=False,
)
def test_a_node_is_seen_when_it_is_made(case: Case) -> None:
    """Each node of forward, and of a backward with create_graph, is seen once by each context, complete, outermost first."""
    case.as_expected()


FAILING = st.sampled_from(["raises", "makes a node", "not callable"])


@for_readers("advanced", "wrong state", "node_creation_hook, exception")
@graph_law(named(newer_names.creation_fails, wrong=FAILING), needs=["node-creation"], gradients=False, floor=3)
def test_a_hook_for_new_nodes_that_fails_is_gone(case: Case) -> None:
    """An error of a hook for new nodes, which must not make any, comes out of the operator, and the hook is gone after it."""
    case.as_expected()


WHERE = st.sampled_from(["leaf", "accumulated", "node", "function"])


@for_readers("advanced", "wrong state", "queue_callback, DDP, FSDP")
@graph_law(
    named(newer_names.called_back, where=WHERE, inner=BOTH, further=BOTH, passes=st.integers(1, 2)),
    needs=["end-of-backward"],
    gradients=False,
)
def test_a_callback_is_called_when_its_backward_has_ended(case: Case) -> None:
    """What is queued in a backward is called once, in order, when its gradients are there; a backward inside has its own."""
    case.as_expected()


UNCALLED = st.sampled_from(["outside", "not callable", "the backward fails"])


@for_readers("advanced", "poor error", "queue_callback")
@graph_law(named(newer_names.not_called_back, wrong=UNCALLED), needs=["end-of-backward"], gradients=False, floor=3)
def test_a_callback_that_has_no_backward_is_refused(case: Case) -> None:
    """A callback is refused outside of a backward or if it cannot be called, and not called if its backward raises."""
    case.as_expected()


BUDGETS = st.sampled_from(["not compiled", "more than all", "less than nothing", "text", "a flag", "nothing"])


@for_readers("advanced", "poor error", "torch.compile, activation memory budget")
@graph_law(named(newer_names.budget_refused, wrong=BUDGETS), needs=["memory-budget"], gradients=False)
def test_a_budget_that_has_no_effect_is_refused(case: Case) -> None:
    """A budget of memory is a number from 0 to 1 in what torch.compile compiles; any other, and one elsewhere, is refused."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "torch.compile, activation memory budget")
@graph_law(
    named(newer_names.budget_compiled, budget=st.sampled_from([0.0, 0.5, 1.0])),
    needs=["memory-budget"],
    gradients=False,
    effort=0.1,
    floor=1,
)
def test_a_budget_changes_no_gradient(case: Case) -> None:
    """In what torch.compile compiles a budget of memory leaves gradients as they are."""
    importlib.import_module("torch._dynamo")  # which takes seconds that are not the program's
    case.as_expected()


SETTINGS = st.sampled_from(["set_override_stale_capture_stream", "set_warn_on_accumulate_grad_stream_mismatch"])
VALUES = st.lists(BOTH, min_size=1, max_size=3).map(tuple)


@for_readers("advanced", "wrong state", "CUDA stream")
@graph_law(named(newer_names.settings, name=SETTINGS, values=VALUES), needs=["stream-settings"], gradients=False)
def test_settings_of_streams_are_what_they_were_set_to(case: Case) -> None:
    """What backward does about streams that do not match is what was set last."""
    case.as_expected()
