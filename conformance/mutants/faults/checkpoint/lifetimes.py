"""Faults of nested that laws of the family lifetimes must catch, except those about threads or about arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def _keep_values(copy: Copy, keep: Callable[[Any, Any, Any, Any], object]) -> None:
    """Let ``keep``, and not the engine, own what a recomputation leaves for the rest of a backward."""

    def recompute(values: Any, self: Any, task: int, slot: Any) -> None:
        if task in self.values_by_task:
            keep(self, task, slot, values)

    copy.replace("nested.recomputation", "RecomputedTensors.__call__", lambda _: None)
    copy.call_after("nested.region", "Region.recompute", recompute)


def _keep_saved_if(copy: Copy, kept: Callable[[torch.Tensor], object]) -> None:
    """Keep the tensors that forward saves, where ``kept`` says so."""

    def pack(self: Any, tensor: torch.Tensor) -> None:
        if kept(tensor):
            self.kept = [*vars(self).get("kept", ()), tensor]

    copy.call_before("nested.region", "Region.pack", pack)


def _when_bring_fails(copy: Copy, note: Callable[[Any, BaseException], object]) -> None:
    """Let ``note`` know a region and the error of its recomputation."""

    def bring(there: Any, self: Any, task: int, slot: Any) -> torch.Tensor:
        try:
            return there(self, task, slot)
        except BaseException as error:
            note(self, error)
            raise

    copy.call_instead("nested.region", "Region.recompute_locked", bring)


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


@mutant("nested.region", "lifetimes", "a_backward_of_some_outputs_keeps_nothing")
def keeps_recomputed_tensors_after_backward(copy: Copy) -> None:
    """A region keeps those tensors of the last recomputation that backward did not unpack."""
    _keep_values(copy, lambda self, task, slot, values: vars(self).update(kept=values))


@mutant("nested.region", "lifetimes", "steps_leave_nothing_behind")
def never_forgets_a_backward(copy: Copy) -> None:
    """A region keeps an entry for each backward that there ever was."""

    def recompute(there: Any, self: Any, task: int, slot: Any) -> Any:
        before = self.values_by_task
        values = there(self, task, slot)
        self.values_by_task = before | self.values_by_task
        return values

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.recomputation", "lifetimes", "each_recomputed_tensor_dies_at_its_unpack")
def keeps_what_was_unpacked(copy: Copy) -> None:
    """A recomputed tensor, but for the first, lives until the end of the backward that has unpacked it."""
    copy.call_instead(
        "nested.recomputation",
        "RecomputedTensors.pop",
        lambda there, self, *given: self.get(*given) if len(given) > 1 else there(self, *given),
    )


@mutant("nested.region", "lifetimes", "dropping_the_outputs_frees_everything")
def waits_for_the_collector(copy: Copy) -> None:
    """A region refers to itself."""
    copy.set_after("nested.region", "Region.__init__", original=lambda self: self)


@mutant("tensors.versions", "lifetimes", "nothing_of_the_inside_is_alive_after_forward")
def keeps_the_storage_with_the_counter(copy: Copy) -> None:
    """What follows the version of a tensor shares its storage, too."""
    detached = copy["tensors.versions"].detach_without_modes
    copy.call_instead(
        "tensors.versions",
        "version_probe",
        lambda there, tensor: detached(tensor) if type(tensor) in _ORDINARY else there(tensor),
    )


@mutant("nested.region", "lifetimes", "dropping_the_outputs_frees_everything")
def keeps_the_output_with_the_region(copy: Copy) -> None:
    """A region refers to the output of its forward."""
    copy.call_before("nested.region", "Region.end_forward", lambda self, output: setattr(self, "output", output))


@mutant("nested.api", "lifetimes", "an_error_leaves_hooks_and_grad_mode")
def leaves_its_hooks_on_after_an_error(copy: Copy) -> None:
    """The hooks of a region whose forward raises an error stay on top."""

    def pop(there: Any) -> None:
        if not isinstance(sys.exc_info()[1], Exception):
            there()

    copy.call_instead("nested.api", "pop_hooks", pop, only_here=True)


@mutant("nested.region", "lifetimes", "a_request_for_some_gradients_keeps_nothing")
def lets_go_at_the_next_backward(copy: Copy) -> None:
    """Tensors that a backward recomputed and did not unpack are kept until the next backward."""
    _keep_values(copy, lambda self, task, slot, values: vars(self).update(values_by_task={task: lambda: values}))


@mutant("nested.recomputation", "lifetimes", "a_differentiable_backward_keeps_nothing")
def recomputed_graph_owns_its_tensors(copy: Copy) -> None:
    """The graph that a recomputation makes holds the tensors themselves that it saves."""

    def pack(packed: Any, _: Any, tensor: torch.Tensor) -> Any:
        return tensor if isinstance(packed, int) else packed

    copy.change_result("nested.recomputation", "Recomputation.pack", pack)


@mutant("nested.region", "lifetimes", "results_that_a_function_keeps_are_differentiated")
def refuses_what_forwards_graph_has_cleared(copy: Copy) -> None:
    """A graph that a recomputation made gets no tensor whose slot in forward's graph was cleared."""

    def unpack_at(self: Any, index: int) -> None:
        if copy["nested.region"]._slots_in_graph(self.slots)[index] is None:
            self.refuse("its graph was freed by an earlier backward")

    copy.call_before("nested.region", "Region.unpack_at", unpack_at)


@mutant("nested.region", "lifetimes", "results_that_a_function_keeps_are_freed")
def lets_the_recomputed_graph_own_the_region(copy: Copy) -> None:
    """The graph that a recomputation makes owns the region."""
    copy.change_result("nested.region", "unpack_later", lambda _, region: region.unpack_at)


@mutant("nested.region", "lifetimes", "partial_backward_passes_over_one_graph")
def keeps_what_each_backward_left(copy: Copy) -> None:
    """Tensors that a backward recomputed and did not unpack are kept for good, in a list of the module."""
    kept: list[Any] = []
    _keep_values(copy, lambda self, task, slot, values: kept.append(values))


@mutant("nested.region", "lifetimes", "what_a_request_did_not_need_dies_with_it")
def lets_the_graph_own_what_is_left(copy: Copy) -> None:
    """Tensors that a backward recomputed and did not unpack are owned by a slot in the graph."""
    _keep_values(copy, lambda self, task, slot, values: setattr(slot[1], "values", values))


@mutant("nested.region", "lifetimes", "a_backward_that_is_refused_keeps_nothing")
def remembers_what_it_unpacked_last(copy: Copy) -> None:
    """The tensor that was unpacked last is kept until another region unpacks one."""
    copy.call_after("nested.region", "Region.unpack", lambda tensor, self, _: setattr(type(self), "newest", tensor))


@mutant("nested.region", "lifetimes", "a_second_backward_raises_what_plain_raises")
def has_its_own_words_for_a_second_backward(copy: Copy) -> None:
    """A backward over a graph that is freed raises an error of the region in the place of autograd's."""
    in_graph = copy["nested.region"]._slots_in_graph

    def end(self: Any, output: Any) -> None:
        def hook(_: torch.Tensor) -> None:
            if not any(in_graph(self.slots)):
                self.refuse("its graph was freed by an earlier backward")

        if isinstance(output, torch.Tensor) and output.requires_grad and self.slots:
            output.register_hook(hook)

    copy.call_before("nested.region", "Region.end_forward", end)


@mutant("nested.recomputation", "lifetimes", "recomputed_tensors_live_no_longer_than_saved_ones")
def keeps_the_tensor_that_was_asked_for_first(copy: Copy) -> None:
    """The tensor that a recomputation was begun for lives until the end of the backward."""
    copy.call_instead(
        "nested.recomputation",
        "RecomputedTensors.pop",
        lambda there, self, *given: there(self, *given) if len(given) > 1 else self[given[0]],
    )


@mutant("nested.recomputation", "lifetimes", "early_stop_leaves_the_tail_unrun")
def always_waits_with_the_stop(copy: Copy) -> None:
    """The operator that saves last runs before the recomputation ends, even if it has no buffer to write."""
    copy.change_result("nested.recomputation", "_find_late_write", lambda found, _, last: last if found < 0 else found)


@mutant("nested.region", "lifetimes", "early_stop_leaves_the_tail_unrun")
def stops_early_in_outermost_regions_alone(copy: Copy) -> None:
    """A region inside another one does not stop early."""
    copy.set_before("nested.region", "Region.end_forward", early_stop=lambda self: self.early_stop and self.enclosing is None)


@mutant("nested.region", "lifetimes", "a_callable_of_any_kind_makes_no_cycle")
def writes_the_region_down_on_the_function(copy: Copy) -> None:
    """A region becomes an attribute of its function."""
    copy.call_after("nested.region", "Region.__init__", lambda _, self, function, *__: setattr(function, "region", self))


@mutant("nested.region", "lifetimes", "hooks_of_the_user_make_no_cycle")
def keeps_tensors_that_have_hooks(copy: Copy) -> None:
    """A region keeps what it saves if there are hooks on it."""
    _keep_saved_if(copy, lambda tensor: tensor._backward_hooks)


@mutant("nested.inputs", "lifetimes", "a_region_that_changes_its_input_makes_no_cycle")
def keeps_inputs_that_were_changed(copy: Copy) -> None:
    """A region keeps its inputs after forward has changed them in place."""
    for kind in ("FlatInputs", "Inputs"):
        copy.replace("nested.inputs", f"{kind}.end_forward", lambda _: None)


@mutant("nested.region", "lifetimes", "a_region_that_changes_its_input_makes_no_cycle")
def keeps_inputs_changed_before_an_error(copy: Copy) -> None:
    """A region keeps its inputs after forward has changed them in place and then raised an error."""

    def end(there: Any, self: Any, output: Any) -> None:
        inputs = self.inputs
        if not self.complete:
            self.inputs = SimpleNamespace(end_forward=lambda: None, hooks_were_active=inputs.hooks_were_active)
        there(self, output)
        self.inputs = inputs

    copy.call_instead("nested.region", "Region.end_forward", end)


@mutant("nested.region", "lifetimes", "an_error_in_forward_keeps_nothing")
def keeps_the_error_of_forward(copy: Copy) -> None:
    """A region keeps the exception that its forward has raised."""
    copy.set_after("nested.region", "Region.end_forward", error=lambda _: sys.exc_info()[1])


@mutant("nested.recomputation", "lifetimes", "an_error_in_recomputation_keeps_nothing")
def lets_go_only_when_all_went_well(copy: Copy) -> None:
    """A recomputation that raises an error keeps the tensors that it has recomputed."""

    def collect(there: Any, self: Any, function: Callable[[], Any]) -> None:
        values, wanted = self.values, self.wanted
        try:
            there(self, function)
        except BaseException:
            self.values, self.wanted = values, wanted
            raise

    copy.call_instead("nested.recomputation", "Recomputation._collect", collect)


@mutant("nested.region", "lifetimes", "a_graph_that_failed_is_freed_when_dropped")
def keeps_the_error_of_a_recomputation(copy: Copy) -> None:
    """A region keeps the exception that its recomputation has raised."""
    _when_bring_fails(copy, lambda self, error: vars(self).update(error=error))


@mutant("state.restoration", "lifetimes", "an_error_leaves_the_stream_of_random_numbers")
def puts_the_stream_back_after_exceptions_alone(copy: Copy) -> None:
    """After a KeyboardInterrupt in a recomputation, generators of random numbers are not put back."""

    def leave(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.before = []

    copy.call_before("state.restoration", "Restoration.__exit__", leave)


@mutant("state.restoration", "lifetimes", "an_error_leaves_autocast")
def leaves_autocast_on_after_an_error(copy: Copy) -> None:
    """After an error in a recomputation, its autocast is not left."""

    def leave(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self.stack = self.found_here = None

    copy.call_before("state.restoration", "Restoration.__exit__", leave)


@mutant("nested.recomputation", "lifetimes", "a_retained_backward_keeps_nothing")
def raises_one_stop_for_all(copy: Copy) -> None:
    """All recomputations end with one and the same exception, which keeps the frames that it has passed through."""
    stop = copy["nested.recomputation"].StopRecomputation
    one = stop()
    stop.__new__ = staticmethod(lambda *_: one)


@mutant("nested.recomputation", "lifetimes", "reading_saved_tensors_keeps_nothing")
def saves_unneeded_outputs_in_their_own_graph(copy: Copy) -> None:
    """The graph that a recomputation makes holds what is not needed together with its history."""
    copy.replace("nested.recomputation", "detach_without_modes", lambda tensor: tensor, only_here=True)


@mutant("nested.region", "lifetimes", "what_is_read_again_dies_as_it_is_unpacked")
def brings_all_that_is_alive_for_a_second_reading(copy: Copy) -> None:
    """A backward that unpacks a tensor again gets all others again, too."""
    inside = torch._C._current_graph_task_id
    copy.change_result("nested.region", "_slots_of_same_node", lambda asked, _: asked if inside() == -1 else _Everything())


@mutant("nested.region", "lifetimes", "what_a_group_left_dies_with_it")
def keeps_what_it_recomputed_for_a_group(copy: Copy) -> None:
    """A region keeps what it has recomputed for a group of backward calls."""

    def recompute(values: Any, self: Any, *_: Any) -> None:
        if copy["nested.region"].current_graph_exec_group() is not None:
            self.kept = values

    copy.call_after("nested.region", "Region.recompute", recompute)


@mutant("nested.recomputation", "lifetimes", "schedules_in_any_order")
def keeps_the_inputs_it_restored(copy: Copy) -> None:
    """A region keeps the arguments with which its function has run again."""

    def run(self: Any, function: Any, *_: Any) -> None:
        self.unpack_later.args[0]().restored = function

    copy.call_before("nested.recomputation", "Recomputation.run", run)


@mutant("nested.region", "lifetimes", "steps_leave_nothing_behind")
def keeps_a_log_of_what_failed(copy: Copy) -> None:
    """A region has a list that gets longer with each recomputation that fails."""
    _when_bring_fails(copy, lambda self, _: vars(self).update(failed=[*vars(self).get("failed", ()), []]))


@mutant("nested.region", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", profile="default")
def keeps_integers(copy: Copy) -> None:
    """A region keeps what it saves if that is of an integer dtype."""
    _keep_saved_if(copy, lambda tensor: not tensor.dtype.is_floating_point and not tensor.is_complex())


@mutant("nested.region", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", profile="default")
def keeps_what_is_complex(copy: Copy) -> None:
    """A region keeps what it saves if that is of a complex dtype."""
    _keep_saved_if(copy, lambda tensor: tensor.is_complex())


@mutant("nested.region", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", profile="default")
def keeps_what_was_changed_before(copy: Copy) -> None:
    """A region keeps what it saves if that was changed in place before."""
    _keep_saved_if(copy, lambda tensor: tensor._version)


@mutant("nested.region", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", profile="default")
def keeps_lower_precision(copy: Copy) -> None:
    """A region keeps what it saves if that is of dtype bfloat16."""
    _keep_saved_if(copy, lambda tensor: tensor.dtype is torch.bfloat16)


@mutant("nested.region", "lifetimes", "nothing_of_the_inside_is_alive_after_forward")
def keeps_the_leaves_that_it_makes(copy: Copy) -> None:
    """A leaf that a region saves and that may be from outside is referred to strongly."""

    def keep(origin: Any, tensor: torch.Tensor, *_: Any) -> None:
        if origin is not None and tensor.is_leaf:
            origin.probe = SimpleNamespace(tensor=tensor, _version=tensor._version)

    copy.call_after("tensors.origins", "find_origin", keep)


@mutant("nested.region", "lifetimes", "deep_graphs_are_freed", ends_process=True)
def asks_each_saved_tensor_for_its_node(copy: Copy) -> None:
    """Each tensor is asked for its node as it is saved, and a long chain of such nodes cannot be freed."""
    copy.call_before("nested.region", "Region.pack", lambda _, tensor: tensor.grad_fn)


@mutant("nested.region", "lifetimes", "outputs_that_their_own_region_reaches_after_backward")
def keeps_regions_that_were_recomputed(copy: Copy) -> None:
    """A region is kept for good once it was recomputed."""
    kept: list[Any] = []
    copy.call_after("nested.region", "Region.recompute", lambda _, self, *__: kept.append(self))


@mutant("nested.region", "lifetimes", "what_is_detached_before_a_region_is_freed")
def keeps_every_region(copy: Copy) -> None:
    """A region is kept for good."""
    kept: list[Any] = []
    copy.call_after("nested.region", "Region.__init__", lambda _, self, *__, **___: kept.append(self))
