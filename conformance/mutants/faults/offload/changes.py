"""Faults of the offloaded model that laws about what changes must catch."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy as shallow
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

    copy.call_after("offload.saved", "_Reference.__init__", change)


def overlook_writes(copy: Copy, overlooked: Callable[[Any, Any, Any], bool]) -> None:
    """Overlook what operators write to if ``overlooked(func, args, kwargs)`` says so."""

    def dispatch(there: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = set(self.updated)
        value = there(self, func, types, args, kwargs)
        if overlooked(func, args, kwargs or {}):
            self.updated = before
        return value

    copy.call_instead("offload.statistics", "Statistics.__torch_dispatch__", dispatch)


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


@mutant("offload.use", "offload-models", "a_weight_that_changes_before_its_slice_runs")
def takes_what_came_early(copy: Copy) -> None:
    """What was loaded early is taken, whatever happened to the originals since."""
    copy.replace("offload.use", "Use.same", lambda self, other: True)


@mutant("offload.use", "offload-models", "a_weight_that_changes_before_its_slice_runs")
def compares_no_stamps_of_what_came_early(copy: Copy) -> None:
    """What was loaded early is taken if the originals are the same objects."""

    def same(self: Any, other: Any) -> bool:
        return {name: id(one) for name, one in self.tensors.items()} == {name: id(one) for name, one in other.tensors.items()}

    copy.replace("offload.use", "Use.same", same)


@mutant("offload.turn", "offload-models", "a_flag_that_changes_before_backward", profile="default")
def takes_flags_when_it_recomputes(copy: Copy) -> None:
    """A recomputation goes by what requires grad now."""

    def call(there: Any, self: Any, *args: Any) -> Any:
        self.flags = {name: self.use.tensors[name].requires_grad for name in self.flags}
        return there(self, *args)

    copy.call_instead("offload.turn", "_Region.__call__", call)


@mutant("offload.saved", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def loads_again_inside(copy: Copy) -> None:
    """A backward inside a slice loads the originals, not what the slice runs on."""

    def unpack(there: Any, self: Any) -> Any:
        copies, self.run.copies = self.run.copies, {}
        try:
            return there(self)
        finally:
            self.run.copies = copies

    copy.call_instead("offload.saved", "_Reference.unpack", unpack)


@mutant("offload.turn", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def runs_forward_again_inside(copy: Copy) -> None:
    """A backward inside a slice runs its forward again, not a recomputation."""

    def call(there: Any, self: Any, *args: Any) -> Any:
        first = self.first

        def forward() -> Any:
            self.first = first
            return first()

        self.first = None if first is None else forward
        return there(self, *args)

    copy.call_instead("offload.turn", "_Region.__call__", call)


@mutant("offload.saved", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
def forgets_that_a_view_is_conjugated(copy: Copy) -> None:
    """A conjugated view of a parameter is loaded again without that."""
    refer_to(copy, conjugated=lambda self: False)


@mutant("offload.saved", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
def forgets_that_a_view_is_negated(copy: Copy) -> None:
    """A negated view of a parameter is loaded again without that."""
    refer_to(copy, negated=lambda self: False)


@mutant("offload.saved", "offload-models", "a_view_of_a_weight_is_loaded_again")
def forgets_the_dtype_of_a_view(copy: Copy) -> None:
    """A view of a parameter in another dtype is loaded again in the parameter's."""
    refer_to(copy, dtype=lambda self: self.run.copies[self.name].dtype)


@mutant("offload.saved", "offload-models", "a_view_of_a_weight_is_loaded_again", profile="default")
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


@mutant("offload.changes", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused")
def takes_a_resized_buffer(copy: Copy) -> None:
    """A buffer that forward resized is not refused."""

    def refuse(there: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        if now is not one or one.shape == self.use.tensors[name].shape:
            there(self, name, one, now, rewritten)

    copy.call_instead("offload.changes", "Changes.refuse", refuse)


@mutant("offload.changes", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused", profile="default")
def takes_a_buffer_with_a_graph(copy: Copy) -> None:
    """A buffer that got a graph by a change in place is not refused."""

    def refuse(there: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        there(self, name, one, now, rewritten and self.use.tensors[name].requires_grad)

    copy.call_instead("offload.changes", "Changes.refuse", refuse)


@mutant("offload.changes", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused", profile="default")
def takes_an_assigned_buffer_with_a_graph(copy: Copy) -> None:
    """A tensor with a graph that forward assigned to a buffer is not refused."""

    def refuse(there: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        there(self, name, one, now if now is one or now is None else now.detach(), rewritten)

    copy.call_instead("offload.changes", "Changes.refuse", refuse)


@mutant("offload.changes", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused", profile="default")
def takes_a_parameter_that_was_replaced(copy: Copy) -> None:
    """A parameter that forward assigned is not refused."""

    def refuse(there: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        there(self, name, one, one if isinstance(self.use.tensors[name], nn.Parameter) else now, rewritten)

    copy.call_instead("offload.changes", "Changes.refuse", refuse)


@mutant("offload.changes", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused", profile="default")
def takes_a_buffer_that_is_gone(copy: Copy) -> None:
    """A buffer that forward removed is not refused."""

    def refuse(there: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        there(self, name, one, now if isinstance(now, torch.Tensor) else one, rewritten)

    copy.call_instead("offload.changes", "Changes.refuse", refuse)


@mutant("offload.execution", "offload-models", "a_buffer_that_cannot_be_written_back_is_refused", profile="default")
def takes_a_shared_buffer_that_one_assigned(copy: Copy) -> None:
    """A buffer of two modules that one of them assigned is not refused."""

    def collect(given: Any, put: Any, places: dict[str, str]) -> None:
        given.update({name: put[place] for place, name in places.items() if put[place] is not given[name]})

    copy.replace("offload.execution", "_collect", collect)


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def refuses_a_buffer_that_grows(copy: Copy) -> None:
    """A tensor of another shape that forward assigned to a buffer is refused."""

    def refuse(_: Any, self: Any, name: str, one: Any, now: Any, rewritten: bool) -> None:
        if now.shape != self.use.tensors[name].shape:
            raise RuntimeError(f"{self.title} assigned another shape to buffer {name!r}")

    copy.call_after("offload.changes", "Changes.refuse", refuse)


@mutant("offload.microbatches", "offload-models", "rows_are_divided_as_by_tensor_split", profile="default")
def divides_rows_in_chunks(copy: Copy) -> None:
    """Rows are divided as torch.chunk does."""

    def split(there: Any, args: Any, kwargs: Any, parts: int) -> Any:
        there(args, kwargs, parts)  # refuses what cannot be split
        tensors, whole = copy["offload.containers"].taken_apart((args, kwargs))
        pieces = [(torch.chunk(tensor, parts) + (tensor[:0],) * parts)[:parts] for tensor in tensors]
        return [whole.of([piece[index] for piece in pieces]) for index in range(parts)]

    copy.call_instead("offload.microbatches", "split", split)


@mutant("offload.statistics", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def overlooks_what_out_is_given(copy: Copy) -> None:
    """What operators write to as ``out`` is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: "out" in kwargs)


@mutant("offload.statistics", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def overlooks_lists_of_tensors(copy: Copy) -> None:
    """What operators write to in a list is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: bool(args) and isinstance(args[0], list | tuple))


@mutant("offload.statistics", "offload-models", "buffers_may_change_where_no_version_tells")
def overlooks_changes_through_data(copy: Copy) -> None:
    """What operators say that they write to is overlooked."""
    overlook_writes(copy, lambda func, args, kwargs: func._schema.is_mutable)


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def forgets_what_changed_before_it_was_replaced(copy: Copy) -> None:
    """What forward changed before it assigned another tensor is not written back."""

    def note(_: Any, self: Any, *__: Any) -> None:
        self.assigned = dict.fromkeys(self.assigned)

    copy.call_after("offload.changes", "Changes.note", note)


@mutant("offload.changes", "offload-models", "buffers_may_change_where_no_version_tells", profile="default")
def forgets_data_that_changed_before_it_was_replaced(copy: Copy) -> None:
    """What forward changed silently before it assigned another tensor is not written back."""

    def note(_: Any, self: Any, copies: Any, before: Any, *__: Any) -> None:
        for name, one in self.assigned.items():
            if one is copies[name] and one._version == before[name].version:
                self.assigned[name] = None

    copy.call_after("offload.changes", "Changes.note", note)


@mutant("offload.cutting", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def overlooks_a_forward_of_an_instance(copy: Copy) -> None:
    """A model whose instance has a forward of its own is not refused."""

    def children(there: Any, model: Any) -> Any:
        if isinstance(model, nn.Module):
            model = shallow(model)
            vars(model).pop("forward", None)
        return there(model)

    copy.call_instead("offload.cutting", "children", children)


@mutant("offload.cutting", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def overlooks_buffers_without_a_shape(copy: Copy) -> None:
    """A model that has buffers without a shape is not refused."""
    copy.call_instead("offload.cutting", "is_lazy", lambda there, tensor: isinstance(tensor, nn.Parameter) and there(tensor))


@mutant("offload.model", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_any_text_for_true(copy: Copy) -> None:
    """Any value is taken for ``checkpoint_activation``."""

    def make(there: Any, self: Any, *args: Any, checkpoint_activation: Any = False, **options: Any) -> None:
        there(self, *args, checkpoint_activation=bool(checkpoint_activation), **options)

    copy.call_instead("offload.model", "OffloadModel.__init__", make)


@mutant("offload.model", "offload-models", "modules_may_change_their_input_in_place", profile="default")
def takes_a_device_without_its_index(copy: Copy) -> None:
    """A device that is given without an index stays without."""

    def device(there: Any, name: str, given: Any) -> torch.device:
        there(name, given)
        return torch.device(given)

    copy.call_instead("offload.model", "_device", device)


@mutant("offload.turn", "offload-models", "a_buffer_made_in_forward_is_not_made_twice", profile="default")
def leaves_a_buffer_that_it_refused(copy: Copy) -> None:
    """A buffer that forward made stays there after it was refused."""

    def refuse(there: Any, self: Any) -> None:
        before = [(module, dict(module._buffers)) for module in self.chain.modules()]
        try:
            there(self)
        finally:
            for module, buffers in before:
                module._buffers.update(buffers)

    copy.call_instead("offload.turn", "Turn.refuse_new_buffers", refuse)


@mutant("offload.microbatches", "offload-models", "rows_that_cannot_be_split_are_refused", profile="default")
def takes_one_for_true(copy: Copy) -> None:
    """Outputs that are equal and of different types are taken for the same."""

    def joined(there: Any, parts: Any, known: Any) -> Any:
        atoms = copy["offload.microbatches"]._ATOMS
        if all(type(part) in atoms and part == parts[0] for part in parts):
            return parts[0]
        return there(parts, known)

    copy.call_instead("offload.microbatches", "_joined", joined)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def leaves_buffers_on_the_device(copy: Copy) -> None:
    """Buffers stay where they are when parameters are moved."""

    def move(there: Any, model: Any, route: Any) -> None:
        there(SimpleNamespace(parameters=model.parameters, buffers=lambda: ()), route)

    copy.call_instead("offload.model", "_move", move)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def leaves_gradients_on_the_device(copy: Copy) -> None:
    """Gradients that are not on the offload device are lost."""

    def move(there: Any, model: Any, route: Any) -> None:
        for one in model.parameters():
            if one.grad is not None and one.grad.device != route.offload_device:
                one.grad = None
        there(model, route)

    copy.call_instead("offload.model", "_move", move)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def thaws_what_it_moves(copy: Copy) -> None:
    """Frozen parameters that are moved from another device require grad."""

    def move(there: Any, model: Any, route: Any) -> None:
        moved = [one for one in model.parameters() if one.device != route.offload_device]
        there(model, route)
        for one in moved:
            one.requires_grad_()

    copy.call_instead("offload.model", "_move", move)


@mutant("offload.attachment", "offload-models", "a_weight_that_changes_before_its_slice_runs", profile="default")
def brings_every_gradient_to_the_host(copy: Copy) -> None:
    """Gradients of parameters that have left the offload device are sent there, too."""

    def attach(there: Any, values: Any, parameter: Any, route: Any) -> Any:
        return there(values, parameter, SimpleNamespace(lane=route.lane, offload_device=parameter.device))

    copy.call_instead("offload.attachment", "attach", attach)


@mutant("offload.attachment", "offload-models", "a_backward_inside_a_slice_sees_its_weights", profile="default")
def attaches_nothing_without_grad_mode(copy: Copy) -> None:
    """Under no_grad copies of parameters require no grad."""

    def attach(there: Any, values: Any, parameter: Any, route: Any) -> Any:
        if torch.is_grad_enabled():
            return there(values, parameter, route)
        return copy["offload.attachment"].like(values.detach(), parameter)

    copy.call_instead("offload.attachment", "attach", attach)


@mutant("offload.changes", "offload-models", "a_buffer_that_two_slices_share", profile="default")
def forgets_what_another_slice_wrote(copy: Copy) -> None:
    """What was loaded early is taken, though a slice before has written to the originals since."""
    copy.replace("offload.use", "Use.same", lambda self, other: True)
    copy.replace("offload.changes", "Changes.concern", lambda self, use: False)


@mutant("offload.use", "offload-models", "a_buffer_that_some_microbatches_change", profile="default")
def loads_what_the_last_microbatch_left(copy: Copy) -> None:
    """Backward loads what the last microbatch left, whichever microbatch it is for."""

    def again(there: Any, self: Any, name: str, start: Any) -> Any:
        self.refuse_overtaken(name, start)
        return there(self, name, copy["offload.use"].Start())

    copy.call_instead("offload.use", "Use.again", again)


@mutant("offload.saved", "offload-models", "a_buffer_that_some_microbatches_change", profile="default")
def refuses_what_another_microbatch_changed(copy: Copy) -> None:
    """Changes by later microbatches count as changes of what this one saved."""
    copy.replace("offload.saved", "Run.version", lambda self, name: self.counters[name]._version)
