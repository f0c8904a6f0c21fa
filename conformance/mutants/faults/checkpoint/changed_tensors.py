"""Faults of the nested checkpoint that laws about tensors changed in place must catch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def _set_version(tensor: torch.Tensor, version: int) -> None:
    """Pretend that a tensor has been changed in place so many times."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _forget_change(slot: Any) -> None:
    """Pretend that the tensor which a slot of a region stands for is as it was saved."""
    followed = slot[1] if isinstance(slot[1], torch.Tensor) else slot[1].tensor()
    if followed is not None and followed._version != slot[2][3]:
        _set_version(followed, slot[2][3])


def _forget_changes(region: Any) -> None:
    """Pretend that all tensors which a region saved are as they were saved."""
    for slot in region.slots:
        _forget_change(slot)


def _forget_changes_if(copy: Copy, forgotten: Callable[[Any, Any], bool]) -> None:
    """Overlook that a saved tensor was changed, where ``forgotten`` says so of a region and a slot that backward unpacks."""

    def unpack(self: Any, slot: Any) -> None:
        if forgotten(self, slot):
            _forget_change(slot)

    copy.call_before("nested.region", "Region.unpack", unpack)


def _recomputed_at_the_versions_of_forward(copy: Copy) -> None:
    def run(there: Any, self: Any, *arguments: Any) -> Any:
        slots = self.slots  # which it lets go of at its end
        values = there(self, *arguments)
        for index, tensor in values.items():
            _set_version(tensor, slots[index][2][3])
        return values

    copy.call_instead("nested.recomputation", "Recomputation.run", run)


def _renew_versions(inputs: Any) -> None:
    """Take the versions that the arguments of a region have now for those that they had at the call."""
    followed: Any = getattr(inputs, "counters", None) or getattr(inputs, "tensors", ())
    inputs.versions = [one._version for one in followed]


@mutant("nested.region", "errors", "changed_outputs")
def overlooks_changes_since_forward(copy: Copy) -> None:
    """The alias that follows a saved tensor's version stays at the version from when the tensor was saved."""
    copy.replace("nested.region", "version_probe", lambda tensor: SimpleNamespace(_version=tensor._version), only_here=True)


@mutant("nested.recomputation", "errors", "gradients_beside_a_changed_weight")
def compares_no_versions_when_it_recomputes(copy: Copy) -> None:
    """Versions of tensors in forward and in recomputation are not compared."""
    copy.replace("nested.recomputation", "Recomputation.require_version", lambda *_: None)


@mutant("nested.region", "errors", "corruption_by_the_recomputation_is_reported")
def lets_the_recomputation_corrupt_what_it_saved(copy: Copy) -> None:
    """A recomputed tensor that the recomputation itself has changed in place is handed to backward."""
    _recomputed_at_the_versions_of_forward(copy)


@mutant("nested.inputs", "errors", "a_function_that_changes_its_argument")
def lets_an_input_be_changed(copy: Copy) -> None:
    """When forward ends, it is forgotten that forward changed an input in place, so that the old value is gone."""
    for kind in ("FlatInputs", "Inputs"):
        copy.call_after("nested.inputs", f"{kind}.end_forward", lambda _, self: _renew_versions(self))


@mutant("tensors.packed", "errors", "hooks_that_copy_after_changes")
def expects_versions_of_copies(copy: Copy) -> None:
    """A copy that hooks bring back does not get the version of the tensor that it is a copy of."""
    copy.change_arguments("tensors.packed", "Packed.unpack", lambda given: given.update(version=None))


@mutant("nested.region", "errors", "weights_changed_before_backward")
def notes_versions_when_backward_asks(copy: Copy) -> None:
    """Versions of all saved tensors are noted as backward unpacks the first one."""
    copy.call_before("nested.region", "Region.unpack", lambda self, _: _forget_changes(self))


@mutant("nested.inputs", "errors", "changed_arguments_that_nothing_saved")
def does_not_watch_keyword_arguments(copy: Copy) -> None:
    """Changes to tensors that were passed by keyword are not seen."""

    def init(there: Any, self: Any, args: Any, kwargs: Any) -> None:
        there(self, args, {})
        self.kwargs = kwargs

    copy.call_instead("nested.inputs", "FlatInputs.__init__", init)


@mutant("nested.inputs", "errors", "changed_arguments_that_nothing_saved")
def does_not_watch_tensors_of_other_classes(copy: Copy) -> None:
    """Arguments of a subclass of Tensor are taken for objects that are no tensors."""

    def take(there: Any, self: Any, value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) and type(value) not in _ORDINARY else there(self, value)

    copy.call_instead("nested.inputs", "Inputs._capture", take)


@mutant("nested.inputs", "errors", "hooks_around_do_not_hide_changes")
def follows_what_the_hooks_bring_back(copy: Copy) -> None:
    """Where hooks are around, the version of an input is followed by a copy of it."""
    copy.call_instead("nested.inputs", "version_probe", lambda counter, tensor: counter(tensor.clone()), only_here=True)


@mutant("nested.region", "errors", "changed_arguments_that_nothing_saved")
def watches_arguments_up_to_the_first_backward(copy: Copy) -> None:
    """In a second backward, arguments count as unchanged."""

    def recompute(self: Any, task: int, slot: Any) -> None:
        if self.values_by_task:
            _renew_versions(self.inputs)

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("nested.region", "errors", "changes_inside_after_saving")
def takes_the_version_now_for_the_one_then(copy: Copy) -> None:
    """The version that a saved tensor has now is the one that it is expected to have."""
    _forget_changes_if(copy, lambda *_: True)
    _recomputed_at_the_versions_of_forward(copy)


@mutant("nested.region", "errors", "changed_closure_tensors")
def takes_one_change_for_an_optimizers_step(copy: Copy) -> None:
    """A tensor may be changed in place once."""

    def unpack(self: Any, _: Any) -> None:
        for slot in self.slots:
            if slot[1]._version == slot[2][3] + 1:
                _forget_change(slot)

    copy.call_before("nested.region", "Region.unpack", unpack)


@mutant("nested.region", "errors", "weights_changed_during_backward")
def notes_versions_when_it_recomputes(copy: Copy) -> None:
    """Versions of all saved tensors are noted as the recomputation begins."""
    copy.call_before("nested.region", "Region.recompute", lambda self, *_: _forget_changes(self))


@mutant("nested.region", "errors", "changed_outputs")
def tells_of_a_changed_output_once(copy: Copy) -> None:
    """A changed saved tensor is an error the first time that it is unpacked, but not the second time."""

    def again(self: Any, slot: Any) -> bool:
        changed, before = slot[1]._version != slot[2][3], "told" in vars(self)
        self.told = changed or before
        return before

    _forget_changes_if(copy, again)


@mutant("nested.region", "errors", "changes_are_reported_in_any_case")
def takes_versions_for_part_of_the_determinism_check(copy: Copy) -> None:
    """Without the determinism check, changes since forward are not reported."""
    _forget_changes_if(copy, lambda self, _: not self.check)


@mutant("nested.recomputation", "errors", "changes_are_reported_in_any_case")
def compares_versions_inside_as_part_of_the_determinism_check(copy: Copy) -> None:
    """Without the determinism check, forward and recomputation may see different versions."""
    copy.call_instead(
        "nested.recomputation",
        "Recomputation.require_version",
        lambda there, self, *args: there(self, *args) if self.check else None,
    )


@mutant("nested.inputs", "errors", "changes_between_forward_and_backward")
def watches_the_first_argument_alone(copy: Copy) -> None:
    """Of the arguments, only the first may not be changed."""
    copy.change_result("nested.inputs", "FlatInputs.first_changed", lambda found, _: 0 if found == 0 else None)


@mutant("nested.region", "errors", "hooks_that_copy_after_changes")
def shares_looks_but_for_versions(copy: Copy) -> None:
    """Consecutive saved tensors that differ only in their versions share one record, with the version of the first."""

    class Alike(tuple[Any, ...]):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, tuple) and self[:3] == other[:3]

    copy.change_result("nested.region", "tensor_metadata", lambda metadata, _: Alike(metadata), only_here=True)


@mutant("nested.region", "errors", "gradients_beside_a_changed_weight")
def tells_the_parent_alone_what_it_saves(copy: Copy) -> None:
    """Regions further out do not get to know what a region saves."""

    def saw(self: Any, tensor: torch.Tensor, known: Any) -> None:
        self.inner_versions.append(tensor._version)
        if known is not None:
            self.origins[-len(self.inner_versions)] = known

    copy.replace("nested.region", "Region.on_inner_save", saw)


@mutant("nested.recomputation", "errors", "gradients_beside_a_changed_weight")
def does_not_compare_versions_inside(copy: Copy) -> None:
    """Versions of what regions inside save are not compared when a region is recomputed."""
    copy.set_before("nested.recomputation", "Recomputation.on_inner_save", inner_versions=lambda _: ())


@mutant("nested.region", "errors", "a_change_is_reported_however_late")
def follows_the_first_tensors_alone(copy: Copy) -> None:
    """Changes to any but the first 40 tensors that a region saves are not reported."""
    _forget_changes_if(copy, lambda _, slot: slot[0] >= 40)


@mutant("nested.region", "errors", "a_change_is_reported_however_late", profile="default")
def counts_changes_in_three_bits(copy: Copy) -> None:
    """Eight changes look like none."""
    _forget_changes_if(copy, lambda _, slot: (slot[1]._version - slot[2][3]) % 8 == 0)


@mutant("nested.region", "errors", "changed_outputs")
def compares_versions_up_to_the_first_backward(copy: Copy) -> None:
    """In a second backward, saved tensors count as unchanged."""
    _forget_changes_if(copy, lambda self, _: bool(self.values_by_task))


@mutant("nested.region", "errors", "a_changed_tensor_of_a_subclass")
def forgets_versions_of_subclasses_when_it_recomputes(copy: Copy) -> None:
    """Versions of saved tensors of subclasses are noted as the recomputation begins."""

    def recompute(self: Any, *_: Any) -> None:
        for slot in self.slots:
            if not isinstance(slot[1], torch.Tensor):
                _forget_change(slot)

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("nested.recomputation", "errors", "kept_results_that_are_changed")
def lets_a_kept_result_be_changed(copy: Copy) -> None:
    """A selective policy is told in any case that what it keeps may be changed."""

    def change(given: dict[str, Any]) -> None:
        if hasattr(given["context"], "allow_cache_entry_mutation"):
            given["context"].allow_cache_entry_mutation = True

    copy.change_arguments("nested.recomputation", "Recomputation.run", change)


def _recompute_at_version_saved_if(copy: Copy, overlooked: Callable[[torch.Tensor], bool]) -> None:
    """A tensor that is saved again counts as at the version that it was saved at, where ``overlooked`` says so of it."""

    def pack(self: Any, tensor: torch.Tensor) -> None:
        if self.count < self.slot_count and overlooked(tensor):
            _set_version(tensor, self.slots[self.count][2][3])

    copy.call_before("nested.recomputation", "Recomputation.pack", pack)


@mutant("nested.recomputation", "errors", "kept_results_that_may_be_changed_and_are_saved")
def compares_no_versions_of_results(copy: Copy) -> None:
    """The result of an operator may be recomputed at another version than it was saved at."""
    _recompute_at_version_saved_if(copy, lambda tensor: not tensor.is_leaf)


@mutant("nested.recomputation", "errors", "what_higher_order_operators_write")
def compares_no_versions_of_constants(copy: Copy) -> None:
    """A tensor that needs no gradient may be at another version than it was saved at."""
    _recompute_at_version_saved_if(copy, lambda tensor: not tensor.requires_grad)
