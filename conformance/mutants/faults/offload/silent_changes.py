"""Faults of the offloaded model that laws about changes without a new version must catch."""

from __future__ import annotations

from contextlib import nullcontext
from copy import copy as shallow_copy
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


@mutant("offload.slice_use", "offload-models", "a_buffer_is_read_where_no_version_tells_of_its_changes")
def reads_what_a_silent_change_began_with(copy: Copy) -> None:
    """A buffer that changes without a new version is read as it was when the microbatch began."""

    def again(there: Any, self: Any, name: str, start: Any) -> Any:
        told = copy["offload.slice_use"].Start(start)
        told.overtaken = start.overtaken
        return there(self, name, told)

    copy.call_instead("offload.slice_use", "SliceUse.load_again", again)


@mutant("offload.saved_tensors", "offload-models", "silent_changes_after_one_that_a_version_tells_of")
def has_a_region_follow_changed_copies(copy: Copy) -> None:
    """A region around a slice takes a copy that the slice has changed for a tensor from outside."""
    packed: list[Any] = []

    def pack(there: Any, self: Any, tensor: Any) -> Any:
        packed.append(tensor)
        try:
            return there(self, tensor)
        finally:
            packed.pop()

    copy.call_instead("offload.saved_tensors", "SliceHooks.pack", pack)
    copy.call_instead(
        "offload.saved_tensors", "_Handed.__init__", lambda there, self, _, *hooks: there(self, packed[-1], *hooks)
    )


@mutant("offload.slice_use", "offload-models", "microbatches_that_read_a_buffer_which_they_change")
def reads_what_a_later_microbatch_changed(copy: Copy) -> None:
    """What a later microbatch changed is read, though it is another value than was saved."""

    def refuse(there: Any, self: Any, name: str, start: Any) -> None:
        if start.overtaken.get(name) is None:
            there(self, name, start)

    copy.call_instead("offload.slice_use", "SliceUse.refuse_overtaken", refuse)


@mutant("offload.changes", "offload-models", "microbatches_that_read_a_buffer_which_they_change", profile="default")
def keeps_what_a_later_microbatch_changed(copy: Copy) -> None:
    """A change by a later microbatch is noted only if the earlier one changed the same silently."""

    def overtake(there: Any, self: Any, name: str, told: bool) -> None:
        before = [(start, dict(start.overtaken)) for start in self.starts[:-1] if name not in start.silent]
        there(self, name, told)
        for start, overtaken in before:
            start.overtaken = overtaken

    copy.call_instead("offload.changes", "Changes.overtake", overtake)


@mutant("offload.slice_use", "offload-models", "a_later_forward_changes_what_an_earlier_one_read", profile="default")
def runs_again_on_what_another_forward_left(copy: Copy) -> None:
    """A slice is recomputed from what a later forward changed silently."""
    copy.replace("offload.slice_use", "SliceUse.check_silent", lambda self, names: None)


@mutant("offload.changes", "offload-models", "weights_may_change_where_no_version_tells")
def looks_at_operators_where_there_are_buffers(copy: Copy) -> None:
    """What operators write to is not looked at in a slice without buffers."""

    def note(there: Any, self: Any, copies: Any, before: Any, now: Any, updated: set[int], start: Any) -> None:
        there(self, copies, before, now, updated if [*self.chain.buffers()] else set(), start)

    copy.call_instead("offload.changes", "Changes.note", note)


@mutant("offload.changes", "offload-models", "weights_may_change_where_no_version_tells")
def overlooks_other_data(copy: Copy) -> None:
    """Other data that a copy is given in forward is not noticed."""

    def note(there: Any, self: Any, copies: Any, before: Any, *others: Any) -> None:
        number = copy["offload.saved_tensors"].storage_number
        there(self, copies, {name: one._replace(storage=number(copies[name])) for name, one in before.items()}, *others)

    copy.call_instead("offload.changes", "Changes.note", note)


@mutant("offload.changes", "offload-models", "a_weight_that_is_given_other_data_after_it_was_read")
def reads_other_data(copy: Copy) -> None:
    """What was saved of a parameter before it was given other data is read from that."""

    def forget(_: Any, self: Any, copies: Any, before: Any, now: Any, updated: Any, start: Any) -> None:
        for name in self.redirected:
            start.overtaken.pop(name, None)

    copy.call_after("offload.changes", "Changes.note", forget)


@mutant("offload.write_recorder", "offload-models", "a_hook_changes_what_it_took_before")
def reads_what_is_stale(copy: Copy) -> None:
    """A copy is read although its original was changed by another name meanwhile."""
    copy.replace("offload.write_recorder", "Twins.refuse_stale", lambda self, values: None)


@mutant("offload.write_recorder", "offload-models", "a_hook_changes_what_it_took_before")
def overlooks_another_name(copy: Copy) -> None:
    """What is written by another name than a module's is not noticed."""
    copy.replace("offload.write_recorder", "Twins.note_write", lambda self, written, number: None)


@mutant("offload.boundary", "offload-models", "a_slice_changes_a_view_of_its_input")
def overlooks_inputs_that_share_memory(copy: Copy) -> None:
    """Inputs that share memory are taken for inputs with memory of their own."""
    copy.replace("offload.boundary", "SharedInputs.refuse_changes", lambda self, title: None)


@mutant("offload.write_recorder", "offload-models", "modules_may_call_higher_order_operators")
def knows_no_higher_order_operators(copy: Copy) -> None:
    """A module that calls a higher-order operator is refused, since what notes writes has no rule for it."""
    copy["offload.write_recorder"].WriteRecorder.supports_higher_order_operators = False


@mutant("offload.changes", "offload-models", "buffers_that_higher_order_operators_write")
def looks_at_operators_alone(copy: Copy) -> None:
    """A buffer counts as changed if an operator was seen to write it, whatever its version tells."""

    def note(there: Any, self: Any, copies: Any, before: Any, *others: Any) -> None:
        there(self, copies, {name: one._replace(version=copies[name]._version) for name, one in before.items()}, *others)

    copy.call_instead("offload.changes", "Changes.note", note)


@mutant("offload.slice_use", "offload-models", "weights_that_are_rows_of_one_tensor")
def tells_data_apart_by_their_storage(copy: Copy) -> None:
    """Two weights in one storage are taken for the same, so what was loaded of one serves for the other."""
    copy.change_result("offload.slice_use", "data_of", lambda data, tensor: data and data.storage)


@mutant("offload.slice_run", "offload-models", "a_slice_differentiates_one_input_by_another", profile="default")
def differentiates_below_a_slice(copy: Copy) -> None:
    """A backward in forward may go on to what is before the slice's inputs."""
    copy.replace("offload.slice_run", "no_backward_below", lambda *_: nullcontext())


@mutant("offload.changes", "offload-models", "weights_that_are_tied_by_their_memory_alone")
def looks_at_versions_of_their_own_alone(copy: Copy) -> None:
    """A weight counts as unchanged if its own version does, whatever happened to another tensor in its memory."""
    copy.replace("offload.changes", "Neighbour.check", lambda self, name: None)


@mutant("offload.slicing", "offload-models", "modules_behind_one_that_differentiates_run_once_in_forward")
def runs_ahead_of_forward(copy: Copy) -> None:
    """A backward inside forward runs the whole slice again, modules that forward has not come to included."""
    copy.call_instead("offload.slicing", "Chain.again", lambda there, self, as_far_as_it_is: there(self, as_far_as_it_is=False))


@mutant("offload.slicing", "offload-models", "a_module_uses_a_later_one_of_its_slice")
def leaves_out_what_it_does_not_run(copy: Copy) -> None:
    """Modules that do not run again keep what forward gave them, also for others that use them."""

    def some(there: Any, self: Any, as_far_as_it_is: bool) -> Any:
        made = there(self, as_far_as_it_is=as_far_as_it_is)
        for name in [*made._modules][made.count :]:
            module = made._modules[name]
            made._modules[name] = shell = shallow_copy(module)
            shell._parameters, shell._buffers = dict(module._parameters), dict(module._buffers)
        return made

    copy.call_instead("offload.slicing", "Chain.again", some)


@mutant("offload.boundary", "offload-models", "a_slice_differentiates_by_its_input", profile="default")
def takes_an_input_for_what_is_below(copy: Copy) -> None:
    """A backward in forward must not reach the slice's inputs."""

    def nodes_of(there: Any, values: Any) -> Any:
        made = [value for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None]
        return tuple(SimpleNamespace(register_prehook=value.register_hook) for value in made)

    copy.call_instead("offload.boundary", "nodes_of", nodes_of)


@mutant("offload.boundary", "offload-models", "an_iterator_that_a_slice_uses_up", profile="default")
def runs_again_with_what_is_used_up(copy: Copy) -> None:
    """A slice runs again with an iterator that forward has used up."""
    copy.replace("offload.boundary", "Iterator", type(None))


@mutant("offload.slice_run", "offload-models", "what_a_module_does_at_times")
def compares_no_changes(copy: Copy) -> None:
    """A slice that runs again may change other parameters and buffers than it did in forward."""
    copy.replace("offload.slice_run", "_Region.refuse_other_changes", lambda self, *_: None)


@mutant("offload.loaded_copies", "offload-models", "steps_in_backward_come_after_what_runs_again")
def delivers_before_it_runs_again(copy: Copy) -> None:
    """Gradients get to parameters at once also before their slice has run again."""
    copy.call_instead("offload.loaded_copies", "Delivery.__init__", lambda there, self, regions: there(self, 0))
