"""Faults of the offloaded model that laws about changes to parameters, buffers and objects must catch."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from conformance.mutants.mutant import Copy, mutant


def refer_to(copy: Copy, **wrong: Callable[[Any], Any]) -> None:
    """Give references to saved views wrong attributes, each computed from the reference."""

    def change(_: Any, self: Any, *__: Any) -> None:
        for name, value in wrong.items():
            setattr(self, name, value(self))

    copy.call_after("offload.saved_tensors", "_Reference.__init__", change)


def overlook_writes(copy: Copy, overlooked: Callable[[Any, Any, Any], bool]) -> None:
    """Overlook what operators write to if ``overlooked(func, args, kwargs)`` says so."""

    def dispatch(there: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = set(self.updated)
        value = there(self, func, types, args, kwargs)
        if overlooked(func, args, kwargs or {}):
            self.updated = before
        return value

    copy.call_instead("offload.write_recorder", "WriteRecorder.__torch_dispatch__", dispatch)


@mutant("offload.boundary", "offload-models", "a_generator_that_a_slice_is_given_is_replayed", profile="default")
def overlooks_generators_of_a_slice(copy: Copy) -> None:
    """The states of generators among the arguments are not replayed."""
    copy.replace("offload.boundary", "Boundary.generators", ())


@mutant("offload.changes", "offload-models", "a_buffer_that_some_microbatches_change", profile="default")
def remembers_the_last_microbatch(copy: Copy) -> None:
    """Only the last microbatch knows that it started from the original."""

    def remember(there: Any, self: Any, name: str) -> None:
        starts, self.starts = self.starts, self.starts[-1:]
        there(self, name)
        self.starts = starts

    copy.call_instead("offload.changes", "Changes.remember", remember)


@mutant("offload.slice_run", "offload-models", "what_changed_before_an_error_stays")
def forgets_what_changed_before_an_error(copy: Copy) -> None:
    """Nothing is written back when forward raises."""
    copy.replace("offload.slice_run", "EARLY_STOPS", BaseException)


@mutant("offload.execution", "offload-models", "what_changed_before_an_error_stays", profile="default")
def forgets_what_was_assigned_before_an_error(copy: Copy) -> None:
    """What forward assigned before it raised is not written back."""

    def call_on(there: Any, put: Any, *args: Any) -> Any:
        before = dict(put)
        try:
            return there(put, *args)
        except BaseException:
            put.update(before)
            raise

    copy.call_instead("offload.execution", "_call_on", call_on)


@mutant("offload.saved_tensors", "offload-models", "a_region_around_a_model_that_changes_what_it_reads")
def hides_what_it_changed(copy: Copy) -> None:
    """A region around a model does not get to see what the model's forward changed and saved."""
    there = copy["offload.saved_tensors"]

    def pack(handed: Any, hooks: Any, tensor: torch.Tensor) -> Any:
        name = hooks.storages.get(there.storage_number(tensor))
        return handed(hooks, tensor) if name is None else there._Reference(hooks, name, tensor)

    copy.call_instead("offload.saved_tensors", "SliceHooks.pack", pack)


@mutant("offload.slice_use", "offload-models", "a_weight_that_changes_before_its_slice_runs")
def takes_what_came_early(copy: Copy) -> None:
    """Tensors that were loaded early are used, whatever happened to the originals since."""
    copy.replace("offload.slice_use", "SliceUse.is_same", lambda self, other: True)


@mutant("offload.slice_use", "offload-models", "a_weight_that_changes_before_its_slice_runs")
def compares_no_stamps_of_what_came_early(copy: Copy) -> None:
    """What was loaded early is taken if the originals are the same objects."""

    def same(self: Any, other: Any) -> bool:
        return {name: id(one) for name, one in self.tensors.items()} == {name: id(one) for name, one in other.tensors.items()}

    copy.replace("offload.slice_use", "SliceUse.is_same", same)


@mutant("offload.slice_run", "offload-models", "a_flag_that_changes_before_backward", profile="default")
def takes_flags_when_it_recomputes(copy: Copy) -> None:
    """A recomputation goes by what requires grad now."""
    copy.set_before(
        "offload.slice_run",
        "_Region.__call__",
        flags=lambda self: {name: self.use.tensors[name].requires_grad for name in self.flags},
    )


@mutant("offload.saved_tensors", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def loads_again_inside(copy: Copy) -> None:
    """A backward inside a slice loads the originals, not what the slice runs on."""

    def unpack(there: Any, self: Any) -> Any:
        copies, self.run.copies = self.run.copies, {}
        try:
            return there(self)
        finally:
            self.run.copies = copies

    copy.call_instead("offload.saved_tensors", "_Reference.unpack", unpack)


@mutant("offload.slice_run", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def runs_forward_again_inside(copy: Copy) -> None:
    """A backward inside a slice runs its forward again, not a recomputation."""

    def call(there: Any, self: Any, *args: Any) -> Any:
        first = self.first

        def forward() -> Any:
            self.first = first
            return first()

        self.first = None if first is None else forward
        return there(self, *args)

    copy.call_instead("offload.slice_run", "_Region.__call__", call)


@mutant("offload.saved_tensors", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
def forgets_that_a_view_is_conjugated(copy: Copy) -> None:
    """A conjugated view of a parameter is loaded again without that."""
    refer_to(copy, conjugated=lambda self: False)


@mutant("offload.saved_tensors", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
def forgets_that_a_view_is_negated(copy: Copy) -> None:
    """A negated view of a parameter is loaded again without that."""
    refer_to(copy, negated=lambda self: False)


@mutant("offload.saved_tensors", "offload-models", "a_view_of_a_weight_is_loaded_again")
def forgets_the_dtype_of_a_view(copy: Copy) -> None:
    """A view of a parameter in another dtype is loaded again in the parameter's."""
    refer_to(copy, dtype=lambda self: self.run.copies[self.name].dtype)


@mutant("offload.saved_tensors", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
def forgets_where_a_view_begins(copy: Copy) -> None:
    """A view of a parameter is loaded again from its beginning."""
    refer_to(copy, layout=lambda self: (*self.layout[:2], 0))


@mutant("offload.model", "offload-models", "another_thread_sees_no_copies", profile="default")
def shows_copies_as_parameters(copy: Copy) -> None:
    """``named_parameters`` does not wait until another thread's slice is over."""
    copy.replace("offload.model", "OffloadModel.named_parameters", nn.Module.named_parameters)


@mutant("offload.model", "offload-models", "another_thread_sees_no_copies", profile="default")
def shows_copies_as_buffers(copy: Copy) -> None:
    """``named_buffers`` does not wait until another thread's slice is over."""
    copy.replace("offload.model", "OffloadModel.named_buffers", nn.Module.named_buffers)


@mutant("offload.model", "offload-models", "another_thread_sees_no_copies", profile="default")
def saves_copies(copy: Copy) -> None:
    """``state_dict`` does not wait until another thread's slice is over."""
    copy.replace("offload.model", "OffloadModel.state_dict", nn.Module.state_dict)


@mutant("offload.model", "offload-models", "another_thread_sees_no_copies", profile="default")
def loads_into_copies(copy: Copy) -> None:
    """``load_state_dict`` does not wait until another thread's slice is over."""
    copy.replace("offload.model", "OffloadModel.load_state_dict", nn.Module.load_state_dict)


@mutant("offload.slice_run", "offload-models", "threads_lose_no_change_of_a_buffer")
def lets_others_run_before_it_writes_back(copy: Copy) -> None:
    """Another thread runs a slice that is over, but whose changes are not written back yet."""

    def write_back(there: Any, self: Any, copies: Any) -> None:
        self.residence.running.release()
        time.sleep(0.02)
        self.residence.running.acquire()
        there(self, copies)

    copy.call_instead("offload.slice_run", "SliceRun.write_back", write_back)


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def refuses_a_buffer_that_grows(copy: Copy) -> None:
    """A tensor of another shape that forward assigned to a buffer is refused."""

    def refuse(_: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        if now.shape != self.use.tensors[name].shape:
            raise RuntimeError(f"{self.title} assigned another shape to buffer {name!r}")

    copy.call_after("offload.changes", "Changes.refuse", refuse)


@mutant("offload.write_recorder", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def overlooks_what_out_is_given(copy: Copy) -> None:
    """What operators write to as ``out`` is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: "out" in kwargs)


@mutant("offload.write_recorder", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def overlooks_lists_of_tensors(copy: Copy) -> None:
    """What operators write to in a list is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: bool(args) and isinstance(args[0], list | tuple))


@mutant("offload.write_recorder", "offload-models", "buffers_may_change_where_no_version_tells")
def overlooks_changes_through_data(copy: Copy) -> None:
    """What operators say that they write to is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: func._schema.is_mutable)


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def forgets_what_changed_before_it_was_replaced(copy: Copy) -> None:
    """What forward changed before it assigned another tensor is not written back."""
    copy.set_after("offload.changes", "Changes.note", assigned=lambda self: dict.fromkeys(self.assigned))


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def forgets_data_that_changed_before_it_was_replaced(copy: Copy) -> None:
    """What forward changed silently before it assigned another tensor is not written back."""

    def note(_: Any, self: Any, copies: Any, before: Any, *__: Any) -> None:
        for name, one in self.assigned.items():
            if one is copies[name] and one._version == before[name].version:
                self.assigned[name] = None

    copy.call_after("offload.changes", "Changes.note", note)


@mutant("offload.slice_run", "offload-models", "a_buffer_made_in_forward_is_not_made_twice", profile="default")
def leaves_a_buffer_that_it_refused(copy: Copy) -> None:
    """A buffer that forward made stays there after it was refused."""

    def refuse(there: Any, self: Any) -> None:
        before = [(module, dict(module._buffers)) for module in self.chain.modules()]
        try:
            there(self)
        finally:
            for module, buffers in before:
                module._buffers.update(buffers)

    copy.call_instead("offload.slice_run", "SliceRun.refuse_new_buffers", refuse)


@mutant("offload.loaded_copies", "offload-models", "a_weight_that_changes_before_its_slice_runs", profile="default")
def brings_every_gradient_to_the_host(copy: Copy) -> None:
    """Gradients of parameters that have left the offload device are sent there, too."""

    def attach(there: Any, values: Any, parameter: Any, route: Any, delivery: Any) -> Any:
        near = SimpleNamespace(copy_streams=route.copy_streams, offload_device=parameter.device)
        return there(values, parameter, near, delivery)

    copy.call_instead("offload.loaded_copies", "attach", attach)


@mutant("offload.loaded_copies", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def attaches_nothing_without_grad_mode(copy: Copy) -> None:
    """Under no_grad copies of parameters require no grad."""

    def attach(there: Any, values: Any, parameter: Any, route: Any, delivery: Any) -> Any:
        if torch.is_grad_enabled():
            return there(values, parameter, route, delivery)
        return copy["offload.loaded_copies"].as_original(values.detach(), parameter)

    copy.call_instead("offload.loaded_copies", "attach", attach)


@mutant("offload.changes", "offload-models", "a_buffer_that_two_slices_share", profile="default")
def forgets_what_another_slice_wrote(copy: Copy) -> None:
    """What was loaded early is taken, though a slice before has written to the originals since."""
    copy.replace("offload.slice_use", "SliceUse.is_same", lambda self, other: True)
    copy.replace("offload.changes", "Changes.affect", lambda self, use: False)


@mutant("offload.slice_use", "offload-models", "a_buffer_that_some_microbatches_change", profile="default")
def loads_what_the_last_microbatch_left(copy: Copy) -> None:
    """Backward loads what the last microbatch left, whichever microbatch it is for."""

    def again(there: Any, self: Any, name: str, start: Any) -> Any:
        self.refuse_overtaken(name, start)
        return there(self, name, copy["offload.slice_use"].Start())

    copy.call_instead("offload.slice_use", "SliceUse.load_again", again)


@mutant("offload.saved_tensors", "offload-models", "a_buffer_that_some_microbatches_change", profile="default")
def refuses_what_another_microbatch_changed(copy: Copy) -> None:
    """Changes by later microbatches count as changes of what this one saved."""
    copy.replace("offload.saved_tensors", "SliceHooks.version", lambda self, name: self.counters[name]._version)


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_changes")
def overlooks_changed_objects(copy: Copy) -> None:
    """A slice runs again with objects that have changed since."""
    copy.replace("offload.boundary", "_contents", lambda thing: {})


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_changes", profile="default")
def overlooks_containers_of_objects(copy: Copy) -> None:
    """Of an object the attributes alone are looked at, not what is in containers there."""
    copy.change_result("offload.boundary", "_contents", lambda found, _: {k: v for k, v in found.items() if "[" not in k})


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_adds_to")
def overlooks_what_is_new_in_objects(copy: Copy) -> None:
    """Of an object the places alone are looked at that had something when the slice was given it."""

    def change(there: Any, before: dict[str, Any], now: dict[str, Any]) -> str | None:
        return there(before, {place: value for place, value in now.items() if place in before})

    copy.call_instead("offload.boundary", "_first_change", change)


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_adds_to")
def overlooks_slots_of_objects(copy: Copy) -> None:
    """Of an object the attributes in its dictionary alone are looked at."""
    copy.replace("offload.boundary", "_attributes", lambda thing: dict(getattr(thing, "__dict__", {})))


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_adds_to")
def overlooks_items_of_objects(copy: Copy) -> None:
    """Of an object that is a list of a class of its own the attributes alone are looked at."""
    copy.replace("offload.boundary", "_items", lambda thing: ())


@mutant("offload.boundary", "offload-models", "an_object_that_a_slice_adds_to")
def overlooks_what_was_none(copy: Copy) -> None:
    """Of an object what was None is not looked at."""

    def change(there: Any, before: dict[str, Any], now: dict[str, Any]) -> str | None:
        kept = {place for place in {**before, **now} if before.get(place) != ("value", None)}
        return there(*({place: value for place, value in one.items() if place in kept} for one in (before, now)))

    copy.call_instead("offload.boundary", "_first_change", change)


@mutant("offload.boundary", "offload-models", "an_object_between_slices_may_stay_or_be_new")
def takes_objects_for_changed(copy: Copy) -> None:
    """An object that a slice was given is taken for changed when the slice runs again."""
    copy.change_result("offload.boundary", "_contents", lambda found, _: {name: object() for name in found})


@mutant("offload.loaded_copies", "offload-models", "a_tensor_that_a_module_keeps_for_later")
def loses_gradients_of_what_modules_keep(copy: Copy) -> None:
    """Backward through what a slice made when it ran again goes nowhere, and nobody is told."""
    copy.replace("offload.loaded_copies", "Nowhere.take", lambda self, grad=None: None)


@mutant("offload.changes", "offload-models", "a_buffer_that_another_microbatch_replaces", profile="default")
def forgets_what_was_changed_before_it_was_replaced(copy: Copy) -> None:
    """What one microbatch changed in a buffer that a later one replaces is not written back."""

    def note(there: Any, self: Any, *args: Any) -> None:
        before = {*self.names}
        known = {*self.assigned}
        there(self, *args)
        self.assigned |= dict.fromkeys((before & self.assigned.keys()) - known)

    copy.call_instead("offload.changes", "Changes.note", note)
