"""Faults of the nested checkpoint that laws of the family gradients must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import impls
from conformance.mutants.faults.checkpoint.seams import (
    change_inputs,
    change_output,
    change_recomputed,
    change_recomputed_after,
    change_restored,
)
from conformance.mutants.mutant import Copy, mutant

_Tensors = tuple[torch.Tensor, ...]


def _number(copy: Copy, change: Callable[[Any, int], int]) -> None:
    """The recomputed tensor with an index comes back as the one with the index ``change(recomputation, index)``."""

    def changed(values: Any, self: Any, *args: Any) -> None:
        numbered = {change(self, index): tensor for index, tensor in values.items()}
        values.clear()
        values.update(numbered)

    copy.call_after("nested.recomputation", "Recomputation.run", changed)


def _pass_on(copy: Copy, name: str, where: Callable[[Any, Any], bool]) -> None:
    """Calls of which ``where(args, kwargs)`` is true are passed on to another implementation."""

    def changed(run: Any, function: Any, args: Any, kwargs: Any, *options: Any) -> Any:
        if where(args, kwargs):
            return impls.get(name).checkpoint(function, *args)
        return run(function, args, kwargs, *options)

    copy.call_instead("nested.api", "_run", changed)


def _call_without_grad(copy: Copy, where: Callable[[Any], bool]) -> None:
    """Calls of which ``where(args)`` is true run as if no gradient were needed."""

    def changed(run: Any, function: Any, args: Any, *others: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not where(args)):
            return run(function, args, *others)

    copy.call_instead("nested.api", "_run", changed)


def _after_recomputation(copy: Copy, change: Callable[[], None]) -> None:
    """Do something once a recomputation is over, or has failed."""

    def changed(collect: Any, self: Any, function: Any) -> None:
        try:
            collect(self, function)
        finally:
            change()

    copy.call_instead("nested.recomputation", "Recomputation._collect", changed)


def _run_as_one_node(copy: Copy, backward: Callable[[_Tensors, _Tensors, _Tensors], Any], *, freed: bool = True) -> None:
    """Calls without keywords are one node of the graph, which runs the function again and asks for gradients of it.

    ``backward(outputs, gradients, inputs)`` asks for them; ``freed`` says whether inputs are let go of with the graph.
    """

    def changed(run: Any, function: Any, args: Any, kwargs: Any, *options: Any) -> Any:
        class Node(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                ctx.save_for_backward(*inputs) if freed else setattr(ctx, "inputs", inputs)
                return function(*inputs)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                inputs = tuple(one.detach().requires_grad_() for one in (ctx.saved_tensors if freed else ctx.inputs))
                with torch.enable_grad():
                    outputs = function(*inputs)
                answer = backward(outputs if isinstance(outputs, tuple) else (outputs,), gradients, inputs)
                return tuple(one.grad for one in inputs) if answer is None else answer

        return run(function, args, kwargs, *options) if kwargs else Node.apply(*args)

    copy.call_instead("nested.api", "_run", changed)


@mutant("nested.recomputation", "gradients", "core_programs_equal_plain", profile="default")
def swaps_slots_three_and_four(copy: Copy) -> None:
    """The third and the fourth of the recomputed tensors come back in each other's place."""
    _number(copy, lambda run, index: 5 - index if index in (2, 3) else index)


@mutant("nested.api", "gradients", "no_input_requires_grad")
def detaches_outputs_if_no_input_requires_grad(copy: Copy) -> None:
    """A region of which no argument requires grad is not differentiated."""
    _call_without_grad(copy, lambda args: not any(getattr(one, "requires_grad", False) for one in args))


@mutant("nested.recomputation", "gradients", "core_programs_equal_plain")
def recomputes_without_a_graph(copy: Copy) -> None:
    """The function runs again without grad mode, and saves nothing."""
    copy.call_instead(
        "nested.recomputation",
        "Recomputation._collect",
        lambda collect, self, function: collect(self, torch.no_grad()(function)),
    )


@mutant("nested.recomputation", "gradients", "saved_tensors_are_readable_twice")
def lets_a_slot_be_read_once_in_a_backward(copy: Copy) -> None:
    """A saved tensor that was unpacked counts as lost instead of being recomputed again."""

    def pop(there: Any, self: Any, index: int, *_: Any) -> torch.Tensor:
        if index not in self:
            raise LookupError(f"saved tensor {index} was unpacked before")
        return there(self, index)

    copy.call_instead("nested.recomputation", "RecomputedTensors.pop", pop)


@mutant("nested.recomputation", "gradients", "core_programs_equal_plain")
def rounds_what_it_recomputes(copy: Copy) -> None:
    """Recomputed tensors in double precision come back rounded to single precision."""
    change_recomputed(copy, lambda tensor: tensor.float().to(tensor.dtype) if tensor.dtype is torch.float64 else tensor)


@mutant("nested.inputs", "gradients", "repeated_backward")
def lets_go_of_the_inputs_in_the_first_backward(copy: Copy) -> None:
    """Arguments are gone once they were restored."""

    def changed(restore: Any, self: Any) -> Any:
        call, self.packed = restore(self), []
        return call

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant("nested.recomputation", "gradients", "views_inside")
def rebuilds_a_view_without_its_offset(copy: Copy) -> None:
    """A recomputed view comes back as the beginning of its storage."""
    change_recomputed(copy, lambda tensor: tensor.as_strided(tensor.shape, tensor.stride(), 0))


@mutant("nested.recomputation", "gradients", "views_inside")
def brings_the_base_of_a_view(copy: Copy) -> None:
    """The base of a recomputed view comes back in its place, if it has the same shape."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor._base
        return tensor if base is None or base.shape != tensor.shape else base

    change_recomputed(copy, change)


@mutant("nested.region", "gradients", "in_place_on_intermediates")
def takes_every_saved_tensor_for_unchanged(copy: Copy) -> None:
    """A saved tensor is taken for one that was never changed before it was saved."""
    copy.change_result("nested.region", "tensor_metadata", lambda one, _: (*one[:3], 0, *one[4:]), only_here=True)


@mutant("nested.recomputation", "gradients", "detached_islands")
def brings_only_what_requires_grad(copy: Copy) -> None:
    """A recomputed tensor that requires no grad does not come back."""
    change_recomputed(copy, lambda tensor: tensor if tensor.requires_grad else None)


@mutant("nested.recomputation", "gradients", "no_grad_islands")
def brings_zeros_for_what_needs_no_gradient(copy: Copy) -> None:
    """A recomputed tensor that requires no grad comes back as zeros."""
    change_recomputed(copy, lambda tensor: tensor if tensor.requires_grad else torch.zeros_like(tensor))


@mutant("nested.recomputation", "gradients", "custom_functions")
def recovers_only_what_requires_grad(copy: Copy) -> None:
    """A recomputed tensor that requires no grad is treated as one that backward does not need."""

    def changed(pack: Any, self: Any, tensor: torch.Tensor) -> Any:
        wanted = self.wanted
        self.wanted = wanted if tensor.requires_grad else [None] * len(wanted)
        try:
            return pack(self, tensor)
        finally:
            self.wanted = wanted

    copy.call_instead("nested.recomputation", "Recomputation.pack", changed)


@mutant("nested.recomputation", "gradients", "integer_tensors")
def lets_all_that_is_recomputed_require_grad(copy: Copy) -> None:
    """Recomputed tensors come back as leaves that require grad, integers included."""
    change_recomputed(copy, lambda tensor: tensor.detach().requires_grad_())


@mutant("nested.recomputation", "gradients", "zero_size_tensors")
def takes_an_empty_tensor_for_none(copy: Copy) -> None:
    """A recomputed tensor without elements does not come back."""
    change_recomputed(copy, lambda tensor: tensor if tensor.numel() else None)


@mutant("nested.recomputation", "gradients", "non_contiguous_tensors")
def rebuilds_a_tensor_without_its_strides(copy: Copy) -> None:
    """A recomputed tensor comes back as if its storage were in order."""
    change_recomputed(
        copy, lambda tensor: tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride(), tensor.storage_offset())
    )


@mutant("nested.recomputation", "gradients", "complex_tensors")
def forgets_that_a_tensor_is_conjugated(copy: Copy) -> None:
    """A recomputed tensor that is marked as conjugated comes back without the mark."""
    change_recomputed(copy, lambda tensor: tensor.conj() if tensor.is_conj() else tensor)


@mutant("nested.recomputation", "gradients", "bfloat16_tensors")
def goes_through_numpy(copy: Copy) -> None:
    """Recomputed tensors come back by way of numpy, which has no bfloat16."""
    change_recomputed(copy, lambda tensor: torch.from_numpy(np.asarray(tensor.detach())))


@mutant("nested.inputs", "gradients", "leaves_of_other_shapes_and_dtypes")
def casts_arguments_to_the_dtype_of_the_first(copy: Copy) -> None:
    """A recomputation gets all arguments in the dtype of the first."""
    change_restored(copy, lambda args, kwargs: (tuple(one.to(args[0].dtype) for one in args), kwargs))


@mutant("nested.recomputation", "gradients", "leaves_of_other_shapes_and_dtypes")
def brings_what_was_broadcast_as_it_was_used(copy: Copy) -> None:
    """A recomputed tensor comes back with the shape of the one before it that has more dimensions."""

    def change(values: Any, index: int, tensor: torch.Tensor) -> torch.Tensor:
        before = [one for one in values.values() if one.dim() > tensor.dim()]
        return tensor.expand_as(before[-1]) if before else tensor

    change_recomputed_after(copy, change)


@mutant("nested.recomputation", "gradients", "parameters_of_modules")
def takes_a_saved_statistic_for_the_one_before(copy: Copy) -> None:
    """Of two recomputed tensors that look the same, and require no grad, the first comes back for both."""
    look = copy["nested.recomputation"].tensor_metadata

    def change(values: Any, index: int, tensor: torch.Tensor) -> torch.Tensor:
        before = values.get(index - 1)
        return tensor if before is None or tensor.requires_grad or look(before) != look(tensor) else before

    change_recomputed_after(copy, change)


@mutant("nested.region", "gradients", "parameters_of_modules")
def takes_the_inputs_of_a_modules_first_call(copy: Copy) -> None:
    """A module is recomputed with the arguments of its first call."""

    def first(function: Any, inputs: Any) -> Any:
        return vars(function).setdefault("first", inputs) if isinstance(function, torch.nn.Module) else inputs

    change_inputs(copy, first)


@mutant("nested.api", "gradients", "transforms_of_functions")
def needs_no_gradient_under_a_transform(copy: Copy) -> None:
    """A region under a transform of torch.func is not differentiated."""
    _call_without_grad(copy, lambda args: torch._C._functorch.peek_interpreter_stack() is not None)


@mutant("nested.api", "gradients", "parameters_read_through_a_closure")
def asks_for_gradients_of_the_arguments_alone(copy: Copy) -> None:
    """A region is one node, which asks for the gradients of its arguments."""
    _run_as_one_node(
        copy, lambda outputs, gradients, inputs: torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
    )


@mutant("nested.api", "gradients", "intermediates_read_through_a_closure")
def accumulates_into_the_arguments_alone(copy: Copy) -> None:
    """A region is one node, which accumulates gradients into its arguments."""
    _run_as_one_node(copy, lambda outputs, gradients, inputs: torch.autograd.backward(outputs, gradients, inputs=inputs))


@mutant("nested.api", "gradients", "backward_with_inputs")
def accumulates_into_leaves_that_nobody_asked_for(copy: Copy) -> None:
    """A region is one node, which accumulates gradients into every leaf."""
    _run_as_one_node(copy, lambda outputs, gradients, inputs: torch.autograd.backward(outputs, gradients))


@mutant("nested.api", "gradients", "backward_again_without_retaining")
def keeps_its_inputs_when_the_graph_is_freed(copy: Copy) -> None:
    """A region is one node, which keeps its inputs itself, so that it can run after the graph is freed."""
    _run_as_one_node(copy, lambda outputs, gradients, inputs: torch.autograd.backward(outputs, gradients), freed=False)


@mutant("nested.recomputation", "gradients", "many_saved_tensors")
def sorts_slots_by_the_text_of_their_numbers(copy: Copy) -> None:
    """Recomputed tensors come back in the order of their numbers as text, in which 10 comes before 2."""
    _number(copy, lambda run, index: sorted(range(run.slot_count), key=str)[index])


@mutant("nested.api", "gradients", "regions_that_save_nothing")
def detaches_the_output_where_nothing_was_saved(copy: Copy) -> None:
    """The output of a region that saved nothing needs no gradient."""
    ended: list[Any] = []  # the region that ended last, which is the one that returns

    def changed(_: None, self: Any, output: Any) -> None:
        ended[:] = [len(self.slots)]

    copy.call_after("nested.region", "Region.end_forward", changed)
    change_output(copy, lambda output, args: output if ended != [0] or type(output) is tuple else output.detach())


@mutant("nested.api", "gradients", "tensor_hooks_inside")
def takes_the_legacy_way_without_keywords(copy: Copy) -> None:
    """Calls without keywords are passed on to legacy."""
    _pass_on(copy, "legacy", lambda args, kwargs: not kwargs)


@mutant("nested.api", "gradients", "escaping_intermediates")
def takes_the_reentrant_way_without_keywords(copy: Copy) -> None:
    """Calls without keywords are passed on to reentrant."""
    _pass_on(copy, "reentrant", lambda args, kwargs: not kwargs)


@mutant("nested.api", "gradients", "accumulation_hooks_fire_once")
def takes_the_reentrant_way_with_one_argument(copy: Copy) -> None:
    """Calls with one argument are passed on to reentrant."""
    _pass_on(copy, "reentrant", lambda args, kwargs: len(args) == 1 and not kwargs)


@mutant("nested.region", "gradients", "autograd_grad_of_any_subset")
def refuses_what_is_not_a_whole_backward(copy: Copy) -> None:
    """A region cannot be recomputed for autograd.grad."""

    def changed(self: Any, task: int, slot: Any) -> None:
        if not torch.autograd._is_checkpoint_valid():
            self.refuse("this is not a plain backward()")

    copy.call_before("nested.region", "Region.recompute", changed)


@mutant("nested.recomputation", "gradients", "autograd_grad_of_any_subset")
def leaves_grad_mode_as_it_recomputed(copy: Copy) -> None:
    """Grad mode is on after a recomputation."""
    _after_recomputation(copy, lambda: torch._C._set_grad_enabled(True))


@mutant("nested.recomputation", "gradients", "second_derivatives")
def leaves_grad_mode_off(copy: Copy) -> None:
    """Grad mode is off after a recomputation."""
    _after_recomputation(copy, lambda: torch._C._set_grad_enabled(False))


@mutant("tensors.versions", "gradients", "sparse_matrices")
def takes_every_tensor_for_strided(copy: Copy) -> None:
    """The version of a tensor is followed by an alias with another storage, also of a sparse one, which takes none."""

    def changed(tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            tensor.detach().data = torch.empty(0)

    copy.call_before("tensors.versions", "version_probe", changed)


@mutant("nested.recomputation", "gradients", "sparse_matrices")
def makes_what_is_sparse_dense(copy: Copy) -> None:
    """A recomputed tensor that is sparse comes back dense."""
    change_recomputed(copy, lambda tensor: tensor if tensor.layout is torch.strided else torch.zeros_like(tensor.to_dense()))


@mutant("nested.region", "gradients", "backward_of_one_output_first")
def lets_go_of_the_inputs_with_its_first_tensor(copy: Copy) -> None:
    """A region whose first saved tensor was unpacked cannot be recomputed any more."""

    def changed(unpack: Any, self: Any, slot: Any) -> torch.Tensor:
        tensor: torch.Tensor = unpack(self, slot)
        if slot[0] == 0:
            setattr(self.inputs, "packed" if hasattr(self.inputs, "packed") else "args", None)
        return tensor

    copy.call_instead("nested.region", "Region.unpack", changed)


@mutant("nested.api", "gradients", "all_claimed_features_combined")
def takes_the_reentrant_way_with_several_arguments(copy: Copy) -> None:
    """Calls with several arguments are passed on to reentrant."""
    _pass_on(copy, "reentrant", lambda args, kwargs: len(args) > 1)


@mutant("nested.recomputation", "gradients", "layouts_are_plains", profile="default")
def brings_back_tensors_without_gaps(copy: Copy) -> None:
    """Recomputed tensors come back contiguous."""
    change_recomputed(copy, lambda tensor: tensor.contiguous())


@mutant("nested.recomputation", "gradients", "layouts_are_plains", profile="default")
def brings_back_what_is_conjugated_as_numbers(copy: Copy) -> None:
    """A recomputed tensor that is marked as conjugated comes back with other numbers instead of the mark."""
    change_recomputed(copy, lambda tensor: tensor.resolve_conj())


@mutant("nested.recomputation", "gradients", "values_that_are_rarely_met", profile="default")
def counts_in_single_precision(copy: Copy) -> None:
    """Recomputed complex tensors come back rounded to single precision."""
    change_recomputed(copy, lambda tensor: tensor.to(torch.complex64).to(tensor.dtype) if tensor.is_complex() else tensor)


@mutant("nested.recomputation", "gradients", "values_that_are_rarely_met", profile="default")
def has_no_place_for_what_is_large(copy: Copy) -> None:
    """Recomputed tensors of 65,536 elements or more come back rounded to bfloat16."""
    change_recomputed(copy, lambda tensor: tensor * 1 if tensor.numel() < 1 << 16 else tensor.bfloat16().to(tensor.dtype))


@mutant("nested.recomputation", "gradients", "very_many_saved_tensors", profile="default")
def numbers_tensors_in_six_bits(copy: Copy) -> None:
    """A recomputed tensor comes back as the one 64 places before it."""
    change_recomputed_after(copy, lambda values, index, tensor: values.get(index - 64, tensor))


@mutant("nested.region", "gradients", "transforms_of_functions")
def recomputes_after_vmap(copy: Copy) -> None:
    """A region that was called under vmap is recomputed after it is over."""
    copy.replace("nested.region", "_is_from_ended_vmap", lambda tensor: False)


@mutant("tensors.versions", "gradients", "steps_that_make_fx_traces")
def hides_from_what_traces(copy: Copy) -> None:
    """A mode that traces does not see how autograd hands over the arguments of an inner region."""
    versions = copy["tensors.versions"]
    copy.replace("tensors.versions", "hides_from_modes", lambda: bool(versions.dispatch_mode_count()))


@mutant("nested.recomputation", "gradients", "gradients_that_a_function_takes")
def leaves_a_mode_that_is_not_there(copy: Copy) -> None:
    """The mode that ends a recomputation after an operator is exited although a backward inside has taken it off."""
    copy.replace("nested.recomputation", "_StopAfterOperator.leave", lambda self: self.__exit__(None, None, None))
