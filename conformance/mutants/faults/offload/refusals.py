"""Faults of the offloaded model that laws about what is refused, or warned of, must catch."""

from __future__ import annotations

from copy import copy as shallow
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from conformance.mutants.faults.offload.seams import is_size
from conformance.mutants.mutant import Copy, mutant


def hide_extras(copy: Copy, *names: str) -> None:
    """Take a model for one that has nothing under these names."""

    def refuse(there: Any, model: Any) -> None:
        there(SimpleNamespace(**vars(model) | {name: {} for name in names}))

    copy.call_instead("offload.slicing", "_refuse_extras", refuse)


@mutant("offload.model", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_microbatches_without_checkpoints(copy: Copy) -> None:
    """Several microbatches are taken without checkpoint_activation."""

    def make(there: Any, self: Any, *args: Any, num_microbatches: Any = 1, **options: Any) -> None:
        there(self, *args, num_microbatches=1 if type(num_microbatches) is int else num_microbatches, **options)
        self._num_microbatches = num_microbatches
        copy["offload.model"]._count("num_microbatches", num_microbatches)

    copy.call_instead("offload.model", "OffloadModel.__init__", make)


@mutant("offload.model", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_any_number(copy: Copy) -> None:
    """Any number is taken for the options that are numbers."""
    copy.call_instead("offload.model", "_count", lambda there, name, value, *_: there(name, 1 if type(value) is int else value))


@mutant("offload.model", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_true_for_a_number(copy: Copy) -> None:
    """True and False are taken for numbers."""

    def count(there: Any, name: str, value: Any, *most: Any) -> None:
        there(name, int(value) if isinstance(value, bool) else value, *most)

    copy.call_instead("offload.model", "_count", count)


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_a_module_in_two_slices(copy: Copy) -> None:
    """A module that belongs to two slices is not refused."""
    copy.replace("offload.slicing", "refuse_shared", lambda cut, named: None)


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_a_forward_of_its_own(copy: Copy) -> None:
    """A model whose class has a forward of its own is not refused."""

    def children(there: Any, model: Any) -> Any:
        if isinstance(model, nn.Sequential):
            model = shallow(model)
            model.__class__ = nn.Sequential
        return there(model)

    copy.call_instead("offload.slicing", "children", children)


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def drops_hooks_of_a_model(copy: Copy) -> None:
    """A model that has hooks of its own is not refused."""
    hide_extras(copy, "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def drops_hooks_of_a_model_but_forward_ones(copy: Copy) -> None:
    """A model that has hooks of its own is not refused, unless they are forward hooks."""
    hide_extras(copy, "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@mutant("offload.slicing", "offload-models", "what_a_model_overrides_is_not_lost", profile="default")
def drops_methods_of_a_model(copy: Copy) -> None:
    """A model that has methods of its own in place of torch's is not refused, unless one is forward."""

    def refuse(there: Any, model: Any, kind: Any) -> None:
        if type(model).forward is not kind.forward or "forward" in vars(model):
            there(model, kind)

    copy.call_instead("offload.slicing", "_refuse_methods", refuse)


@mutant("offload.slicing", "offload-models", "what_a_model_overrides_is_not_lost", profile="default")
def overlooks_methods_of_an_instance(copy: Copy) -> None:
    """A model whose instance has a method in place of torch's is not refused, unless that is forward."""

    def refuse(there: Any, model: Any, kind: Any) -> None:
        if "forward" in vars(model) or not any(callable(value) for value in vars(model).values()):
            there(model, kind)

    copy.call_instead("offload.slicing", "_refuse_methods", refuse)


@mutant("offload.slicing", "offload-models", "what_a_model_overrides_is_not_lost", profile="default")
def refuses_any_method(copy: Copy) -> None:
    """A model that shows itself in its own way is refused."""
    copy.replace("offload.slicing", "_MAY_BE_OWN", frozenset({"__init__"}))


@mutant("offload.slicing", "offload-models", "what_a_model_overrides_is_not_lost", profile="default")
def drops_hooks_for_the_state(copy: Copy) -> None:
    """A model that has hooks for its state_dict is not refused."""
    kinds = ("state_dict_hooks", "state_dict_pre_hooks", "load_state_dict_pre_hooks", "load_state_dict_post_hooks")
    hide_extras(copy, *(f"_{kind}" for kind in kinds))


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def drops_parameters_of_a_model(copy: Copy) -> None:
    """A model that has parameters of its own is not refused."""
    hide_extras(copy, "_parameters")


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_a_list_with_a_parameter(copy: Copy) -> None:
    """A ModuleList that has parameters of its own is not refused."""

    def refuse(there: Any, model: Any) -> None:
        if isinstance(model, nn.Sequential):
            there(model)

    copy.call_instead("offload.slicing", "_refuse_extras", refuse)


@mutant("offload.microbatches", "offload-models", "rows_that_cannot_be_split_are_refused", profile="default")
def joins_what_differs_in_structure(copy: Copy) -> None:
    """Outputs of microbatches that differ in structure are joined."""

    def join(there: Any, values: Any) -> Any:
        leaves, structures = zip(*(tree_flatten(value, is_size) for value in values), strict=True)
        return there([tree_unflatten(each, structures[0]) for each in leaves])

    copy.call_instead("offload.microbatches", "join", join)


@mutant("offload.microbatches", "offload-models", "rows_that_cannot_be_split_are_refused", profile="default")
def takes_the_number_of_the_first_microbatch(copy: Copy) -> None:
    """An output that is no tensor is the first microbatch's, whatever the others have."""

    def joined(there: Any, parts: Any, known: Any) -> Any:
        return there(parts, known) if isinstance(parts[0], torch.Tensor) else parts[0]

    copy.call_instead("offload.microbatches", "_joined", joined)


@mutant("offload.microbatches", "offload-models", "rows_that_cannot_be_split_are_refused")
def takes_fewer_rows_than_microbatches(copy: Copy) -> None:
    """Fewer rows than microbatches are not refused."""

    def split(there: Any, args: Any, kwargs: Any, parts: int) -> Any:
        tensors, whole = copy["offload.containers"].flatten((args, kwargs))
        if len({tensor.shape[:1] for tensor in tensors}) != 1 or tensors[0].dim() == 0:
            return there(args, kwargs, parts)
        pieces = [torch.tensor_split(tensor, parts) for tensor in tensors]
        return [whole.build([piece[index] for piece in pieces]) for index in range(parts)]

    copy.call_instead("offload.microbatches", "split", split)


@mutant("offload.model", "offload-models", "statistics_of_a_microbatch_are_warned_of", profile="default")
def warns_in_training_alone(copy: Copy) -> None:
    """Nobody is warned of batch norm that takes statistics from microbatches in evaluation."""

    def warn(there: Any, self: Any) -> None:
        training = [(name, module) for name, module in self.named_modules() if module.training]
        there(SimpleNamespace(named_modules=lambda: training, _num_microbatches=self._num_microbatches))

    copy.call_instead("offload.model", "OffloadModel._warn_of_statistics", warn)


@mutant("offload.model", "offload-models", "statistics_of_a_microbatch_are_warned_of")
def warns_always(copy: Copy) -> None:
    """Users are warned of batch norm with one microbatch, too."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> None:
        if self._num_microbatches == 1:
            self._warn_of_statistics()

    copy.call_before("offload.model", "OffloadModel.forward", forward)


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


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def overlooks_a_forward_of_an_instance(copy: Copy) -> None:
    """A model whose instance has a forward of its own is not refused."""

    def children(there: Any, model: Any) -> Any:
        if isinstance(model, nn.Module):
            model = shallow(model)
            vars(model).pop("forward", None)
        return there(model)

    copy.call_instead("offload.slicing", "children", children)


@mutant("offload.slicing", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def overlooks_buffers_without_a_shape(copy: Copy) -> None:
    """A model that has buffers without a shape is not refused."""
    copy.call_instead("offload.slicing", "is_lazy", lambda there, tensor: isinstance(tensor, nn.Parameter) and there(tensor))


@mutant("offload.model", "offload-models", "wrong_models_and_options_are_refused", profile="default")
def takes_any_text_for_true(copy: Copy) -> None:
    """Any value is taken for ``checkpoint_activation``."""

    def make(there: Any, self: Any, *args: Any, checkpoint_activation: Any = False, **options: Any) -> None:
        there(self, *args, checkpoint_activation=bool(checkpoint_activation), **options)

    copy.call_instead("offload.model", "OffloadModel.__init__", make)


@mutant("offload.microbatches", "offload-models", "rows_that_cannot_be_split_are_refused", profile="default")
def takes_one_for_true(copy: Copy) -> None:
    """Outputs that are equal and of different types are taken for the same."""

    def joined(there: Any, parts: Any, known: Any) -> Any:
        atoms = copy["offload.microbatches"].ATOMS
        if all(type(part) in atoms and part == parts[0] for part in parts):
            return parts[0]
        return there(parts, known)

    copy.call_instead("offload.microbatches", "_joined", joined)
