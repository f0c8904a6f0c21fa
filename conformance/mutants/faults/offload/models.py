"""Faults of the offloaded model that laws of the family offload-models must catch, but for those in files of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from conformance.mutants.faults.offload.seams import change_loaded, is_size, replay_no_random_numbers
from conformance.mutants.mutant import Copy, mutant


def change_modules(copy: Copy, changed: Callable[[dict[str, nn.Module]], dict[str, nn.Module]]) -> None:
    """Change the modules of a model, or their names, before it is cut."""
    copy.change_result("offload.slicing", "children", lambda result, _: changed(result))


def change_boundaries(copy: Copy, **wrong: Callable[[torch.Tensor, Any], Any]) -> None:
    """Give copies at boundaries wrong attributes, each computed from the tensor that is copied and the route."""

    def change(_: Any, self: Any, tensor: torch.Tensor, route: Any) -> None:
        for name, value in wrong.items():
            setattr(self, name, value(tensor, route))

    copy.call_after("offload.boundary", "_Copy.__init__", change)


def compare_no(copy: Copy, field: str) -> None:
    """Check parameters before backward without comparing one field of their stamps."""

    def check(self: Any, names: Any) -> None:
        for name in names:
            now = copy["offload.slice_use"].Stamp.of(self.tensors[name])
            self.stamps[name] = self.stamps[name]._replace(**{field: getattr(now, field)})

    copy.call_before("offload.slice_use", "SliceUse.check", check)


def forget_numbers(copy: Copy, forgotten: Callable[[Any], bool]) -> None:
    """Take things at several places for several things if ``forgotten`` says so."""

    def take(value: Any, tensors: Any, whole: Any, known: dict[int, Any]) -> None:
        if forgotten(value):
            known.pop(id(value), None)

    copy.call_before("offload.containers", "_flatten", take)


@mutant("offload.slice_run", "offload-models", "inputs_that_are_transposed", profile="default")
def recomputes_outside_of_the_mode(copy: Copy) -> None:
    """Forward runs inside a dispatch mode, under which composite operators call others, and the recomputation does not."""
    there = copy["offload.slice_run"]

    def run_again(run: Any, region: Any, *args: Any) -> Any:
        if region.first is not None:
            return run(region, *args)
        mode, there.WriteRecorder = there.WriteRecorder, nullcontext
        try:
            return run(region, *args)
        finally:
            there.WriteRecorder = mode

    copy.call_instead("offload.slice_run", "_Region.__call__", run_again)


@mutant("offload.microbatches", "offload-models", "the_first_module_gets_every_input")
def drops_keyword_arguments(copy: Copy) -> None:
    """A model's keyword arguments are dropped."""
    copy.call_instead("offload.microbatches", "split", lambda there, args, kwargs, parts: there(args, {}, parts))


@mutant("offload.model", "offload-models", "the_first_module_gets_every_input")
def leaves_inputs_where_they_are(copy: Copy) -> None:
    """Inputs are not moved to the device."""
    copy.replace("offload.model", "_to_device", lambda args, kwargs, device: (args, kwargs))


@mutant("offload.microbatches", "offload-models", "outputs_have_their_structure")
def joins_shapes_away(copy: Copy) -> None:
    """Joined outputs lose their dimensions of size 1."""

    def joined(there: Any, parts: Any, known: Any) -> Any:
        made = there(parts, known)
        return made.squeeze() if isinstance(made, torch.Tensor) else made

    copy.call_instead("offload.microbatches", "_joined", joined)


@mutant("offload.containers", "offload-models", "a_container_that_is_there_twice_is_one")
def makes_a_container_at_each_place(copy: Copy) -> None:
    """A container that is there twice is two."""
    forget_numbers(copy, lambda value: not isinstance(value, torch.Tensor))


@mutant("offload.containers", "offload-models", "a_container_that_is_there_twice_is_one", profile="default")
def makes_a_tensor_at_each_place(copy: Copy) -> None:
    """A tensor that is there twice is two."""
    forget_numbers(copy, lambda value: isinstance(value, torch.Tensor))


@mutant("offload.boundary", "offload-models", "a_container_that_is_there_twice_is_one", profile="default")
def recomputes_from_a_container_at_each_place(copy: Copy) -> None:
    """In a recomputation a container that is there twice is two."""
    copy.call_instead("offload.boundary", "Boundary.restore", lambda there, *of: tree_map(lambda leaf: leaf, there(*of)))


@mutant("offload.slicing", "offload-models", "hooks_of_modules_have_their_effect")
def calls_forward_past_the_hooks(copy: Copy) -> None:
    """The hooks of all modules but the first are not called."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        first, *others = self._modules.values()
        value = first(*args, **kwargs)
        for module in others:
            value = module.forward(value)
        return value

    copy.replace("offload.slicing", "Chain.__call__", forward)


@mutant("offload.saved_tensors", "offload-models", "hooks_for_saved_tensors_around_a_model")
def hands_other_values_to_the_hooks_around(copy: Copy) -> None:
    """The hooks around a model get twice the values that were saved."""

    def hand(there: Any, self: Any, tensor: torch.Tensor, *hooks: Any) -> None:
        there(self, tensor * 2, *hooks)

    copy.call_instead("offload.saved_tensors", "_Handed.__init__", hand)


@mutant("offload.slicing", "offload-models", "training_goes_on_after_saving_and_loading")
def names_modules_by_number(copy: Copy) -> None:
    """Modules have numbers for names."""
    change_modules(copy, lambda named: {str(index): module for index, module in enumerate(named.values())})


@mutant("offload.slicing", "offload-models", "a_model_is_what_it_was")
def numbers_modules(copy: Copy) -> None:
    """Modules have numbers for names, whatever they are called in the model."""
    change_modules(copy, lambda named: {str(index): module for index, module in enumerate(named.values())})


@mutant("offload.residence", "offload-models", "training_goes_on_after_pickling")
def pickles_its_locks(copy: Copy) -> None:
    """Pickling a model pickles its locks, which is an error."""
    copy.replace("offload.residence", "Residence.__reduce__", object.__reduce__)


@mutant("offload.slice_use", "offload-models", "a_parameter_that_changes_before_backward")
def compares_no_versions_of_parameters(copy: Copy) -> None:
    """A parameter that was changed in place before backward is taken as it is."""
    compare_no(copy, "version")


@mutant("offload.slice_use", "offload-models", "a_parameter_that_changes_before_backward", profile="default")
def lets_data_be_replaced(copy: Copy) -> None:
    """A parameter that was given other data before backward is taken as it is."""
    compare_no(copy, "data")


@mutant("offload.slice_use", "offload-models", "a_parameter_that_changes_before_backward", profile="default")
def checks_one_parameter_of_a_slice(copy: Copy) -> None:
    """Whether parameters have changed before backward is checked for the first of a slice only."""
    copy.call_instead("offload.slice_use", "SliceUse.check", lambda there, self, names: there(self, list(names)[:1]))


@mutant("offload.saved_tensors", "offload-models", "an_input_that_changes_before_backward")
def lets_saved_inputs_change(copy: Copy) -> None:
    """A saved tensor that was changed before backward is taken as it is."""
    copy.replace("offload.saved_tensors", "_Kept.unpack", lambda self: self.tensor)


@mutant("offload.boundary", "offload-models", "modules_may_change_their_input_in_place")
def keeps_boundaries_by_reference(copy: Copy) -> None:
    """What a slice is given is kept as it is, and the slice may change it."""
    change_boundaries(copy, packed=lambda tensor, route: copy["offload.boundary"].Packed(tensor.detach()))


@mutant("offload.boundary", "offload-models", "modules_may_change_their_input_in_place")
def makes_leaves_of_boundaries(copy: Copy) -> None:
    """All inputs of a recomputation are leaves."""
    change_boundaries(copy, is_leaf=lambda tensor, route: True)


@mutant("offload.boundary", "offload-models", "attributes_and_sizes_are_handed_on", profile="default")
def makes_no_leaves_of_inputs(copy: Copy) -> None:
    """No input of a recomputation is a leaf."""
    change_boundaries(copy, is_leaf=lambda tensor, route: False)


@mutant("offload.execution", "offload-models", "a_module_may_occur_twice_in_a_slice")
def ties_modules_as_parameters(copy: Copy) -> None:
    """Of a module that occurs twice in a slice, torch looks for the parameters that both places share."""
    copy.replace("offload.execution", "_call_on", lambda put, chain, *args: torch.func.functional_call(chain, put, *args))


@mutant("offload.slice_use", "offload-models", "a_module_may_occur_twice_in_a_slice")
def looks_at_a_module_twice(copy: Copy) -> None:
    """A module that occurs twice in a slice is looked at twice."""

    def make(there: Any, self: Any, index: int, chain: Any, residence: Any) -> None:
        there(self, index, SimpleNamespace(named_modules=partial(chain.named_modules, remove_duplicate=False)), residence)

    copy.call_instead("offload.slice_use", "SliceUse.__init__", make)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients")
def always_begins_in_training(copy: Copy) -> None:
    """An offloaded model is in training mode at first."""
    copy.set_after("offload.model", "OffloadModel.__init__", training=lambda _: True)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients")
def begins_without_gradients(copy: Copy) -> None:
    """A model's gradients are dropped."""
    copy.call_after("offload.model", "_move", lambda _, model, route: model.zero_grad())


@mutant("offload.microbatches", "offload-models", "outputs_have_their_structure", profile="default")
def joins_what_is_the_same_at_each_place(copy: Copy) -> None:
    """An output that is there twice is two."""
    copy.call_instead("offload.microbatches", "_joined", lambda there, parts, known: there(parts, {}))


@mutant("offload.microbatches", "offload-models", "outputs_have_their_structure", profile="default")
def joins_one_object_alone(copy: Copy) -> None:
    """Outputs that are no tensors are refused unless they are one object."""

    def joined(parts: Any, known: Any) -> None:
        if not isinstance(parts[0], torch.Tensor) and any(part is not parts[0] for part in parts):
            raise ValueError(f"outputs of microbatches are {parts}; what is no tensor must be one object")

    copy.call_before("offload.microbatches", "_joined", joined)


@mutant("offload.microbatches", "offload-models", "an_output_that_is_changed_in_place", profile="default")
def copies_the_only_output(copy: Copy) -> None:
    """The output of the only microbatch is copied."""

    def join(there: Any, values: Any) -> Any:
        known: dict[Any, torch.Tensor] = {}
        joined = copy["offload.microbatches"]._joined
        return there([tree_map(lambda leaf: joined((leaf,), known), value, is_leaf=is_size) for value in values])

    copy.call_instead("offload.microbatches", "join", join)


@mutant("offload.transfers", "offload-models", "modules_may_checkpoint_themselves")
def loads_roughly(copy: Copy) -> None:
    """Parameters are doubled on their way to the device."""
    change_loaded(copy, lambda tensor: tensor * 2)


@mutant("offload.slice_run", "offload-models", "a_checkpoint_around_a_model")
def recomputes_twice_with_other_masks(copy: Copy) -> None:
    """A recomputation inside a recomputation draws new masks."""
    replay_no_random_numbers(copy)


@mutant("offload.slice_run", "offload-models", "a_language_model_trains_as_plain")
def recomputes_attention_with_other_masks(copy: Copy) -> None:
    """The recomputation of attention draws new masks."""
    replay_no_random_numbers(copy)


@mutant("offload.saved_tensors", "offload-models", "a_step_after_an_error_equals_plain")
def leaves_hooks_on_after_an_offload_error(copy: Copy) -> None:
    """The hooks for saved tensors stay on after an error in a slice."""

    def leave(there: Any, self: Any, kind: Any, *error: Any) -> None:
        if kind is None:
            there(self, kind, *error)

    copy.call_instead("offload.saved_tensors", "SliceHooks.__exit__", leave)


@mutant("offload.slice_run", "offload-models", "a_buffer_made_in_forward_is_not_made_twice")
def makes_a_buffer_again(copy: Copy) -> None:
    """A buffer that forward made is not refused, and made again in the recomputation."""
    copy.replace("offload.slice_run", "SliceRun.refuse_new_buffers", lambda self: None)


@mutant("offload.slicing", "offload-models", "modules_come_in_any_sequence_and_may_be_replaced", profile="default")
def takes_lists_alone(copy: Copy) -> None:
    """A tuple or ModuleList of modules is refused."""

    def children(model: Any) -> None:
        if isinstance(model, nn.ModuleList | tuple):
            raise TypeError(f"model is of type {type(model).__name__}")

    copy.call_before("offload.slicing", "children", children)


@mutant("offload.model", "offload-models", "modules_come_in_any_sequence_and_may_be_replaced", profile="default")
def keeps_the_modules_it_was_made_of(copy: Copy) -> None:
    """A module that takes the place of another one does not run."""

    def submodule(there: Any, self: Any, name: str) -> nn.Module:
        kept: dict[str, nn.Module] = vars(self).setdefault("_kept", dict(self._modules))
        return kept[name]

    copy.call_instead("offload.model", "OffloadModel.get_submodule", submodule)


@mutant("offload.model", "offload-models", "modules_come_in_any_sequence_and_may_be_replaced", profile="default")
def drops_modules_that_were_added(copy: Copy) -> None:
    """A module that was added after the model was cut does not run, and nobody is told."""

    def forward(there: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        modules = dict(self._modules)
        for name in modules.keys() - {name for names in self._cut for name in names}:
            del self._modules[name]
        try:
            return there(self, *args, **kwargs)
        finally:
            self._modules.update(modules)

    copy.call_instead("offload.model", "OffloadModel.forward", forward)


@mutant("offload.containers", "offload-models", "attributes_and_sizes_are_handed_on", profile="default")
def makes_a_tuple_of_a_size(copy: Copy) -> None:
    """A torch.Size comes as a tuple."""

    def take(there: Any, value: Any, *others: Any) -> Any:
        return there(tuple(value) if is_size(value) else value, *others)

    copy.call_instead("offload.containers", "_flatten", take)


@mutant("offload.boundary", "offload-models", "attributes_and_sizes_are_handed_on", profile="default")
def recomputes_without_attributes(copy: Copy) -> None:
    """The inputs of a recomputation have no attributes."""
    copy.replace("offload.boundary", "attributes", lambda tensor: {}, only_here=True)


@mutant("offload.boundary", "offload-models", "the_first_module_gets_every_input", profile="default")
def takes_a_version_of_what_has_none(copy: Copy) -> None:
    """An input that was made in inference mode is asked for its version, which is an error."""
    change_boundaries(copy, version=lambda tensor, route: tensor._version)


@mutant("offload.microbatches", "offload-models", "rows_are_divided_as_by_tensor_split", profile="default")
def divides_rows_in_chunks(copy: Copy) -> None:
    """Rows are divided as torch.chunk does."""

    def split(there: Any, args: Any, kwargs: Any, parts: int) -> Any:
        there(args, kwargs, parts)  # refuses what cannot be split
        tensors, whole = copy["offload.containers"].flatten((args, kwargs))
        pieces = [(torch.chunk(tensor, parts) + (tensor[:0],) * parts)[:parts] for tensor in tensors]
        return [whole.build([piece[index] for piece in pieces]) for index in range(parts)]

    copy.call_instead("offload.microbatches", "split", split)


@mutant("offload.model", "offload-models", "modules_may_change_their_input_in_place", profile="default")
def takes_a_device_without_its_index(copy: Copy) -> None:
    """A device that is given without an index stays without."""

    def device(there: Any, name: str, given: Any) -> torch.device:
        there(name, given)
        return torch.device(given)

    copy.call_instead("offload.model", "_device", device)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def leaves_buffers_on_the_device(copy: Copy) -> None:
    """Buffers stay where they are when parameters are moved."""

    def move(there: Any, model: Any, route: Any) -> None:
        there(SimpleNamespace(parameters=model.parameters, buffers=lambda: ()), route)

    copy.call_instead("offload.model", "_move", move)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def leaves_gradients_on_the_device(copy: Copy) -> None:
    """Gradients that are not on the offload device are lost."""

    def move(model: Any, route: Any) -> None:
        for one in model.parameters():
            if one.grad is not None and one.grad.device != route.offload_device:
                one.grad = None

    copy.call_before("offload.model", "_move", move)


@mutant("offload.model", "offload-models", "a_model_keeps_its_mode_and_gradients", profile="default")
def thaws_what_it_moves(copy: Copy) -> None:
    """Frozen parameters that are moved from another device require grad."""

    def move(there: Any, model: Any, route: Any) -> None:
        moved = [one for one in model.parameters() if one.device != route.offload_device]
        there(model, route)
        for one in moved:
            one.requires_grad_()

    copy.call_instead("offload.model", "_move", move)
