"""Faults of the offloaded model that laws of the family offload must catch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from conformance.mutants.faults.checkpoint.state import rng
from conformance.mutants.faults.offload.seams import change_gradients, change_loaded, replay_no_random_numbers
from conformance.mutants.mutant import Copy, mutant


def share_boundaries(copy: Copy, place: Callable[[Any], dict[str, Any]]) -> None:
    """Keep one boundary for each slice, which the latest one overwrites, in the place that a turn has for it."""

    def share(_: Any, region: Any, turn: Any, boundary: Any) -> None:
        region.boundary = place(turn).setdefault(f"kept {turn.index}", boundary)
        vars(region.boundary).update(vars(boundary))

    copy.call_after("offload.slice_run", "_Region.__init__", share)


@mutant("offload.transfers", "offload", "parameters_are_updated_as_plain_updates_them")
def loads_in_less_precision(copy: Copy) -> None:
    """Parameters are rounded to bfloat16 on their way to the device."""
    change_loaded(copy, lambda tensor: tensor.bfloat16().to(tensor.dtype))


@mutant("offload.saved_tensors", "offload", "parameters_are_updated_as_plain_updates_them")
def rounds_what_it_loads_again(copy: Copy) -> None:
    """A parameter that backward loads again is rounded to bfloat16."""
    copy.change_result("offload.saved_tensors", "_Reference.unpack", lambda result, _: (one := result).bfloat16().to(one.dtype))


@mutant("offload.saved_tensors", "offload", "parameters_are_updated_as_plain_updates_them")
def forgets_strides(copy: Copy) -> None:
    """A view of a parameter is loaded again as if it were contiguous."""

    def forget(_: Any, self: Any, run: Any, name: str, tensor: torch.Tensor) -> None:
        size = tensor.size()
        self.layout = size, torch.empty(size, device="meta").stride(), tensor.storage_offset()

    copy.call_after("offload.saved_tensors", "_Reference.__init__", forget)


@mutant("offload.loaded_copies", "offload", "parameters_are_updated_as_plain_updates_them")
def loses_gradients_of_vectors(copy: Copy) -> None:
    """Parameters with one dimension get gradients of zeros."""
    change_gradients(copy, lambda grad: grad * (grad.dim() > 1))


@mutant("offload.slice_run", "offload", "dropout_draws_what_plain_draws")
def recomputes_with_other_random_numbers(copy: Copy) -> None:
    """A recomputation draws new random numbers."""
    replay_no_random_numbers(copy)


@mutant("offload.slice_run", "offload", "each_microbatch_replays_its_own_mask")
def replays_no_masks_of_microbatches(copy: Copy) -> None:
    """The recomputation of a microbatch draws new masks."""
    replay_no_random_numbers(copy)


@mutant("offload.changes", "offload", "buffers_advance_once_a_step")
def writes_nothing_back(copy: Copy) -> None:
    """Changes in forward are not copied back."""
    copy.replace("offload.changes", "Changes.write_back", lambda self, copies: None)


@mutant("offload.write_recorder", "offload", "buffers_advance_once_a_step", profile="default")
def overlooks_running_statistics(copy: Copy) -> None:
    """Running statistics that no version counter tells of are not copied back."""
    copy.replace("offload.write_recorder", "WriteRecorder.note", lambda self, values: None)


@mutant("offload.slice_run", "offload", "buffers_advance_once_a_step", profile="default")
def recomputes_from_what_forward_left(copy: Copy) -> None:
    """A recomputation starts from the buffers that forward left."""
    copy.set_after("offload.slice_run", "_Region.__init__", start=lambda _: copy["offload.slice_use"].Start())


@mutant("offload.changes", "offload", "buffers_advance_once_a_step", profile="default")
def forgets_what_was_assigned(copy: Copy) -> None:
    """A buffer that forward assigns stays what it was."""

    def write_back(there: Any, self: Any, copies: Any) -> None:
        before = [(module, dict(module._buffers)) for module in self.chain.modules()]
        there(self, copies)
        for module, buffers in before:
            module._buffers.update(buffers)

    copy.call_instead("offload.changes", "Changes.write_back", write_back)


@mutant("offload.model", "offload", "gradients_accumulate_over_batches")
def drops_gradients_in_forward(copy: Copy) -> None:
    """Forward drops the gradients of the batches before."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> None:
        self.zero_grad()

    copy.call_before("offload.model", "OffloadModel.forward", forward)


@mutant("offload.slice_run", "offload", "several_forwards_before_their_backwards", profile="default")
def keeps_boundaries_with_the_model(copy: Copy) -> None:
    """A model keeps the boundaries of its last forward only."""
    share_boundaries(copy, lambda turn: vars(turn.residence))


@mutant("offload.slice_run", "offload", "a_loss_of_several_forwards", profile="default")
def keeps_one_boundary_for_each_slice(copy: Copy) -> None:
    """A slice is recomputed from the inputs of the last forward."""
    share_boundaries(copy, lambda turn: vars(turn.residence))


@mutant("offload.slice_run", "offload", "two_models_at_once", profile="default")
def keeps_boundaries_for_all_models(copy: Copy) -> None:
    """All models keep their boundaries in one place."""
    kept: dict[str, Any] = {}
    share_boundaries(copy, lambda turn: kept)


@mutant("offload.model", "offload", "inputs_get_their_gradients")
def detaches_inputs(copy: Copy) -> None:
    """Inputs are detached on their way to the device."""

    def to_device(there: Any, *args: Any) -> Any:
        return tree_map_only(torch.Tensor, torch.Tensor.detach, there(*args))

    copy.call_instead("offload.model", "_to_device", to_device)


@mutant("offload.loaded_copies", "offload", "some_gradients_can_be_asked_for")
def brings_more_in_each_backward(copy: Copy) -> None:
    """The gradient of each further backward is multiplied by the number of backwards so far."""

    def backward(there: Any, ctx: Any, *grads: Any) -> Any:
        arrived, *others = there(ctx, *grads)
        ctx.mail.events[len(ctx.mail.events)] = None
        return arrived * len(ctx.mail.events), *others

    copy.call_instead("offload.loaded_copies", "_Arrive.backward", backward)


@mutant("offload.loaded_copies", "offload", "gradients_can_be_differentiated")
def detaches_gradients(copy: Copy) -> None:
    """Gradients are detached before they are sent to the parameters."""
    change_gradients(copy, torch.Tensor.detach)


@mutant("offload.execution", "offload", "evaluation_equals_plain", profile="default")
def always_trains(copy: Copy) -> None:
    """Modules are in training mode whenever a slice runs."""

    def execute(use: Any, chain: Any, *args: Any) -> None:
        chain.train()

    copy.call_before("offload.execution", "execute", execute)


@mutant("offload.execution", "offload", "autocast_equals_plain")
def runs_slices_without_autocast(copy: Copy) -> None:
    """Slices run without the autocast that is around the model."""

    def execute(there: Any, *args: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return there(*args)

    copy.call_instead("offload.execution", "execute", execute)


@mutant("offload.microbatches", "offload", "microbatches_sum_up_to_the_whole", profile="default")
def squeezes_what_it_joins(copy: Copy) -> None:
    """Joined outputs lose a last dimension of size 1."""
    copy.change_result("offload.microbatches", "_joined", lambda result, *_: result.squeeze(-1))


@mutant("offload.microbatches", "offload", "two_microbatches_are_the_plain_model_on_each")
def joins_the_other_way_round(copy: Copy) -> None:
    """Outputs are joined with the last microbatch first."""
    copy.call_instead("offload.microbatches", "_joined", lambda there, parts, joined: there(parts[::-1], joined))


@mutant("offload.residence", "offload", "two_threads_do_not_meet", profile="default")
def lets_two_threads_run_a_slice(copy: Copy) -> None:
    """Threads do not take turns in running modules on copies."""
    copy.replace("offload.residence", "Residence.exclusive", lambda self: nullcontext())


@mutant("offload.slice_run", "offload", "a_model_draws_its_own_beside_a_region", profile="default")
def recomputes_in_a_turn_of_its_own(copy: Copy) -> None:
    """Recomputations of checkpointed regions are not waited for."""
    other = rng.has_a_turn_of_its_own.implementation.checkpoint
    stop = sys.modules[other.__module__.replace(".api", ".recomputation")].StopRecomputation
    copy.replace("offload.slice_run", "checkpoint", other)
    copy.wrap("offload.slice_run", "EARLY_STOPS", lambda stops: (*stops, stop))


@mutant("offload.slicing", "offload", "parameters_are_updated_as_plain_updates_them", profile="default")
def passes_a_tuple_as_arguments(copy: Copy) -> None:
    """A module gets a tuple from the module before it as several arguments."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        first, *others = self._modules.values()
        value = first(*args, **kwargs)
        for module in others:
            value = module(*value) if isinstance(value, tuple) else module(value)
        return value

    copy.replace("offload.slicing", "Chain.__call__", forward)


@mutant("offload.loaded_copies", "offload", "the_offload_device_may_be_another", profile="default")
def sends_gradients_to_the_host(copy: Copy) -> None:
    """Gradients go to the host wherever their parameters are."""

    def backward(there: Any, ctx: Any, *grads: Any) -> Any:
        sent, *others = there(ctx, *grads)
        return None if sent is None else sent.cpu(), *others

    copy.call_instead("offload.loaded_copies", "_Attach.backward", backward)


@mutant("offload.loaded_copies", "offload-models", "hooks_of_modules_find_gradients")
def accumulates_gradients_last(copy: Copy) -> None:
    """Gradients get to parameters after everything else of their slice."""
    copy["offload.loaded_copies"]._BEFORE_OTHERS = 0


@mutant("offload.loaded_copies", "offload-models", "hooks_of_modules_find_gradients", profile="default")
def delivers_late_once_another_backward_has_ended(copy: Copy) -> None:
    """Once a backward ends in which a slice ran again, gradients come last in another one that is still under way."""

    def hasten(there: Any, self: Any, backwards: int) -> None:
        there(self, backwards if backwards > 0 else -self.hastening)

    copy.call_instead("offload.loaded_copies", "Delivery.hasten", hasten)
