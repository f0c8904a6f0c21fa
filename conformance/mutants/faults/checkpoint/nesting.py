"""Faults of the nested checkpoint that laws of the family nesting must catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import impls.reentrant
from conformance.mutants.mutant import Copy, mutant

_hooks = torch._C._autograd


@contextmanager
def _hooks_around(owner: Any) -> Iterator[Any]:
    """The pair of hooks around a region or recomputation, whose own pair on top of them is off meanwhile."""
    _hooks._pop_saved_tensors_default_hooks()
    try:
        yield _hooks._top_saved_tensors_default_hooks(False)
    finally:
        _hooks._push_saved_tensors_default_hooks(owner.pack, owner.unpack)


def _show_to_hooks_around(owner: Any, tensor: torch.Tensor) -> None:
    with _hooks_around(owner) as outer:
        if outer is not None:
            outer[0](tensor)


@mutant("nested.region", "nesting", "backward_inside_a_region")
def numbers_only_the_slots_that_are_alive(copy: Copy) -> None:
    """Slots that the graph has cleared are left out, so that those after them have other indices."""
    copy.change_result("nested.region", "_slots_in_graph", lambda slots, _: [slot for slot in slots if slot is not None])


@mutant("nested.recomputation", "nesting", "no_except_exception_catches_the_stop")
def stop_is_an_exception(copy: Copy) -> None:
    """What ends a recomputation early is an Exception."""
    copy.replace("nested.recomputation", "StopRecomputation", type("Stop", (Exception,), {}))


@mutant("nested.inputs", "nesting", "hooks_see_the_outermost_inputs_alone")
def keeps_inputs_by_reference(copy: Copy) -> None:
    """Inputs are kept as they are, even if somebody watches what is saved."""
    copy.replace("nested.inputs", "_hooks_are_active", lambda: False)


@mutant("nested.region", "nesting", "hooks_see_the_outermost_inputs_alone")
def lets_outer_hooks_see_what_is_inside(copy: Copy) -> None:
    """Hooks around a region see what it saves."""
    copy.call_after("nested.region", "Region.pack", lambda _, self, tensor: _show_to_hooks_around(self, tensor))


@mutant("tensors.containers", "nesting", "hooks_see_inputs_in_containers")
def does_not_take_lists_apart(copy: Copy) -> None:
    """Tensors in lists are no inputs."""
    copy.call_instead("tensors.containers", "flatten_once", lambda there, value: None if type(value) is list else there(value))


@mutant("tensors.containers", "nesting", "hooks_see_inputs_in_containers", profile="default")
def does_not_take_dataclasses_apart(copy: Copy) -> None:
    """Tensors in dataclasses are no inputs."""
    copy.replace("tensors.containers", "_is_record", lambda _: False)


@mutant("nested.inputs", "nesting", "hooks_see_repeated_inputs_once")
def packs_a_repeated_argument_twice(copy: Copy) -> None:
    """A tensor that is an argument twice is saved twice."""
    copy.call_before("nested.inputs", "Inputs._capture_tensor", lambda self, tensor: self.indices.pop(id(tensor), None))


@mutant("tensors.packed", "nesting", "trees_of_regions")
def detaches_what_a_region_inside_is_given(copy: Copy) -> None:
    """An input that is saved for the recomputation loses its history."""
    copy.change_arguments("tensors.packed", "Packed.__init__", lambda given: given.update(tensor=given["tensor"].detach()))


@mutant("nested.api", "nesting", "trees_of_regions_that_share_values_through_closures", profile="default")
def takes_the_reentrant_way_inside_a_region(copy: Copy) -> None:
    """A region inside of another one is checkpointed by a reentrant backward."""

    def run(there: Any, function: Any, args: tuple[Any, ...], *options: Any) -> Any:
        if _hooks._top_saved_tensors_default_hooks(True) is not None:
            return impls.reentrant.checkpoint(function, *args)
        return there(function, args, *options)

    copy.call_instead("nested.api", "_run", run)


@mutant("nested.inputs", "nesting", "hooks_see_inputs_passed_by_keyword")
def saves_no_keyword_arguments(copy: Copy) -> None:
    """Arguments that are passed by keyword are kept as they are, not saved."""

    def init(there: Any, self: Any, args: Any, kwargs: Any, *rest: Any) -> None:
        there(self, args, {}, *rest)
        self.kwargs = dict(kwargs)

    copy.call_instead("nested.inputs", "Inputs.__init__", init)


@mutant("nested.inputs", "nesting", "hooks_see_the_outermost_inputs_alone", profile="default")
def saves_no_inputs_without_grad(copy: Copy) -> None:
    """Inputs that do not require grad are kept as they are, not saved."""

    def tensor(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        watched, self.hooks_were_active = self.hooks_were_active, self.hooks_were_active and tensor.requires_grad
        position = there(self, tensor)
        self.hooks_were_active = watched
        return position

    copy.call_instead("nested.inputs", "Inputs._capture_tensor", tensor)


@mutant("nested.inputs", "nesting", "trees_of_regions", profile="default")
def saves_a_tensor_once_for_all_regions(copy: Copy) -> None:
    """An input that a region has saved is not saved again for later regions."""
    pack = copy["nested.inputs"].Packed

    def once(tensor: torch.Tensor) -> Any:
        if "packed" not in vars(tensor):
            vars(tensor)["packed"] = pack(tensor)
        return vars(tensor)["packed"]

    copy.replace("nested.inputs", "Packed", once, only_here=True)


@mutant("nested.recomputation", "nesting", "recomputation_is_hidden_from_hooks")
def hands_on_what_it_recomputes(copy: Copy) -> None:
    """Hooks around backward see what a recomputation saves."""
    copy.call_before("nested.recomputation", "Recomputation.pack", _show_to_hooks_around)


@mutant("nested.recomputation", "nesting", "hooks_around_and_inside_regions")
def lets_hooks_change_what_it_recomputes(copy: Copy) -> None:
    """What a recomputation saves goes through the hooks around backward."""

    def change(given: dict[str, Any]) -> None:
        with _hooks_around(given["self"]) as outer:
            if outer is not None:
                given["tensor"] = outer[1](outer[0](given["tensor"]))

    copy.change_arguments("nested.recomputation", "Recomputation.pack", change)


@mutant("nested.recomputation", "nesting", "gradient_penalty_inside_a_region")
def uses_up_what_it_recomputes_inside(copy: Copy) -> None:
    """A backward inside a function takes away what its recomputation is to bring."""

    def unpack(_: torch.Tensor, self: Any, packed: Any) -> None:
        if isinstance(packed, int):
            self.values.pop(packed, None)

    copy.call_after("nested.recomputation", "Recomputation.unpack", unpack)


@mutant("nested.region", "nesting", "backward_of_another_region_inside_a_region")
def refuses_to_recompute_inside_a_recomputation(copy: Copy) -> None:
    """A region is not recomputed while another one is."""
    region = copy["nested.region"]

    def recompute(self: Any, *_: Any) -> None:
        if isinstance(region._enclosing_region(), region.Recomputation):
            self.refuse("another one is being recomputed")

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("nested.region", "nesting", "any_implementation_inside_any_other")
def refuses_regions_of_others_around_it(copy: Copy) -> None:
    """Hooks that belong to no region of its own are an error."""

    def enclosing(found: Any) -> None:
        if found is None and _hooks._top_saved_tensors_default_hooks(True) is not None:
            raise RuntimeError("hooks on saved tensors that are of no region are active")

    copy.call_after("nested.region", "_enclosing_region", enclosing)


@mutant("nested.recomputation", "nesting", "backward_inside_a_region_without_early_stop")
def takes_a_forward_for_ended_when_backward_runs(copy: Copy) -> None:
    """A region that is recomputed while its forward is under way is expected to save no more than it has so far."""
    copy.change_arguments("nested.recomputation", "Recomputation.__init__", lambda given: given.update(complete=True))
