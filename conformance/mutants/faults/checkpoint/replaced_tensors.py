"""Faults of the nested checkpoint that laws about replaced tensors must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def _origins_if(copy: Copy, wanted: Callable[[int], bool]) -> None:
    """Let a recomputation know the origins alone whose index is ``wanted``."""

    def change(given: dict[str, Any]) -> None:
        given["origins"] = {index: one for index, one in given["origins"].items() if wanted(index)}

    copy.change_arguments("nested.recomputation", "Recomputation.__init__", change)


@mutant("nested.recomputation", "errors", "weights_and_buffers_that_are_replaced")
def does_not_look_where_leaves_are(copy: Copy) -> None:
    """A tensor from outside that was replaced is not noticed if the region itself saves it."""
    _origins_if(copy, lambda index: index < 0)


@mutant("nested.recomputation", "errors", "weights_and_buffers_that_are_replaced", profile="default")
def does_not_look_where_leaves_inside_are(copy: Copy) -> None:
    """A tensor from outside that was replaced is not noticed if a region inside saves it."""
    _origins_if(copy, lambda index: index >= 0)


@mutant("tensors.origins", "errors", "weights_and_buffers_that_are_replaced")
def does_not_look_where_leaves_among_arguments_are(copy: Copy) -> None:
    """An argument is taken to come back as it is, though it may have been given other data."""
    copy.replace("tensors.origins", "Origin.keep_storage", lambda self, _: setattr(self, "address", None))


@mutant("nested.region", "errors", "names_that_are_bound_late")
def looks_where_leaves_are_and_not_results(copy: Copy) -> None:
    """Results that were computed before the region are taken for its own, and not looked for."""
    copy.set_after("nested.region", "Region.__init__", first_sequence_number=lambda _: -1)


@mutant("nested.region", "errors", "weights_and_buffers_that_are_replaced")
def takes_views_for_wholes(copy: Copy) -> None:
    """A saved view is not looked for as a part of its base."""
    copy.change_arguments("tensors.origins", "find_origin", lambda given: given.update(base=given["tensor"]))


@mutant("tensors.origins", "errors", "weights_and_buffers_that_are_replaced")
def keeps_parameters_alone(copy: Copy) -> None:
    """The storages of tensors from outside that are no parameters are not kept for comparison."""
    copy.change_arguments("tensors.origins", "keep_storages", lambda given: given.update(hooks_were_active=True))


@mutant("tensors.origins", "errors", "buffers_that_the_function_replaces_and_others_keep")
def follows_what_requires_grad(copy: Copy) -> None:
    """A tensor from outside that needs no gradient is not looked for."""

    def keep(origins: dict[int, Any], *_: Any) -> dict[int, Any]:
        return {index: one for index, one in origins.items() if (base := one()) is not None and base.requires_grad}

    copy.change_result("tensors.origins", "find_outside", keep)


@mutant("tensors.origins", "errors", "other_tensors_with_the_same_values")
def takes_what_is_elsewhere_for_something_else(copy: Copy) -> None:
    """A tensor in the place of another one counts as different even if its values are the same."""
    copy.replace("tensors.origins", "_equal", lambda *_: False)


@mutant("tensors.origins", "errors", "other_tensors_with_the_same_values")
def keeps_what_was_swapped_in_forward(copy: Copy) -> None:
    """Of a tensor that got another storage in forward, that one is kept for comparison."""

    def present(self: Any) -> Any:
        whole = self()
        if whole is not None and self.layout is None:
            self.layout = copy["tensors.origins"]._layout(whole)
        return None if whole is None else whole.untyped_storage()

    copy.replace("tensors.origins", "Origin.current_storage", present)


@mutant("tensors.origins", "errors", "regions_inside_a_functional_call")
def takes_what_looks_alike_for_the_same(copy: Copy) -> None:
    """A tensor that stands in for another one is never noticed."""
    copy.change_result("tensors.origins", "has_equal_values", lambda equal, *_: equal or None)


@mutant("nested.recomputation", "errors", "scripted_functions_that_specialise")
def compares_versions_alone(copy: Copy) -> None:
    """Of what a recomputation saves, nothing but the version is compared with what forward saved."""

    def compare(self: Any, index: int, tensor: Any, before: Any = None) -> None:
        self.require_version(tensor, self.slots[index][2][3])

    copy.replace("nested.recomputation", "Recomputation.compare_metadata", compare)
    copy.change_result("tensors.origins", "has_equal_values", lambda equal, *_: equal or None)


@mutant("tensors.origins", "errors", "names_that_are_bound_late")
def compares_addresses_alone(copy: Copy) -> None:
    """A tensor that begins where another one did is taken for it, transposed or not."""
    copy.replace("tensors.origins", "Origin.has_moved", lambda self, tensor: self.address != tensor.data_ptr())


@mutant("tensors.origins", "errors", "names_that_are_bound_late")
def forgets_what_is_returned(copy: Copy) -> None:
    """What the function returns of what it read is compared with nothing."""

    def keep(_: None, origins: Any, *__: Any, **___: Any) -> None:
        for one in origins:
            one.followed = False

    copy.call_after("tensors.origins", "keep_storages", keep)


@mutant("tensors.origins", "errors", "other_tensors_with_the_same_values")
def takes_a_shape_for_another(copy: Copy) -> None:
    """Where a tensor was in its memory is read from what it was given in forward."""

    def present(self: Any) -> None:
        whole = self()
        self.layout = self.layout or (None if whole is None else copy["tensors.origins"]._layout(whole))

    copy.call_before("tensors.origins", "Origin.current_storage", present)


@mutant("tensors.origins", "errors", "other_tensors_with_the_same_values")
def compares_only_what_is_computed_with(copy: Copy) -> None:
    """Numbers that torch cannot compare, as it only stores them, are an error."""
    copy.replace("tensors.origins", "_BITS", {})


@mutant("tensors.origins", "errors", "copies_of_weights_in_a_functional_call")
def takes_every_stand_in_for_changed(copy: Copy) -> None:
    """Of a tensor that stands in for another one with the same values, the version is compared with the other's."""
    copy.change_result("tensors.origins", "has_equal_values", lambda equal, *_: None if equal else equal)


@mutant("nested.recomputation", "errors", "copies_of_weights_and_second_derivatives")
def keeps_the_version_of_a_stand_in(copy: Copy) -> None:
    """A tensor that stands in for another one with the same values keeps its own version, which is not the one expected."""

    def accept(there: Any, self: Any, index: int, tensor: Any, before: Any) -> Any:
        there(self, index, tensor, before)
        return tensor

    copy.call_instead("nested.recomputation", "Recomputation.accept_replacement", accept)


@mutant("tensors.origins", "errors", "weights_that_are_replaced_under_autocast")
def looks_for_no_leaf_behind_a_cast(copy: Copy) -> None:
    """The cast of a weight is taken for a result that the function computes anew."""
    copy.replace("tensors.origins", "Origin.note_leaf", lambda self, node: None)


@mutant("tensors.origins", "errors", "weights_with_the_same_values_under_autocast")
def takes_another_cast_for_another_weight(copy: Copy) -> None:
    """A weight counts as replaced if its cast is another object."""
    copy.replace("tensors.origins", "_equal", lambda *_: False)


@mutant("tensors.origins", "errors", "kept_values_that_are_computed_anew")
def compares_values_of_parameters_alone(copy: Copy) -> None:
    """A tensor that has other values is noticed only if it is a parameter."""

    def compare(equal: bool | None, _: Any, tensor: Any) -> bool | None:
        return equal if isinstance(tensor, torch.nn.Parameter) else equal or None

    copy.change_result("tensors.origins", "has_equal_values", compare)


@mutant("nested.recomputation", "errors", "kept_values_may_be_computed_anew")
def compares_values_even_if_told_not_to(copy: Copy) -> None:
    """With determinism_check="none" a tensor that comes back with other values is refused, too."""

    def checking(there: Any, self: Any, *args: Any) -> Any:
        told, self.check = self.check, True
        try:
            return there(self, *args)
        finally:
            self.check = told

    copy.call_instead("nested.region", "Region.pack", checking)
    copy.call_instead("nested.recomputation", "Recomputation.accept_replacement", checking)
