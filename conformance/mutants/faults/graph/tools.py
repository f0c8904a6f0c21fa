"""Faults of the graph tools that laws of the family graph_tools must catch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def do_nothing(*_: object) -> AbstractContextManager[None]:
    """Stands for a function of torch, and for a context of it."""
    return nullcontext()


def change_edges(copy: Copy, changed: Callable[[torch.Tensor, Any], Any]) -> None:
    """Have ``get_gradient_edge`` return what is made of the tensor and its edge."""
    copy.change_result("graph.edges", "get_gradient_edge", lambda result, tensor: changed(tensor, result))


@mutant("graph.edges", "graph_tools", "an_edge_stands_for_an_input")
def forgets_which_output(copy: Copy) -> None:
    """An edge always leads to the first output of its node."""
    change_edges(copy, lambda _, edge: edge._replace(output_nr=0))


@mutant("graph.edges", "graph_tools", "an_edge_stands_for_an_output")
def gives_an_edge_of_the_inputs(copy: Copy) -> None:
    """The edge of a result leads to an input of the operator that made it."""

    def below(tensor: torch.Tensor, edge: Any) -> Any:
        inputs = [node for node, _ in edge.node.next_functions if node is not None]
        return edge._replace(node=inputs[0]) if tensor.grad_fn else edge

    change_edges(copy, below)


@mutant("graph.edges", "graph_tools", "an_edge_is_found_in_any_mode")
def finds_no_edge_in_inference_mode(copy: Copy) -> None:
    """The node of a leaf is looked for in inference mode too, where there is none."""

    def above(tensor: torch.Tensor) -> Any:
        with torch.enable_grad():
            return tensor.view_as(tensor).grad_fn

    copy.replace("graph.edges", "_node_above", above)


@mutant("graph.edges", "graph_tools", "an_edge_keeps_its_graph_and_no_longer")
def owns_the_tensor(copy: Copy) -> None:
    """The node of an edge owns the tensor."""

    def owning(tensor: torch.Tensor, edge: Any) -> Any:
        edge.node.metadata["tensor"] = tensor
        return edge

    change_edges(copy, owning)


@mutant("graph.edges", "graph_tools", "what_has_no_edge_is_refused")
def takes_what_has_no_gradient(copy: Copy) -> None:
    """A tensor that does not require grad gets an edge of another one that does."""

    def edge(there: Any, tensor: Any) -> Any:
        lacks = isinstance(tensor, torch.Tensor) and not tensor.requires_grad
        return there(torch.ones(2, requires_grad=True) if lacks else tensor)

    copy.call_instead("graph.edges", "get_gradient_edge", edge)


@mutant("graph.edges", "graph_tools", "an_incremented_version_is_a_change")
def counts_the_first_alone(copy: Copy) -> None:
    """Of several tensors, the first alone gets another version."""
    copy.call_instead(
        "graph.edges",
        "increment_version",
        lambda there, tensor: there(tensor if isinstance(tensor, torch.Tensor) else tuple(tensor)[:1]),
    )


@mutant("graph.edges", "graph_tools", "versions_of_tensors_alone")
def counts_before_it_looks(copy: Copy) -> None:
    """The versions of several tensors are changed before something else than a tensor is found among them."""

    def increment(there: Any, tensor: Any) -> None:
        several = isinstance(tensor, Iterable) and not isinstance(tensor, torch.Tensor)
        for each in [(each,) for each in tensor] if several else [tensor]:
            there(each)

    copy.call_instead("graph.edges", "increment_version", increment)


@mutant("graph.edges", "graph_tools", "inference_tensors_have_no_version")
def counts_beside_inference_tensors_not(copy: Copy) -> None:
    """No version is changed if an inference tensor is among the tensors."""

    def increment(there: Any, tensor: Any) -> None:
        tensors = (tensor,) if isinstance(tensor, torch.Tensor) else tuple(tensor)
        if not any(each.is_inference() for each in tensors):
            there(tensors)

    copy.call_instead("graph.edges", "increment_version", increment)


@mutant("graph.backward_log", "graph_tools", "one_backward_alone_is_logged")
def logs_every_backward_inside(copy: Copy) -> None:
    """Each backward in the context is logged."""
    copy.set_before("graph.backward_log", "_FirstBackward.__call__", task=lambda _: None)


@mutant("graph.backward_log", "graph_tools", "logging_ends_with_an_error")
def never_ends_logging(copy: Copy) -> None:
    """What logs stays attached to the nodes when the context is left."""

    def attached(node: Any, hook: Any) -> Any:
        node.register_prehook(hook)
        return SimpleNamespace(remove=lambda: setattr(hook, "task", None))

    def nodes(there: Any, outputs: Any) -> Iterator[Any]:
        for node in there(outputs):
            yield SimpleNamespace(register_prehook=functools.partial(attached, node))

    copy.call_instead("graph.backward_log", "_nodes", nodes)


@mutant("graph.backward_log", "graph_tools", "nothing_is_logged_below_debug_level")
def logs_at_any_level(copy: Copy) -> None:
    """That a backward is to be logged is logged at a level that is always on."""

    def logged(*outputs: Any) -> None:
        copy["graph.backward_log"].log.critical("logging")

    copy.call_before("graph.backward_log", "logged_backward", logged)


@mutant("graph.backward_log", "graph_tools", "a_backward_of_several_outputs_is_logged")
def logs_below_the_first_output_alone(copy: Copy) -> None:
    """Of several outputs, the nodes of the first alone are logged."""
    copy.call_instead("graph.backward_log", "_nodes", lambda there, outputs: there(outputs[:1]))


@mutant("graph.backward_log", "graph_tools", "a_backward_of_several_outputs_is_logged")
def logs_what_outputs_share_for_each(copy: Copy) -> None:
    """A node that several outputs lead to is logged once for each of them."""
    copy.call_instead(
        "graph.backward_log", "_nodes", lambda there, outputs: (node for output in outputs for node in there([output]))
    )


@mutant("graph.newer_torch_names", "graph_tools", "a_node_is_seen_when_it_is_made")
def sees_no_new_nodes(copy: Copy) -> None:
    """A hook for new nodes is never called."""
    copy.replace("graph.newer_torch_names", "node_creation_hook", do_nothing)


@mutant("graph.newer_torch_names", "graph_tools", "a_hook_for_new_nodes_that_fails_is_gone")
def takes_any_hook_for_new_nodes(copy: Copy) -> None:
    """A hook for new nodes that would fail is never called."""
    copy.replace("graph.newer_torch_names", "node_creation_hook", do_nothing)


@mutant("graph.newer_torch_names", "graph_tools", "a_budget_that_has_no_effect_is_refused")
def takes_any_budget(copy: Copy) -> None:
    """A budget of any kind is taken, and has no effect."""
    copy.replace("graph.newer_torch_names", "region_activation_memory_budget", do_nothing)


@mutant("graph.newer_torch_names", "graph_tools", "a_budget_changes_no_gradient")
def cannot_be_compiled(copy: Copy) -> None:
    """A budget is refused, as if this release of torch had none."""

    def region_activation_memory_budget(*_: object) -> None:
        raise NotImplementedError("region_activation_memory_budget needs a newer release of torch")

    copy.replace("graph.newer_torch_names", "region_activation_memory_budget", region_activation_memory_budget)


@mutant("graph.newer_torch_names", "graph_tools", "settings_of_streams_are_what_they_were_set_to")
def sets_nothing(copy: Copy) -> None:
    """Settings of streams stay as they are."""
    copy.replace("graph.newer_torch_names", "set_override_stale_capture_stream", do_nothing)
    copy.replace("graph.newer_torch_names", "set_warn_on_accumulate_grad_stream_mismatch", do_nothing)


@mutant("graph.callbacks", "graph_tools", "a_callback_is_called_when_its_backward_has_ended")
def calls_at_once(copy: Copy) -> None:
    """A callback is called during the backward, not at its end."""
    copy.replace("graph.callbacks", "queue_callback", lambda callback: callback())


@mutant("graph.callbacks", "graph_tools", "a_callback_that_has_no_backward_is_refused")
def calls_from_outside(copy: Copy) -> None:
    """A callback is called at once where no backward runs, before it is refused."""

    def queue(callback: Any) -> None:
        if callable(callback) and torch._C._current_graph_task_id() == -1:
            callback()

    copy.call_before("graph.callbacks", "queue_callback", queue)


@mutant("graph.callbacks", "graph_tools", "a_callback_that_has_no_backward_is_refused")
def looks_at_a_callback_too_late(copy: Copy) -> None:
    """That a callback is not callable shows only when it is called."""
    copy.call_instead("graph.callbacks", "queue_callback", lambda there, callback: there(lambda: callback()))


STRAY = "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0"


def raise_stray(copy: Copy, part: str, name: str) -> None:
    """Have a function say of whatever it refuses what an operator says of sizes that do not fit."""

    def stray(there: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return there(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError) as error:
            raise type(error)(STRAY) from error

    copy.call_instead(part, name, stray)


@mutant("graph.edges", "graph_tools", "what_has_no_edge_is_refused")
def refuses_an_edge_by_a_stray_error(copy: Copy) -> None:
    """The error for a tensor without an edge is about sizes."""
    raise_stray(copy, "graph.edges", "get_gradient_edge")


@mutant("graph.newer_torch_names", "graph_tools", "a_budget_that_has_no_effect_is_refused")
def refuses_a_budget_by_a_stray_error(copy: Copy) -> None:
    """The error for a budget that has no effect is about sizes."""
    raise_stray(copy, "graph.newer_torch_names", "region_activation_memory_budget")


@mutant("graph.callbacks", "graph_tools", "a_callback_that_has_no_backward_is_refused")
def refuses_a_callback_by_a_stray_error(copy: Copy) -> None:
    """The error for a callback without a backward is about sizes."""
    raise_stray(copy, "graph.callbacks", "queue_callback")
