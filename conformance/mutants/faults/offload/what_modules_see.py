"""Faults of the offloaded model that laws about what modules see must catch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, autograd, nn

from conformance.mutants.mutant import Copy, mutant


@mutant("offload.execution", "offload-models", "modules_train_when_they_run_again_as_they_did")
def runs_again_in_the_present_mode(copy: Copy) -> None:
    """A recomputation runs in the mode that modules are in now."""
    copy.replace("offload.execution", "in_modes", lambda *_: nullcontext())


@mutant("offload.execution", "offload-models", "modules_train_when_they_run_again_as_they_did")
def stays_in_the_mode_of_forward(copy: Copy) -> None:
    """After a recomputation modules stay in the mode of forward."""

    def in_modes(modes: Sequence[tuple[nn.Module, bool]], *_: Any) -> AbstractContextManager[None]:
        for module, training in modes:
            module.training = training
        return nullcontext()

    copy.replace("offload.execution", "in_modes", in_modes)


@mutant("offload.slice_run", "offload-models", "what_forward_sets_and_sets_back_is_set_back", profile="default")
def ends_once_all_is_saved(copy: Copy) -> None:
    """A recomputation ends once it has saved what backward needs."""
    copy.call_instead("offload.slice_run", "checkpoint", lambda there, *args, early_stop: there(*args))


@mutant("offload.execution", "offload-models", "what_forward_sets_and_sets_back_is_set_back", profile="default")
def leaves_the_mode_that_forward_sets(copy: Copy) -> None:
    """After a recomputation those modules are put back whose mode was another in forward, and no others."""

    @contextmanager
    def in_modes(modes: Sequence[tuple[nn.Module, bool]], *_: Any) -> Iterator[None]:
        changed = [(module, training) for module, training in modes if module.training != training]
        for module, training in changed:
            module.training = training
        yield
        for module, training in changed:
            module.training = not training

    copy.replace("offload.execution", "in_modes", in_modes)


@mutant("offload.loaded_copies", "offload-models", "a_parameter_looks_like_one")
def gives_tensors_for_parameters(copy: Copy) -> None:
    """A copy of a parameter is no nn.Parameter."""

    def like(made: Any, alias: Any, original: Any) -> None:
        vars(made).pop("_is_param", None)

    copy.call_after("offload.loaded_copies", "as_original", like)


@mutant("offload.loaded_copies", "offload-models", "a_parameter_looks_like_one")
def gives_everything_as_parameters(copy: Copy) -> None:
    """Copies of buffers are an nn.Parameter, too."""

    def like(made: Any, alias: Any, original: Any) -> None:
        made._is_param = True

    copy.call_after("offload.loaded_copies", "as_original", like)


@mutant("offload.loaded_copies", "offload-models", "a_parameter_looks_like_one")
def forgets_attributes_of_copies(copy: Copy) -> None:
    """A copy has none of the attributes of its parameter."""
    copy.replace("offload.loaded_copies", "attributes", lambda tensor: {}, only_here=True)


@mutant("offload.slice_run", "offload-models", "a_parameter_looks_like_one", profile="default")
def forgets_attributes_when_it_runs_again(copy: Copy) -> None:
    """In a recomputation copies are no parameters, and have no attributes."""
    copy.replace("offload.slice_run", "as_original", lambda alias, original: alias, only_here=True)


@mutant("offload.changes", "offload-models", "memory_that_is_shared_is_changed_for_all")
def overlooks_shared_memory(copy: Copy) -> None:
    """Tensors that share memory are taken for tensors with memory of their own."""
    copy.replace("offload.changes", "SharedMemory.shared_with", lambda self, tensor: "")


@mutant("offload.changes", "offload-models", "a_buffer_that_forward_gives_another")
def parts_what_forward_has_share_memory(copy: Copy) -> None:
    """Buffers that share memory since forward are written back apart, and nobody is told."""
    copy.replace("offload.changes", "Changes.refuse_sharing", lambda *_: None)


@mutant("offload.changes", "offload-models", "a_buffer_that_takes_over_from_another")
def refuses_what_was_another(copy: Copy) -> None:
    """A buffer must not get what another was before forward."""

    def note(self: Any, copies: Any, before: Any, after: Any, *_: Any) -> None:
        for name, now in after.items():
            if any(now is one for other, one in copies.items() if other != name):
                raise RuntimeError(f"{name} was another")

    copy.call_before("offload.changes", "Changes.note", note)


@mutant("offload.changes", "offload-models", "a_hook_that_forward_registers_stays_or_is_refused")
def loses_hooks_of_forward(copy: Copy) -> None:
    """A hook that forward registers on a copy goes with it, and nobody is told."""

    def note(self: Any, copies: Any, *others: Any) -> None:
        for one in copies.values():
            if one._backward_hooks:
                one._backward_hooks = None

    copy.call_before("offload.changes", "Changes.note", note)


@mutant("offload.loaded_copies", "offload-models", "a_parameter_has_its_class_and_version")
def gives_parameters_of_one_class(copy: Copy) -> None:
    """A parameter of a class of its own is none of that class in forward."""

    def like(made: Any, alias: Any, original: Any) -> Any:
        if type(made) is not Tensor and isinstance(original, nn.Parameter):
            made.__class__ = Tensor
        return made

    copy.change_result("offload.loaded_copies", "as_original", like)


@mutant("offload.transfers", "offload-models", "a_parameter_has_its_class_and_version")
def gives_copies_of_one_version(copy: Copy) -> None:
    """Copies have the version that copying gives them."""
    copy.replace("offload.transfers", "set_version", lambda made, original: made)


@mutant("offload.slicing", "offload-models", "hooks_of_all_modules_see_those_of_the_model")
def calls_slices_as_modules(copy: Copy) -> None:
    """Hooks that are registered for all modules are called for slices, too."""
    copy.replace("offload.slicing", "Chain.__call__", nn.Module.__call__)


@mutant("offload.loaded_copies", "offload-models", "anomaly_detection_finds_none")
def shows_gradients_on_their_way(copy: Copy) -> None:
    """Where anomalies are detected, nobody waits for gradients before they are looked at."""

    def forward(there: Any, *given: Any) -> Any:
        with autograd.set_detect_anomaly(False):
            return there(*given)

    copy.call_instead("offload.loaded_copies", "_Send.forward", forward)


@mutant("offload.changes", "offload-models", "what_forward_sets_on_a_weight_stays_or_is_refused")
def loses_what_forward_sets(copy: Copy) -> None:
    """What forward sets on a copy goes with it, and nobody is told."""
    copy.replace("offload.changes", "Changes.refuse_settings", lambda *_: None)


@mutant("offload.changes", "offload-models", "what_forward_sets_on_a_weight_stays_or_is_refused")
def overlooks_new_attributes(copy: Copy) -> None:
    """An attribute that forward changes on a copy goes with it, and nobody is told."""
    copy.replace("offload.changes", "_changed_attribute", lambda *_: "")


@mutant("offload.slice_run", "offload-models", "what_forward_sets_on_a_weight_stays_or_is_refused", profile="default")
def overlooks_flags_of_originals(copy: Copy) -> None:
    """A parameter that is frozen or unfrozen while its slice runs with a copy is not noticed."""

    def refuse(there: Any, self: Any, before: Any) -> None:
        flags = {name: tensor.requires_grad for name, tensor in self.use.tensors.items()}
        there(self, {name: state._replace(requires_grad=flags[name]) for name, state in before.items()})

    copy.call_instead("offload.slice_run", "SliceRun.refuse_other_settings", refuse)


@mutant("offload.microbatches", "offload-models", "a_module_that_enables_gradients_has_them")
def joins_in_the_callers_grad_mode(copy: Copy) -> None:
    """Under no_grad, what microbatches gave is joined without a graph."""
    copy.replace(
        "offload.microbatches", "torch", SimpleNamespace(**{**vars(torch), "enable_grad": nullcontext}), only_here=True
    )


@mutant("offload.loaded_copies", "offload-models", "gradients_of_models_that_are_asked_for_at_once")
def sends_gradients_without_a_storage(copy: Copy) -> None:
    """Several gradients at once are sent as one tensor with a storage."""
    copy.replace("offload.loaded_copies", "has_storage", lambda tensor: True, only_here=True)


@mutant("offload.model", "offload-models", "a_step_that_is_compiled_around_a_model")
def is_compiled(copy: Copy) -> None:
    """What loads parameters and runs slices is compiled with the step."""
    copy.replace("offload.model", "OffloadModel.forward", copy["offload.model"].OffloadModel._value)


@mutant("offload.boundary", "offload-models", "noise_that_a_model_draws_once_it_is_saved")
def takes_arguments_for_noise(copy: Copy) -> None:
    """What a slice was called with is taken for noise that the operator drew which asks for the recomputation."""
    copy.wrap("offload.boundary", "_ArgumentHooks", lambda there: there.__base__)


@mutant("offload.model", "offload-models", "a_packed_sequence_goes_through_a_model")
def moves_the_sizes_of_a_packed_sequence(copy: Copy) -> None:
    """All tensors of a PackedSequence are moved to the device."""
    copy.replace("offload.model", "_is_packed_sequence", lambda node: False)
