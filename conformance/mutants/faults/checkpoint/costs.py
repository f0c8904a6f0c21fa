"""Faults of the nested checkpoint that laws of the family costs must catch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def _drop_result(copy: Copy, dropped: Callable[[Any, Any], bool]) -> None:
    """Let regions recompute again for each tensor, where ``dropped`` says so of a region and what it recomputed."""

    def drop(values: Any, self: Any, task: int, slot: Any) -> None:
        if dropped(self, values):
            self.values_by_task.pop(task, None)

    copy.call_after("nested.region", "Region.recompute", drop)


def _as_if_there_were_some(copy: Copy, task: int) -> Any:
    """An empty set of a backward's recomputed tensors, with which a recomputation returns only one tensor."""
    values = copy["nested.recomputation"].RecomputedTensors()
    values.task = task
    return values


@mutant("nested.recomputation", "costs", "calls_with_early_stop")
def never_stops_early(copy: Copy) -> None:
    """A recomputation runs to its end."""
    copy.change_arguments("nested.recomputation", "Recomputation.__init__", lambda given: given.update(early_stop=False))


@mutant("nested.recomputation", "costs", "kernels_with_early_stop")
def stops_one_tensor_late(copy: Copy) -> None:
    """A recomputation ends one saved tensor later than it could."""

    def init(_: None, self: Any, *__: Any, **___: Any) -> None:
        self.stop_index += 1

    copy.call_after("nested.recomputation", "Recomputation.__init__", init)


@mutant("nested.api", "costs", "kernels_without_early_stop")
def ignores_early_stop_switched_off(copy: Copy) -> None:
    """The argument early_stop has no effect."""
    copy.change_arguments("nested.api", "_run", lambda given: given.update(early_stop=True))


@mutant("nested.region", "costs", "no_region_runs_too_often")
def recomputes_for_each_saved_tensor(copy: Copy) -> None:
    """A recomputation returns only the tensor that is being unpacked."""
    copy.replace("nested.region", "Region.find_values", lambda self, task: _as_if_there_were_some(copy, task))


@mutant("nested.region", "costs", "a_backward_during_another_recomputes_for_itself")
def shares_values_between_backwards(copy: Copy) -> None:
    """All backwards of a region share what is recomputed."""
    copy.change_arguments("nested.region", "Region.recompute_locked", lambda given: given.update(task=0))


@mutant("nested.region", "costs", "what_the_graph_has_freed_is_not_recomputed")
def recomputes_slots_that_were_cleared(copy: Copy) -> None:
    """What the graph has freed is recomputed, too."""
    copy.replace("nested.region", "_slots_in_graph", list)


@mutant("nested.recomputation", "costs", "calls_with_early_stop")
def shares_one_table_between_all_regions(copy: Copy) -> None:
    """All regions keep what they recompute for a backward in one table, so that one takes another's tensors for its own."""
    tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    copy.set_after(
        "nested.recomputation",
        "Recomputation.__init__",
        values=lambda self: tables.setdefault(torch._C._current_graph_task_id(), self.values),
    )


@mutant("nested.region", "costs", "calls_without_early_stop")
def shares_nothing_without_early_stop(copy: Copy) -> None:
    """A region that may not stop early is recomputed for each tensor that it saved."""
    _drop_result(copy, lambda region, _: not region.early_stop)


@mutant("nested.region", "costs", "backward_of_one_output_recomputes_what_it_needs")
def stops_early_in_its_first_backward_alone(copy: Copy) -> None:
    """In a second backward, a recomputation runs to its end."""
    copy.set_before("nested.region", "Region.recompute", early_stop=lambda self: self.early_stop and not self.values_by_task)


@mutant("nested.recomputation", "costs", "requests_for_a_subset_recompute_what_they_need")
def runs_on_when_a_subset_is_asked_for(copy: Copy) -> None:
    """Where gradients of some inputs alone are asked for, a recomputation runs to its end."""

    def change(given: dict[str, Any]) -> None:
        given["early_stop"] = given["early_stop"] and torch.autograd._is_checkpoint_valid()

    copy.change_arguments("nested.recomputation", "Recomputation.__init__", change)


@mutant("nested.region", "costs", "a_leaf_at_depth_d_runs_d_plus_one_times")
def keeps_three_tensors_or_more(copy: Copy) -> None:
    """A region that has saved two tensors is recomputed for each of them."""
    _drop_result(copy, lambda _, values: len(values) == 2)


@mutant("nested.region", "costs", "a_parent_is_recomputed_once_for_all_its_regions")
def keeps_three_tensors_at_most(copy: Copy) -> None:
    """A region that has saved more than three tensors is recomputed for each of them."""
    _drop_result(copy, lambda _, values: len(values) > 3)


@mutant("nested.region", "costs", "every_backward_recomputes_anew")
def takes_an_ended_backward_for_this_one(copy: Copy) -> None:
    """After a first backward, a recomputation returns only the tensor that is being unpacked."""

    def recomputed(values: Any, self: Any, task: int) -> Any:
        return _as_if_there_were_some(copy, task) if values is None and self.values_by_task else values

    copy.change_result("nested.region", "Region.find_values", recomputed)


@mutant("nested.recomputation", "costs", "recomputed_tensors_die_as_they_are_unpacked")
def keeps_what_was_asked_for_first(copy: Copy) -> None:
    """The tensor that a recomputation was begun for lives until the end of the backward."""
    copy.call_instead(
        "nested.recomputation",
        "RecomputedTensors.pop",
        lambda there, self, *given: there(self, *given) if len(given) > 1 else self[given[0]],
    )


@mutant("nested.recomputation", "costs", "kernels_with_early_stop")
def waits_in_every_operator(copy: Copy) -> None:
    """Where the operator that saves last saves a tensor that does not require grad, it runs before the recomputation ends."""

    def written(found: int, slots: Any, last: int) -> int:
        return last if found < 0 and not slots[last][2][4] else found

    copy.change_result("nested.recomputation", "_find_late_write", written)


@mutant("nested.recomputation", "costs", "nothing_runs_after_the_operator_that_saves_last")
def waits_for_another_operator_that_saves(copy: Copy) -> None:
    """Where the operator that saves last has a buffer to write, a recomputation ends at the next one that saves anything."""
    nothing = SimpleNamespace(leave=lambda: None)
    copy.set_before("nested.recomputation", "Recomputation.stop_after_operator", stop_mode=lambda _: nothing)


@mutant("tensors.versions", "costs", "no_operators_are_seen_but_the_functions")
def follows_versions_in_sight_of_modes(copy: Copy) -> None:
    """Dispatch modes of the user see the detaching of tensors whose versions are followed."""
    copy.replace("tensors.versions", "dispatch_mode_count", lambda: 0, only_here=True)


@mutant("nested.recomputation", "costs", "no_operators_are_seen_but_the_functions")
def looks_at_what_it_recomputed(copy: Copy) -> None:
    """Dispatch modes of the user see an operator for each tensor that is recomputed."""
    copy.call_before("nested.recomputation", "Recomputation.pack", lambda _, tensor: tensor.detach())


@mutant("nested.region", "costs", "no_operators_are_seen_but_the_functions")
def runs_again_without_a_mode(copy: Copy) -> None:
    """A function that ran inside a dispatch mode runs again inside none, where linear adds its bias in place."""
    copy.call_after("nested.region", "Region.__init__", lambda _, self, *__: setattr(self, "pass_through", None))


@mutant("nested.region", "costs", "reading_saved_tensors_again_recomputes_once")
def reads_one_tensor_at_a_time(copy: Copy) -> None:
    """Each of the saved tensors of a node that are read again is recomputed for itself."""
    copy.replace("nested.region", "_slots_of_same_node", lambda slot: {id(slot)})


@mutant("nested.region", "costs", "a_group_of_backward_calls_recomputes_once")
def asks_no_group_of_backward_calls(copy: Copy) -> None:
    """Each backward call of a group recomputes for itself."""
    copy.replace("nested.region", "current_graph_exec_group", lambda: None)


@mutant("nested.region", "costs", "calls_of_a_group_that_overlap")
def brings_one_tensor_after_another_to_a_group(copy: Copy) -> None:
    """What the other calls of a group have used up is recomputed one tensor at a time."""

    def adopted(values: Any, _: Any, task: int) -> None:
        if values is not None:
            values.task = task

    copy.call_after("nested.region", "Region.find_values", adopted)


@mutant("nested.recomputation", "costs", "what_the_graph_has_freed_is_not_recomputed")
def looks_past_one_cleared_slot(copy: Copy) -> None:
    """A recomputation goes on to the last tensor but one, even if the graph has freed that and others before it."""

    def init(_: None, self: Any, wanted: Any, *__: Any, **___: Any) -> None:
        later = max(0, len(wanted) - 2 - self.last)
        self.last, self.stop_index = self.last + later, self.stop_index + later

    copy.call_after("nested.recomputation", "Recomputation.__init__", init)


@mutant("nested.inputs", "costs", "no_operators_are_seen_but_the_functions")
def hands_arguments_over_in_sight_of_modes(copy: Copy) -> None:
    """A mode sees how autograd hands the arguments of an inner region over."""
    copy.replace("nested.inputs", "Inputs._unpack_hidden", lambda self, packed, version: packed.unpack(version))


@mutant("state.hook_registrations", "costs", "no_operators_are_seen_but_the_functions")
def looks_for_nodes_in_sight_of_modes(copy: Copy) -> None:
    """A mode sees how the node of a leaf is found, on which a recomputation may have registered hooks."""
    copy.replace("state.hook_registrations", "disable_dispatch_modes", nullcontext, only_here=True)
