"""PyTorch's own hooks for saved tensors and graph tools, ``torch.autograd.graph``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from impls import GRAPH_NAMES
from impls.graph.newer_torch_names import FIRST_RELEASES, from_torch
from impls.implementation import Implementation, Known, known, optional_capabilities
from impls.known_failures import UNPACKED_UNDER_HOOKS

_log = logging.getLogger("torch.autograd.graph")


@contextmanager
def logged_backward(*outputs: Any) -> Iterator[None]:
    """Nothing: PyTorch logs every backward while the logger is at debug level, whatever its outputs."""
    yield


_SAVED_TENSORS: dict[str, Known] = {
    **known(
        "diverges",
        "whoever leaves a pair takes off the innermost one, which may be that of somebody else",
        "seen here",
        "pairs_may_be_left_in_any_order",
    ),
    **known(
        "diverges",
        "where hooks are active, version counters are not compared: a saved tensor that was changed in place since gives a "
        "wrong gradient, also under save_on_cpu, which keeps a tensor of the CPU as it is",
        "pytorch#128545; seen here",
        "hooks_do_not_hide_a_change",
        "hooks_do_not_hide_a_change_in_forward",
        "a_change_in_any_way_is_noticed",
        "saving_on_the_cpu_does_not_hide_a_change",
        "saving_on_the_cpu_notices_any_change",
    ),
    **known(
        "diverges",
        "the result of an operator is saved together with its graph when its pack hook returns it, as the hooks of "
        "save_on_cpu and allow_mutation_on_saved_tensors do with a tensor of the CPU: it owns itself for ever",
        "pytorch#115255",
        "a_pair_that_returns_its_argument_makes_no_cycle",
        "a_graph_saved_on_the_cpu_is_freed",
        "originals_and_clones_die_with_their_graph",
    ),
}

_SAVE_ON_CPU: dict[str, Known] = {
    **known(
        "diverges",
        "copies are contiguous where pinned or where the tensor has gaps or overlaps, and conjugates are materialised",
        "seen here; of the same kind as pytorch#143847",
        "what_comes_back_looks_the_same",
        "views_come_back_with_their_strides",
        "what_comes_back_from_pinned_memory_looks_the_same",
    ),
    **known(
        "diverges",
        "with pin_memory tensors of the CPU are copied too: strides are lost, compressed sparse ones cannot be copied, and "
        "what an operator saves before it writes it is copied too early",
        "seen here; pytorch#193671",
        "what_was_on_the_cpu_looks_the_same",
        "what_is_on_the_cpu_stays_as_it_is",
    ),
    **known(
        "diverges",
        "a tensor is copied each time that it is saved",
        "seen here",
        "each_tensor_is_moved_once",
        "what_is_saved_again_is_moved_again_only_if_it_must_be",
        "around_regions_their_inputs_are_moved",
        "inside_regions_what_they_save_is_moved",
    ),
}

_MUTATION: dict[str, Known] = {
    **known(
        "diverges",
        "saved tensors are found by the address where a tensor begins: a change through a view that begins elsewhere is "
        "not seen, and gives a wrong gradient",
        "pytorch#79056; seen here",
        "a_saved_tensor_changed_through_a_view",
        "an_out_that_grows",
        "a_saved_view_changed_through_its_base",
        "views_of_saved_tensors_in_a_list",
        "what_is_changed_is_saved_again",
        "counts_of_clones_are_exact_through_views",
        "a_change_beside_a_saved_view_clones_nothing",
        "changes_beside_checkpointed_regions",
        "tensors_changed_in_forward",
        seed=1,
    ),
    **known(
        "diverges",
        "under a dispatch mode, as this context has, a foreach operator counts no version, and a tensor that is saved again is "
        "taken for what was saved at that version: a wrong gradient",
        "seen here",
        "what_is_changed_in_a_list_is_saved_again",
    ),
    **known(
        "diverges",
        "saved tensors are found by address and version: a change through a tensor that was given their memory, and counts for "
        "itself, is not seen, and gives a wrong gradient",
        "seen here",
        "a_saved_tensor_that_is_given_other_memory",
    ),
    **known(
        "crashes",
        "of an operator with several out= arguments one that is called out is looked for",
        "seen here",
        "saved_tensors_as_several_outs",
    ),
    **known(
        "crashes",
        "a nested context that is refused switches the one around it off, so its backward fails an assertion",
        "seen here",
        "contexts_cannot_be_nested",
    ),
    **known(
        "crashes",
        "saved tensors are found by an address, and a sparse one has none: saving it is an error that does not say so",
        "seen here",
        "a_sparse_tensor_changed_by_its_values",
    ),
    **known("diverges", "the error is an AssertionError", "seen here", "backward_after_the_context_is_refused"),
    **known(
        "diverges",
        "versions of saved tensors are not compared: what another thread changes, or backward in a clone, is not noticed",
        "seen here",
        "a_change_that_the_context_does_not_see",
    ),
    **known(
        "diverges",
        "what operators write is told by their schemas, and that of batch norm does not tell of running statistics: the "
        "gradient is wrong",
        "seen here",
        "statistics_changed_before_backward",
    ),
    **known(
        "diverges",
        "whether a context is active is asked of one variable for all threads",
        "seen here",
        "contexts_of_threads_are_independent",
    ),
    **known(
        "diverges",
        "what is noted about where saved tensors begin is only forgotten when the context is left",
        "seen here",
        "a_context_leaves_nothing_behind",
    ),
}

_GRADIENTS: dict[str, Known] = {
    **known(
        "diverges",
        "whether a leaf takes part cannot be asked while torch.autograd.grad runs, which then fails",
        "pytorch#86260",
        "a_hook_on_leaves_when_some_are_asked_for",
    ),
    **known(
        "diverges",
        "the node that a backward with one root begins with does not count among those that it will execute: with a hook on "
        "the root itself, the call is missing, or comes too early and again with each gradient",
        "seen here",
        "a_hook_on_all_gets_final_gradients",
        "a_hook_on_all_waits_for_those_that_take_part",
    ),
    **known(
        "crashes",
        "a tensor that does not require grad is taken for one with a node, and an assertion fails",
        "seen here",
        "a_tensor_without_grad_gets_none",
    ),
    **known(
        "diverges",
        "how many gradients are waited for is kept once for all backwards: one that runs inside another, or at the same "
        "time, changes it, and the hook of the other is not called",
        "seen here",
        "a_backward_inside_another_is_kept_apart",
        "backwards_on_two_threads_are_kept_apart",
    ),
    **known(
        "diverges",
        "gradients that came before an error stay with the hook; in mode any, so does a note of each backward",
        "seen here",
        "an_error_retains_no_gradient",
        "repeated_backwards_leave_nothing_behind",
    ),
    **known(
        "diverges",
        "in mode any the hook is called with whatever is there first, and that may be None",
        "seen here",
        "an_undefined_gradient_is_not_the_first",
    ),
    **known("crashes", "a handle leads to a local function, which does not pickle", "seen here", "handles_pickle_and_copy"),
    **known(
        "diverges",
        "what is no tensor ends in an AttributeError, and in mode any a tensor that does not require grad is accepted",
        "seen here",
        "what_has_no_gradient_cannot_be_watched",
    ),
}

_SAVED_TENSORS |= known(
    "diverges",
    "the copy that a pack hook makes of what rrelu saves is made before the noise is drawn: zeros, or what was there before",
    "seen here; pytorch#193671",
    "copies_of_noise_that_is_not_drawn_yet",
) | known(
    "diverges",
    "drawing the noise counts as a change of what rrelu has saved, so a copy of what was there before is kept",
    "seen here",
    "noise_that_is_drawn_once_it_is_saved",
)

_TOOLS: dict[str, Known] = {
    **known("diverges", "what is no tensor ends in an AttributeError", "seen here", "what_has_no_edge_is_refused"),
    **known(
        "crashes", "in inference mode a leaf has no node above it to look from", "seen here", "an_edge_is_found_in_any_mode"
    ),
    **known(
        "diverges",
        "what is no tensor is noticed when the versions of those before it are counted already",
        "seen here",
        "versions_of_tensors_alone",
    ),
    **known(
        "diverges",
        "the logger's level alone decides, so every backward is logged while it is on",
        "seen here",
        "one_backward_alone_is_logged",
        "logging_ends_with_an_error",
    ),
    **known(
        "diverges",
        "a node of which several outputs are asked for is logged as often",
        "seen here",
        "a_backward_of_several_outputs_is_logged",
    ),
}

if hasattr(torch.autograd.graph, "queue_callback"):
    _TOOLS |= known(
        "diverges",
        "that a callback cannot be called is noticed when it is called, at the end of the backward",
        "seen here",
        "a_callback_that_has_no_backward_is_refused",
    )

# What torch 2.11 does and 2.13 no longer; 2.12 and 2.14 have not been looked at, and 2.15 is as 2.13.
_OLD: dict[str, Known] = {}
if torch.__version__.startswith("2.11."):
    _OLD |= known("diverges", "the copy out into pinned memory is waited for", "seen here", "pinned_copies_block_nobody")

IMPLEMENTATION = Implementation(
    name="torch-graph",
    kind="graph",
    provides=SimpleNamespace(
        **{name: getattr(torch.autograd.graph, name) for name in GRAPH_NAMES},
        **{name: from_torch(name) for name in FIRST_RELEASES},
        log=_log,
        logged_backward=logged_backward,
    ),
    binding=(
        "from contextlib import nullcontext\nfrom torch.autograd import graph\n\n"
        "graph.logged_backward = lambda *outputs: nullcontext()"
    ),
    summary="torch.autograd.graph",
    source="https://docs.pytorch.org/docs/stable/autograd.html#saved-tensors-default-hooks",
    capabilities=frozenset({"logging"}) | optional_capabilities(torch.autograd.graph),
    known=UNPACKED_UNDER_HOOKS | _SAVED_TENSORS | _SAVE_ON_CPU | _MUTATION | _GRADIENTS | _TOOLS | _OLD,
)
