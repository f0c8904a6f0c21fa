"""Faults of the nested checkpoint that laws of the family ambient must catch."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._device import DeviceContext

from conformance.mutants.faults.checkpoint.seams import change_recomputed, compare_versions_alone_if
from conformance.mutants.mutant import Copy, mutant
from impls.torch_private import set_version_counters

_modes_at = torch._C._get_function_stack_at
_mode_count = torch._C._len_torch_function_stack


def _with_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return function(*args, **kwargs)

    return run


def _change_without_grad(copy: Copy, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the arguments of regions where there is nothing to differentiate."""

    def run(given: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            change(given)

    copy.change_arguments("nested.api", "_run", run)


def _change_attributes(copy: Copy, kept: Callable[[torch.Tensor, str, Any], bool]) -> None:
    """Of a saved input, keep only the attributes of which ``kept`` says so."""

    def init(_: None, self: Any, tensor: torch.Tensor, *__: Any) -> None:
        self.attributes = {name: value for name, value in self.attributes.items() if kept(tensor, name, value)}

    copy.call_after("tensors.packed", "Packed.__init__", init)


@mutant("state.modes", "ambient", "device_context_is_forwards")
def forgets_the_device_context(copy: Copy) -> None:
    """A recomputation runs in the device context that is active around backward."""

    def change(given: dict[str, Any]) -> None:
        given["wanted"] = given["wanted"]._replace(device=given["found"].device)

    copy.change_arguments("state.modes", "enter_modes", change)


@mutant("state.modes", "ambient", "device_context_is_forwards", profile="default")
def never_leaves_a_device_context(copy: Copy) -> None:
    """A recomputation enters forward's device context, and leaves none if forward had none."""

    def change(given: dict[str, Any]) -> None:
        if given["wanted"].device is None:
            given["wanted"] = given["wanted"]._replace(device=given["found"].device)

    copy.change_arguments("state.modes", "enter_modes", change)


@mutant("state.modes", "ambient", "default_dtype_is_forwards")
def forgets_the_default_dtype(copy: Copy) -> None:
    """A recomputation does not set the default dtype."""

    def change(given: dict[str, Any]) -> None:
        given["wanted"] = torch.get_default_dtype(), given["wanted"][1]

    copy.change_arguments("state.modes", "set_process_wide", change)


@mutant("state.modes", "ambient", "default_dtype_is_forwards")
def leaves_the_default_dtype_behind(copy: Copy) -> None:
    """The default dtype stays as a recomputation has set it."""

    def change(given: dict[str, Any]) -> None:
        if given.get("ours") is not None:
            given["found"] = torch.get_default_dtype(), given["found"][1]

    copy.change_arguments("state.modes", "restore_process_wide", change)


@mutant("state.modes", "ambient", "modes_that_another_thread_sets_stay")
def undoes_what_another_thread_sets(copy: Copy) -> None:
    """The default dtype is put back after a recomputation even if another thread has set it meanwhile."""

    def put_back(_: None, found: Any, ours: Any = None) -> None:
        torch.set_default_dtype(found[0])

    copy.call_after("state.modes", "restore_process_wide", put_back)


@mutant("state.restoration", "ambient", "modes_that_another_thread_sets_stay")
def sets_modes_back_that_are_the_same(copy: Copy) -> None:
    """Modes are put back after a recomputation without a look at who has set them."""
    copy.change_arguments("state.restoration", "Restoration.put_modes_back", lambda given: given.update(failed=True))


@mutant("nested.recomputation", "ambient", "modes_that_a_function_sets")
def stops_where_the_function_has_set_a_mode(copy: Copy) -> None:
    """A recomputation ends early even where its function is about to set a mode back."""
    copy.set_before("nested.recomputation", "Recomputation.stop", modes=lambda _: None)


@mutant("nested.recomputation", "ambient", "what_a_function_changes_where_it_runs_on")
def hands_over_what_the_rest_of_the_function_changes(copy: Copy) -> None:
    """Where a recomputation is not stopped early, backward gets saved tensors as the rest of the function leaves them."""
    copy.replace("tensors.snapshots", "Snapshot.changed", lambda _: {})


@mutant("tensors.snapshots", "ambient", "what_is_saved_where_a_recomputation_runs_on")
def hands_over_dense_copies_of_no_class(copy: Copy) -> None:
    """Where a recomputation is not stopped early, backward gets copies of the values, without strides, class and attributes."""

    def changed(self: Any) -> dict[int, torch.Tensor]:
        copied = copy["tensors.versions"].copy_with_version
        return {key: copied(one.tensor.as_subclass(torch.Tensor)) for key, one in self.before.items()}

    copy.replace("tensors.snapshots", "Snapshot.changed", changed)


@mutant("nested.recomputation", "ambient", "module_hooks_that_are_always_called")
def stops_before_hooks_that_are_always_called(copy: Copy) -> None:
    """A recomputation ends inside of a module although torch does not call the hooks that undo others then."""
    copy.replace("nested.recomputation", "is_inside_hooks_always_called", lambda *_: False)


@mutant("nested.recomputation", "ambient", "modes_that_a_function_sets", profile="default")
def takes_a_function_that_failed_for_ended(copy: Copy) -> None:
    """If a function fails after all needed tensors are there, modes that it has not set back stay as they are."""
    copy.set_after("nested.recomputation", "Recomputation._collect", failed=lambda _: False)


@mutant("nested.region", "ambient", "modes_that_a_function_sets")
def does_not_know_what_forward_left(copy: Copy) -> None:
    """After a recomputation, modes that the function leaves behind are not recognized as its own."""
    copy.set_before("nested.region", "Region.recompute", modes_after=lambda _: None)


@mutant("nested.region", "ambient", "default_dtype_is_forwards", profile="default")
def takes_the_modes_of_a_functions_first_call(copy: Copy) -> None:
    """A function is recomputed in the modes of the first call of it."""

    def init(_: None, self: Any, function: Any, *__: Any) -> None:
        self.modes = vars(function).setdefault("modes", self.modes)

    copy.call_after("nested.region", "Region.__init__", init)


@mutant("state.modes", "ambient", "deterministic_flags_are_forwards")
def forgets_deterministic_algorithms(copy: Copy) -> None:
    """A recomputation does not set whether algorithms have to be deterministic."""

    def change(given: dict[str, Any]) -> None:
        given["wanted"] = given["wanted"][0], copy["state.modes"].process_wide()[1]

    copy.change_arguments("state.modes", "set_process_wide", change)


@mutant("state.modes", "ambient", "deterministic_flags_are_forwards")
def forgets_warn_only(copy: Copy) -> None:
    """Where algorithms have to be deterministic in a recomputation, it is an error if they are not, never a warning."""

    def change(given: dict[str, Any]) -> None:
        dtype, (deterministic, _) = given["wanted"]
        given["wanted"] = dtype, (deterministic, False)

    copy.change_arguments("state.modes", "set_process_wide", change)


@mutant("nested.recomputation", "ambient", "grad_mode_is_forwards")
def leaves_grad_mode_on_after_reading(copy: Copy) -> None:
    """Grad mode stays on after a recomputation."""
    copy.call_after("nested.recomputation", "Recomputation._collect", lambda *_: torch._C._set_grad_enabled(True))


@mutant("nested.region", "ambient", "backward_in_inference_mode")
def recomputes_in_inference_mode(copy: Copy) -> None:
    """Inference mode around backward is not left for a recomputation."""
    copy.replace(
        "nested.region", "torch", SimpleNamespace(**{**vars(torch), "is_inference_mode_enabled": lambda: False}), only_here=True
    )


@mutant("nested.api", "ambient", "nothing_to_differentiate_costs_one_call")
def enables_grad_in_any_case(copy: Copy) -> None:
    """Where grad mode is off, the function runs with grad mode on."""
    _change_without_grad(copy, lambda given: given.update(function=_with_grad(given["function"])))


@mutant("nested.api", "ambient", "nothing_to_differentiate_costs_one_call")
def recomputes_what_needs_no_grad(copy: Copy) -> None:
    """Where grad mode is off, the function runs twice."""
    _change_without_grad(copy, lambda given: _with_grad(given["function"])(*given["args"], **given["kwargs"]))


@mutant("tensors.packed", "ambient", "arguments_look_the_same")
def passes_parameters_as_tensors(copy: Copy) -> None:
    """A parameter among the arguments is a plain tensor in the recomputation."""

    def init(_: None, self: Any, *__: Any) -> None:
        if self.parameter is not None:
            self.parameter = self.parameter.as_subclass(torch.Tensor)

    copy.call_after("tensors.packed", "Packed.__init__", init)


@mutant("tensors.packed", "ambient", "attributes_of_arguments_are_there")
def forgets_attributes(copy: Copy) -> None:
    """Inputs have none of their attributes in a recomputation."""
    _change_attributes(copy, lambda *_: False)


@mutant("nested.api", "ambient", "attributes_of_arguments_are_there")
def returns_outputs_without_their_attributes(copy: Copy) -> None:
    """The output of a region loses its attributes."""

    def run(output: Any, *_: Any) -> None:
        if isinstance(output, torch.Tensor):
            vars(output).clear()

    copy.call_after("nested.api", "_run", run)


@mutant("tensors.packed", "ambient", "attributes_of_arguments_are_there")
def forgets_attributes_that_are_tensors(copy: Copy) -> None:
    """Inputs do not have those of their attributes in a recomputation that are tensors."""
    _change_attributes(copy, lambda tensor, name, value: not isinstance(value, copy["tensors.packed"].Packed))


@mutant("state.modes", "ambient", "device_context_is_forwards", profile="default")
def looks_for_a_device_context_on_top_alone(copy: Copy) -> None:
    """A device context is not seen below another mode."""
    copy.replace("state.modes", "_device_context", lambda: getattr(_modes_at(_mode_count() - 1), "device", None))


@mutant("state.modes", "ambient", "device_context_is_forwards", profile="default")
def takes_the_outermost_device_context(copy: Copy) -> None:
    """Of several device contexts, the outermost one is seen."""

    def device_context() -> torch.device | None:
        stack = map(_modes_at, range(_mode_count()))
        return next((mode.device for mode in stack if isinstance(mode, DeviceContext)), None)

    copy.replace("state.modes", "_device_context", device_context)


@mutant("nested.api", "ambient", "a_module_in_eval_gives_gradients")
def needs_no_gradient_in_eval(copy: Copy) -> None:
    """The forward of a module in eval mode runs without grad mode."""

    def run(there: Any, function: Any, *given: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and getattr(function, "training", True)):
            return there(function, *given)

    copy.call_instead("nested.api", "_run", run)


@mutant("nested.recomputation", "ambient", "anomaly_mode_changes_nothing")
def switches_anomaly_mode_off(copy: Copy) -> None:
    """A recomputation switches anomaly mode off."""
    copy.call_before("nested.recomputation", "Recomputation._collect", lambda *_: torch.autograd.set_detect_anomaly(False))


@mutant("state.restoration", "ambient", "an_error_leaves_modes_as_they_were")
def leaves_modes_as_an_error_finds_them(copy: Copy) -> None:
    """Modes are not put back after a recomputation that has raised an error."""
    copy.call_instead(
        "state.restoration",
        "Restoration.put_modes_back",
        lambda there, self, left, failed: None if failed else there(self, left, failed=False),
    )


@mutant("nested.recomputation", "ambient", "grad_mode_is_forwards")
def recomputes_in_the_grad_mode_that_it_finds(copy: Copy) -> None:
    """A recomputation does not switch grad mode on."""

    def collect(there: Any, self: Any, function: Callable[[], Any]) -> None:
        there(self, torch.set_grad_enabled(torch.is_grad_enabled())(function))

    copy.call_instead("nested.recomputation", "Recomputation._collect", collect)


@mutant("nested.recomputation", "ambient", "train_and_eval_flipped_before_backward")
def compares_dtypes_alone(copy: Copy) -> None:
    """A saved tensor may come back with any metadata if the dtype is the same."""
    compare_versions_alone_if(copy, lambda run, index, tensor: tensor.dtype == run.slots[index][2][1])


@mutant("nested.region", "ambient", "default_dtype_is_forwards")
def keeps_the_modes_of_its_last_run(copy: Copy) -> None:
    """A second recomputation runs in the modes that were active around the first."""
    present = copy["nested.region"].modes.current_modes
    copy.set_after("nested.region", "Region.recompute", modes=lambda _: present())


@mutant("nested.region", "ambient", "deterministic_flags_are_forwards", profile="default")
def restores_modes_twice(copy: Copy) -> None:
    """From the third one on, a recomputation runs in the modes that are active around it."""

    def recompute(self: Any, *_: Any) -> None:
        self.runs = vars(self).get("runs", 0) + 1
        if self.runs > 2:
            self.modes = copy["nested.region"].modes.current_modes()

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("tensors.packed", "ambient", "attributes_of_arguments_are_there", profile="default")
def forgets_attributes_of_subclasses(copy: Copy) -> None:
    """Inputs of subclasses have none of their attributes in a recomputation, but for those in slots."""
    _change_attributes(copy, lambda tensor, name, value: type(tensor) is torch.Tensor or name not in vars(tensor))


@mutant("tensors.attributes", "ambient", "attributes_of_arguments_are_there", profile="default")
def forgets_classes(copy: Copy) -> None:
    """Inputs of subclasses are plain tensors in a recomputation."""
    copy.replace("tensors.attributes", "as_class", lambda tensor, kind: tensor)


@mutant("tensors.versions", "ambient", "leaves_frozen_or_unfrozen_before_backward", profile="default")
def does_not_look_at_who_requires_grad(copy: Copy) -> None:
    """Whether a saved tensor requires grad is not compared."""
    copy.replace("tensors.versions", "tensor_metadata", attrgetter("shape", "dtype", "device", "_version", "layout", "is_leaf"))


@mutant("tensors.versions", "ambient", "leaves_frozen_or_unfrozen_before_backward")
def takes_a_leaf_for_a_result(copy: Copy) -> None:
    """Whether a saved tensor is a leaf is not compared."""
    copy.replace(
        "tensors.versions", "tensor_metadata", attrgetter("shape", "dtype", "device", "_version", "requires_grad", "layout")
    )


@mutant("nested.recomputation", "ambient", "leaves_frozen_or_unfrozen_before_backward", profile="default")
def looks_at_flags_of_what_is_wanted(copy: Copy) -> None:
    """Whether a saved tensor requires grad is compared only if it is needed itself."""
    compare_versions_alone_if(copy, lambda run, index, _: run.wanted[index] is None)


@mutant("nested.inputs", "ambient", "arguments_made_in_inference_mode")
def follows_inference_tensors_like_others(copy: Copy) -> None:
    """Arguments that were made in inference mode, and have no version, are asked for it."""
    copy.call_before("nested.inputs", "Inputs._capture_tensor", lambda self, tensor: self.hooks_were_active or tensor._version)


@mutant("tensors.packed", "ambient", "arguments_made_in_inference_mode")
def saves_inference_tensors_like_others(copy: Copy) -> None:
    """Arguments that were made in inference mode are given to autograd, which does not save them."""

    def init(self: Any, tensor: torch.Tensor, *_: Any) -> None:
        if tensor.is_inference():
            copy["tensors.packed"]._SaveForBackward.apply(torch.empty(0, requires_grad=True), tensor)

    copy.call_before("tensors.packed", "Packed.__init__", init)


@mutant("nested.inputs", "ambient", "arguments_made_in_inference_mode")
def holds_inference_tensors_like_others(copy: Copy) -> None:
    """Arguments that were made in inference mode are held in the way that takes versions."""
    copy.set_after("nested.inputs", "FlatInputs.__init__", versions=lambda self: self.versions or [])


@mutant("nested.region", "ambient", "settings_of_the_process_are_left_alone")
def silences_warnings(copy: Copy) -> None:
    """Warnings are silenced when a region is recomputed, and stay so."""
    copy.call_before("nested.region", "Region.recompute", lambda *_: warnings.simplefilter("ignore"))


@mutant("nested.region", "ambient", "settings_of_the_process_are_left_alone")
def seeds_pythons_random_numbers(copy: Copy) -> None:
    """A recomputation seeds Python's generator of random numbers."""
    copy.call_before("nested.region", "Region.recompute", lambda *_: random.seed(0))


@mutant("nested.api", "ambient", "settings_of_the_process_are_left_alone")
def lowers_the_precision_of_products(copy: Copy) -> None:
    """A region sets the precision of matrix products for the process."""
    copy.call_before("nested.api", "_run", lambda *_: torch.set_float32_matmul_precision("high"))


@mutant("nested.region", "ambient", "settings_of_the_process_are_left_alone")
def does_not_reset_the_collector_after_an_error(copy: Copy) -> None:
    """The collector is off while a region is recomputed, and after an error it stays so."""

    def recompute(there: Any, *args: Any) -> Any:
        collecting = gc.get_threshold()
        gc.set_threshold(0)
        values = there(*args)
        gc.set_threshold(*collecting)
        return values

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.region", "ambient", "a_module_updates_its_buffers_once")
def runs_a_module_a_third_time(copy: Copy) -> None:
    """A region is recomputed twice for one backward, so that buffers are updated a third time."""

    def recompute(there: Any, *args: Any) -> Any:
        there(*args)
        return there(*args)

    copy.call_instead("nested.region", "Region.recompute", recompute)


@mutant("nested.recomputation", "ambient", "a_module_updates_its_buffers_once")
def halves_what_a_module_with_buffers_saves(copy: Copy) -> None:
    """Where a module has buffers, what is recomputed of it comes back halved."""
    change_recomputed(copy, lambda tensor: tensor if tensor.dim() < 2 else _with_version(tensor / 2, tensor))


def _with_version(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    set_version_counters((tensor,), (other._version,))
    return tensor
