"""Faults of the offloaded model that laws of the family offload-costs must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def cut(copy: Copy, begins: Callable[[Sequence[int], int, int, int], bool]) -> None:
    """Cut a model so that a slice begins where ``begins(counts, first, index, share)`` says so.

    ``first`` is the first module of the slice before, ``share`` is how many parameters a slice aims at.
    """

    def slices(counts: Sequence[int], num_slices: int) -> tuple[tuple[int, ...], ...]:
        made: list[list[int]] = [[]]
        for index in range(len(counts)):
            first = made[-1][0] if made[-1] else index
            if len(made) < num_slices and begins(counts, first, index, sum(counts) // num_slices):
                made.append([])
            made[-1].append(index)
        return tuple(map(tuple, [*made, *([] for _ in range(num_slices - len(made)))]))

    copy.replace("offload.slicing", "slices", slices)


def _run_without_checkpoints(copy: Copy) -> None:
    def run(there: Any, self: Any, calls: Any, below: Any, checkpointed: bool, earlier: Any) -> Any:
        return there(self, calls, below, False, earlier)

    copy.call_instead("offload.slice_run", "SliceRun.run", run)


@mutant("offload.slice_run", "offload-costs", "each_slice_runs_forward_twice")
def never_recomputes(copy: Copy) -> None:
    """Slices are not checkpointed, and run once."""
    _run_without_checkpoints(copy)


@mutant("offload.slice_run", "offload-costs", "boundary_activations_alone_are_kept")
def keeps_all_activations(copy: Copy) -> None:
    """Slices are not checkpointed, and keep what they save."""
    _run_without_checkpoints(copy)


@mutant("offload.slicing", "offload-costs", "slices_are_those_of_the_greedy_rule", profile="default")
def cuts_by_number_of_modules(copy: Copy) -> None:
    """All modules count the same, however many parameters they have."""
    copy.call_instead("offload.slicing", "slices", lambda there, counts, num_slices: there([1 for _ in counts], num_slices))


@mutant("offload.slicing", "offload-costs", "slices_are_those_of_the_greedy_rule", profile="default")
def starts_a_slice_one_module_late(copy: Copy) -> None:
    """A slice ends after the module that takes it beyond its share, not before."""
    cut(copy, lambda counts, first, index, share: sum(counts[first:index]) > share)


@mutant("offload.slicing", "offload-costs", "slices_are_those_of_the_greedy_rule", profile="default")
def cuts_where_nothing_is_held(copy: Copy) -> None:
    """A slice may end though its modules have no parameters."""
    cut(copy, lambda counts, first, index, share: index > first and sum(counts[first : index + 1]) > share)


@mutant("offload.slicing", "offload-costs", "slices_are_those_of_the_greedy_rule", profile="default")
def counts_what_was_cut_off(copy: Copy) -> None:
    """The parameters of earlier slices count for a slice, too."""
    cut(copy, lambda counts, first, index, share: sum(counts[:index]) > 0 and sum(counts[: index + 1]) > share)


@mutant("offload.boundary", "offload-costs", "boundary_activations_alone_are_kept")
def keeps_inputs_beside_their_copies(copy: Copy) -> None:
    """The inputs of a slice are kept beside the copies of them."""

    def keep(_: Any, self: Any, title: str, args: Any, kwargs: Any, route: Any) -> None:
        self.inputs = args, kwargs

    copy.call_after("offload.boundary", "Boundary.__init__", keep)


@mutant("offload.slice_run", "offload-costs", "two_slices_of_parameters_are_resident_at_most")
def drops_slices_at_the_end_of_forward(copy: Copy) -> None:
    """What was loaded for a run is kept until the whole forward is over."""
    copy.set_after("offload.slice_run", "SliceRun.load", kept=lambda self: self.loaded)


@mutant("offload.saved_tensors", "offload-costs", "two_slices_of_parameters_are_resident_at_most")
def keeps_copies_with_what_is_saved(copy: Copy) -> None:
    """What was loaded for a run is kept with the references to it."""

    def leave(there: Any, self: Any, *error: Any) -> None:
        copies, storages = self.copies, self.storages
        there(self, *error)
        self.copies, self.storages = copies, storages

    copy.call_instead("offload.saved_tensors", "SliceHooks.__exit__", leave)


@mutant("offload.residence", "offload-costs", "two_slices_of_parameters_are_resident_at_most")
def drops_slices_at_the_end_of_backward(copy: Copy) -> None:
    """What backward has loaded is kept until the whole backward is over."""

    def take(self: Any, use: Any, names: Any) -> None:
        vars(self).setdefault("kept", []).append(self.current)

    copy.call_before("offload.residence", "_Task.take", take)


@mutant("offload.model", "offload-costs", "parameters_stay_where_they_are")
def moves_parameters_to_the_device(copy: Copy) -> None:
    """Parameters are moved to the device that computes."""

    def move(there: Any, model: Any, route: Any) -> None:
        there(model, copy["offload.transfers"].Route(route.device, route.device))

    copy.call_instead("offload.model", "_move", move)


@mutant("offload.residence", "offload-costs", "traffic_is_parameters_twice_in_and_gradients_out")
def loads_for_every_saved_tensor(copy: Copy) -> None:
    """Backward loads a slice for each saved tensor."""
    copy.set_before("offload.residence", "_Task.take", current=lambda _: None)


@mutant("offload.changes", "offload-costs", "only_what_changed_is_copied_back")
def copies_unchanged_buffers_back(copy: Copy) -> None:
    """Everything that was loaded is copied back, changed or not."""

    def write_back(self: Any, copies: Any) -> None:
        self.names = set(copies)

    copy.call_before("offload.changes", "Changes.write_back", write_back)


@mutant("offload.model", "offload-costs", "without_gradients_parameters_come_in_once")
def loads_the_first_slice_twice(copy: Copy) -> None:
    """The first slice is loaded twice."""

    def run(self: Any, runs: Any, calls: Any) -> None:
        runs[0].load()

    copy.call_before("offload.model", "OffloadModel._run", run)


@mutant("offload.slice_run", "offload-costs", "dropped_outputs_free_everything_of_a_model")
def knows_its_own_nodes(copy: Copy) -> None:
    """A slice's use knows the nodes of its own outputs, which own it."""

    def run(values: Any, self: Any, *args: Any) -> None:
        self.use.mine = self.use, copy["offload.boundary"].nodes_of(values)

    copy.call_after("offload.slice_run", "SliceRun.run", run)


@mutant("offload.residence", "offload-costs", "an_error_leaves_nothing_of_a_model_behind")
def owns_what_a_backward_loaded(copy: Copy) -> None:
    """A model keeps what its backward passes have loaded."""

    def keep(_: Any, self: Any, use: Any, names: Any) -> None:
        vars(self).setdefault("owned", []).append([task() for task in self.tasks.values()])

    copy.call_after("offload.residence", "Residence.take", keep)


@mutant("offload.boundary", "offload-costs", "a_retained_backward_leaves_what_was_there")
def keeps_what_it_restored(copy: Copy) -> None:
    """A boundary keeps the arguments that it gave to the last recomputation."""

    def restore(there: Any, self: Any, nowhere: Any) -> Any:
        self.last = there(self, nowhere)
        return self.last

    copy.call_instead("offload.boundary", "Boundary.restore", restore)


@mutant("offload.residence", "offload-costs", "steps_of_a_model_leave_nothing_behind", profile="default")
def never_forgets_a_backward_of_a_model(copy: Copy) -> None:
    """The references to backward passes that are over are never dropped."""

    def take(there: Any, self: Any, use: Any, names: Any) -> Any:
        before = self.tasks
        loaded = there(self, use, names)
        self.tasks = before | self.tasks
        return loaded

    copy.call_instead("offload.residence", "Residence.take", take)


@mutant("offload.transfers", "offload-costs", "copies_do_not_race")
def uses_memory_before_it_is_free(copy: Copy) -> None:
    """Copying does not wait until the computing stream is done with the memory."""

    def load(there: Any, self: Any, originals: Any) -> Any:
        side = self.copy_streams
        if side is None:
            return there(self, originals)
        with side.module.stream(side.to_device):
            return there(self, originals)

    copy.call_instead("offload.transfers", "Route.load", load)


@mutant("offload.loaded_copies", "offload-costs", "copies_do_not_race")
def lets_gradients_be_read_early(copy: Copy) -> None:
    """Nobody waits for a gradient before it is read on the host."""

    def backward(ctx: Any, *grads: Any) -> None:
        ctx.mail.events.pop(torch._C._current_graph_task_id(), None)

    copy.call_before("offload.loaded_copies", "_Arrive.backward", backward)


@mutant("offload.slice_run", "offload-costs", "copies_do_not_race")
def frees_parameters_that_are_still_read(copy: Copy) -> None:
    """Forward ends while parameters are still copied."""
    copy.replace("offload.slice_run", "SliceRun.settle", lambda self: None)


@mutant("offload.slice_run", "offload-costs", "the_next_slice_is_on_its_way")
def loads_a_slice_when_it_runs(copy: Copy) -> None:
    """A slice is not loaded before its run."""
    load = copy["offload.slice_run"].SliceRun.load

    def run(self: Any, *args: Any) -> None:
        self.load = lambda: load(self)
        self.load()

    copy.replace("offload.slice_run", "SliceRun.load", lambda self: None)
    copy.call_before("offload.slice_run", "SliceRun.run", run)


@mutant("offload.slice_use", "offload-costs", "the_next_slice_is_on_its_way")
def looks_at_no_slice_but_its_own(copy: Copy) -> None:
    """Backward sends for no slice before it is asked for."""
    copy.replace("offload.slice_use", "SliceUse.next", lambda self: None)


@mutant("offload.boundary", "offload-costs", "hooks_around_get_the_inputs_of_slices")
def asks_no_hooks_around(copy: Copy) -> None:
    """The hooks around a model get no inputs of slices."""
    copy.replace("offload.boundary", "hooks_are_active", lambda: False, only_here=True)


@mutant("offload.slice_run", "offload-costs", "hooks_around_get_the_inputs_of_slices")
def hands_everything_to_the_hooks_around(copy: Copy) -> None:
    """The hooks around a model get all that slices save."""
    copy.replace("offload.slice_run", "checkpoint", lambda region, *_, **__: region())


@mutant("offload.saved_tensors", "offload-costs", "hooks_around_get_the_inputs_of_slices", profile="default")
def keeps_all_from_the_hooks_around(copy: Copy) -> None:
    """The hooks around a model get nothing that slices save."""
    copy.set_after("offload.saved_tensors", "SliceHooks.__enter__", outer=lambda _: None)


@mutant("offload.changes", "offload-costs", "copies_of_microbatches_do_not_race", profile="default")
def waits_for_no_start_of_a_microbatch(copy: Copy) -> None:
    """Nobody waits until what a microbatch started from is on the host."""

    def forget(_: Any, self: Any, tensor: torch.Tensor) -> None:
        self.pending.pop()

    copy.call_after("offload.changes", "Changes.copy_to_offload_device", forget)


@mutant("offload.model", "offload-costs", "copies_of_microbatches_do_not_race", profile="default")
def reads_on_after_an_error(copy: Copy) -> None:
    """After an error forward ends while parameters are still copied."""

    def run(there: Any, self: Any, runs: Any, calls: Any) -> Any:
        try:
            return there(self, runs, calls)
        except BaseException:
            runs.clear()
            raise

    copy.call_instead("offload.model", "OffloadModel._run", run)


@mutant("offload.slice_run", "offload-costs", "copies_of_microbatches_do_not_race", profile="default")
def reads_what_is_still_written(copy: Copy) -> None:
    """A slice is loaded again while runs before it still write what it shares with them."""

    def run(there: Any, self: Any, calls: Any, below: Any, checkpointed: bool, earlier: Any) -> Any:
        stand_ins = [SimpleNamespace(changes=run.changes, settle=lambda: None) for run in earlier]
        return there(self, calls, below, checkpointed, stand_ins)

    copy.call_instead("offload.slice_run", "SliceRun.run", run)


@mutant("offload.changes", "offload-costs", "parameters_stay_where_they_are", profile="default")
def leaves_assigned_buffers_on_the_device(copy: Copy) -> None:
    """A buffer that forward assigns stays on the device that computes."""

    def leave(_: Any, self: Any, copies: Any) -> None:
        for path, _, own in (name.rpartition(".") for name in self.assigned):
            self.chain.get_submodule(path)._buffers[own] = copies[f"{path}.{own}"].detach()

    copy.call_after("offload.changes", "Changes.write_back", leave)
