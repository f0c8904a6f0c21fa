"""Faults of the graph tools that laws of the family hooks must catch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def change_init(copy: Copy, kind: str, more: Callable[..., None]) -> None:
    """Have a new object of a class changed at once, given what it was made from."""
    copy.call_after("graph.hooks", f"{kind}.__init__", lambda _, *args: more(*args))


def change_argument_of_pack(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have a pack hook given something that is made of the tensor."""

    def pack(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        return copy["graph.hooks"]._SavedTensor(self.pack_hook(changed(tensor)), tensor)

    copy.call_instead("graph.hooks", "saved_tensors_hooks._pack", pack)


def change_result_of_unpack(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have autograd given something that is made of what the unpack hook brings."""
    copy.change_result("graph.hooks", "saved_tensors_hooks._unpack", lambda result, *_: changed(result))


def check_if(copy: Copy, wanted: Callable[[Any, Any], bool]) -> None:
    """Have versions compared for some tensors alone."""
    copy.call_instead(
        "graph.hooks",
        "_SavedTensor.check",
        lambda there, saved, tensor: there(saved, tensor) if wanted(saved, tensor) else None,
    )


def take_off(owner: object) -> list[Any]:
    """Take off the innermost pair of an object and those above it. Returns the latter, the uppermost first."""
    above = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if getattr(top[0], "__self__", None) is owner:
            break
        above.append(top)
    return above


def own(self: Any, _: object, tensor: torch.Tensor) -> None:
    """Have what is saved own the tensor."""
    self.origin = lambda: tensor


def rename_errors(copy: Copy, path: str) -> None:
    """Have the errors of a method come as another one."""

    def failing(there: Any, *args: Any) -> Any:
        try:
            return there(*args)
        except Exception as error:
            raise RuntimeError("a hook failed") from error

    copy.call_instead("graph.hooks", path, failing)


@mutant("graph.hooks", "hooks", "copies_of_noise_that_is_not_drawn_yet")
def takes_a_copy_of_what_is_written_later(copy: Copy) -> None:
    """A copy of a buffer that its operator wrote only once it was copied is given to backward."""
    copy.replace("graph.hooks", "_is_written_late", lambda _: False)


@mutant("graph.hooks", "hooks", "copies_of_noise_that_is_not_drawn_yet")
def refuses_a_copy_of_what_is_written_later_by_its_values(copy: Copy) -> None:
    """The error for such a copy says that values are wrong, but not of which tensor."""

    def failing(there: Any, self: Any, tensor: Any) -> None:
        if self.was_copied_too_early(tensor):
            raise RuntimeError("a saved tensor has other values")
        there(self, tensor)

    copy.call_instead("graph.hooks", "_SavedTensor.check", failing)


@mutant("graph.hooks", "hooks", "nested_tensors_under_hooks")
def asks_each_tensor_for_its_size(copy: Copy) -> None:
    """Nested tensors of strided layout, which have none, are asked for their size."""
    copy.replace("graph.hooks", "_size", lambda tensor: list(tensor.shape))


@mutant("graph.hooks", "hooks", "a_pair_that_returns_its_argument_makes_no_cycle", profile="default")
def looks_into_the_outer_tuple_alone(copy: Copy) -> None:
    """A result keeps its graph in a tuple that is in a tuple."""
    hooks = copy["graph.hooks"]

    def detached(there: Any, value: Any, *rest: Any) -> Any:
        if not hooks._is_tuple(value):
            return there(value, *rest)
        return hooks._rebuild_tuple(value, [part if hooks._is_tuple(part) else there(part, *rest) for part in value])

    copy.call_instead("graph.hooks", "_without_graph", detached)


@mutant("graph.hooks", "hooks", "a_pair_that_returns_its_argument_makes_no_cycle", profile="default")
def brings_a_named_tuple_back_as_a_tuple(copy: Copy) -> None:
    """An unpack hook gets a tuple where the pack hook returned a named tuple."""
    copy.replace("graph.hooks", "_rebuild_tuple", lambda _, parts: tuple(parts))


@mutant("graph.hooks", "hooks", "a_pair_that_returns_its_argument_makes_no_cycle")
def keeps_the_graph_of_a_result(copy: Copy) -> None:
    """A result that a pack hook returns owns its own graph."""
    copy.replace("graph.hooks", "_without_graph", lambda value, *_: value)


@mutant("graph.hooks", "hooks", "pairs_may_be_left_in_any_order")
def takes_off_what_is_above_too(copy: Copy) -> None:
    """A pair that is left takes those with it that were entered later."""
    copy.replace("graph.hooks", "_pop_owner", take_off)


@mutant("graph.hooks", "hooks", "pairs_may_be_left_in_any_order", profile="default")
def puts_back_what_is_above_in_reverse(copy: Copy) -> None:
    """When a pair is left, the order of those that were entered later is reversed."""

    def taking_off(owner: object) -> None:
        for pair in take_off(owner):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)

    copy.replace("graph.hooks", "_pop_owner", taking_off)


@mutant("graph.hooks", "hooks", "hooks_do_not_hide_a_change")
def compares_no_versions(copy: Copy) -> None:
    """A change in place between pack and unpack is not noticed."""
    copy.replace("graph.hooks", "_SavedTensor.check", lambda *_: None)


@mutant("graph.hooks", "hooks", "hooks_do_not_hide_a_change_in_forward")
def compares_versions_of_inputs_alone(copy: Copy) -> None:
    """A change of a result in place is not noticed."""
    check_if(copy, lambda saved, _: saved.origin() is not None and saved.origin().is_leaf)


@mutant("graph.hooks", "hooks", "a_change_in_any_way_is_noticed")
def knows_a_tensor_by_its_object_alone(copy: Copy) -> None:
    """A change is not noticed if the unpack hook brings another tensor that reads the same memory."""
    check_if(copy, lambda saved, tensor: tensor is saved.origin())


@mutant("graph.hooks", "hooks", "a_change_in_any_way_is_noticed")
def takes_every_tensor_for_copied(copy: Copy) -> None:
    """What the pack hook returns is taken for a copy, so a change before one that the unpack hook makes is not noticed."""

    def copied(self: Any, *_: object) -> None:
        self.is_alias = False

    change_init(copy, "_SavedTensor", copied)


@mutant("graph.hooks", "hooks", "a_change_in_any_way_is_noticed", profile="default")
def takes_an_alias_for_a_copy(copy: Copy) -> None:
    """A view that the pack hook returns is taken for a copy."""

    def copied_if_another(self: Any, value: Any, tensor: torch.Tensor) -> None:
        self.is_alias = value is tensor

    change_init(copy, "_SavedTensor", copied_if_another)


@mutant("graph.hooks", "hooks", "a_change_after_a_copy_is_harmless")
def expects_versions_of_copies_of_hooks(copy: Copy) -> None:
    """A change in place is refused although a hook has made a copy before it."""

    def uncopied(self: Any, *_: object) -> None:
        self.is_alias = True

    change_init(copy, "_SavedTensor", uncopied)


@mutant("graph.hooks", "hooks", "hooks_that_keep_the_tensor_change_nothing")
def expects_nothing_to_have_changed_before(copy: Copy) -> None:
    """What was changed in place before it was saved is refused too."""

    def unchanged(self: Any, *_: object) -> None:
        self.version = 0

    change_init(copy, "_SavedTensor", unchanged)


@mutant("graph.hooks", "hooks", "copies_of_saved_tensors_do_as_well")
def rounds_what_it_packs(copy: Copy) -> None:
    """A pack hook is given numbers of lower precision."""
    change_argument_of_pack(copy, lambda tensor: tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor)


@mutant("graph.hooks", "hooks", "pack_must_not_change_its_argument")
def gives_pack_a_copy(copy: Copy) -> None:
    """A pack hook is given a copy, which it may change."""
    change_argument_of_pack(copy, torch.clone)


@mutant("graph.hooks", "hooks", "a_custom_function_reads_what_it_saved")
def brings_back_contiguous_tensors(copy: Copy) -> None:
    """What comes back has lost its strides."""
    change_result_of_unpack(copy, lambda tensor: tensor.contiguous() if tensor.layout is torch.strided else tensor)


@mutant("graph.hooks", "hooks", "a_node_shows_what_it_saved", profile="default")
def materialises_conjugates(copy: Copy) -> None:
    """What comes back of a conjugated view is no view."""
    change_result_of_unpack(copy, torch.resolve_conj)


@mutant("graph.hooks", "hooks", "a_node_shows_what_a_copy_is", profile="default")
def widens_what_comes_back(copy: Copy) -> None:
    """What comes back of bfloat16 is of another dtype."""
    change_result_of_unpack(copy, lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor)


@mutant("graph.hooks", "hooks", "unpack_must_bring_a_tensor")
def makes_up_what_unpack_does_not_bring(copy: Copy) -> None:
    """Ones come back if the unpack hook brings no tensor."""
    change_result_of_unpack(copy, lambda tensor: tensor if isinstance(tensor, torch.Tensor) else torch.ones(2, 2))


@mutant("graph.hooks", "hooks", "each_tensor_is_packed_once_and_unpacked_once_a_read")
def packs_twice(copy: Copy) -> None:
    """A pack hook is called twice for each tensor."""

    def pack(self: Any, tensor: torch.Tensor) -> None:
        self.pack_hook(tensor)

    copy.call_before("graph.hooks", "saved_tensors_hooks._pack", pack)


@mutant("graph.hooks", "hooks", "the_innermost_pair_alone_is_asked")
def leaves_its_pair_on_after_an_error(copy: Copy) -> None:
    """A pair that is left through an error stays on."""
    copy.call_instead(
        "graph.hooks",
        "saved_tensors_hooks.__exit__",
        lambda there, self, *error: there(self, *error) if error[0] is None else None,
    )


@mutant("graph.hooks", "hooks", "the_innermost_pair_alone_is_asked")
def keeps_an_error_to_itself(copy: Copy) -> None:
    """An error through which a pair is left does not get out of it."""
    copy.change_result("graph.hooks", "saved_tensors_hooks.__exit__", lambda _, self, kind, *error: kind is not None)


@mutant("graph.hooks", "hooks", "a_pair_can_be_entered_again")
def can_be_entered_once(copy: Copy) -> None:
    """A pair that is entered for the second time is not put on."""
    entered: weakref.WeakSet[Any] = weakref.WeakSet()

    def enter(there: Any, self: Any) -> None:
        if self not in entered:
            entered.add(self)
            there(self)

    copy.call_instead("graph.hooks", "saved_tensors_hooks.__enter__", enter)


@mutant("graph.hooks", "hooks", "what_a_pair_packed_it_unpacks")
def asks_the_pair_around_backward(copy: Copy) -> None:
    """What comes back is unpacked by the pair that is on during backward."""

    def unpack(there: Any, self: Any, saved: Any) -> torch.Tensor:
        top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return there(self if top is None else top[0].__self__, saved)

    copy.call_instead("graph.hooks", "saved_tensors_hooks._unpack", unpack)


@mutant("graph.hooks", "hooks", "a_graph_under_hooks_is_freed")
def keeps_the_saved_tensor(copy: Copy) -> None:
    """A graph owns the tensor that was saved, and so itself."""
    change_init(copy, "_SavedTensor", own)


@mutant("graph.hooks", "hooks", "dropped_graphs_under_hooks_are_freed")
def keeps_what_copies_were_made_of(copy: Copy) -> None:
    """A graph owns the tensor of which a hook has kept a copy."""
    change_init(copy, "_SavedTensor", own)


@mutant("graph.hooks", "hooks", "hooks_leave_nothing_behind")
def notes_every_saved_tensor(copy: Copy) -> None:
    """Each tensor that is saved leaves an object behind."""
    notes: list[list[None]] = []
    change_init(copy, "_SavedTensor", lambda *_: notes.append([]))


@mutant("graph.hooks", "hooks", "an_error_in_pack_reaches_the_user")
def renames_errors_of_pack(copy: Copy) -> None:
    """An error in a pack hook becomes another one."""
    rename_errors(copy, "saved_tensors_hooks._pack")


@mutant("graph.hooks", "hooks", "an_error_in_unpack_reaches_the_user")
def renames_errors_of_unpack(copy: Copy) -> None:
    """An error in an unpack hook becomes another one."""
    rename_errors(copy, "saved_tensors_hooks._unpack")


@mutant("graph.hooks", "hooks", "hooks_must_be_callable")
def takes_anything_for_a_hook(copy: Copy) -> None:
    """A hook that is not callable is taken."""

    def made(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    copy.replace("graph.hooks", "saved_tensors_hooks.__init__", made)


@mutant("graph.hooks", "hooks", "classes_can_be_derived")
def hides_its_hooks(copy: Copy) -> None:
    """A pair does not show its unpack hook under its name."""

    def hidden(self: Any, pack_hook: Any, _: object) -> None:
        self.unpack_hook = pack_hook

    change_init(copy, "saved_tensors_hooks", hidden)


@mutant("graph.hooks", "hooks", "disabled_hooks_cannot_be_entered")
def enables_hooks_in_any_case(copy: Copy) -> None:
    """When the inner of two contexts that disable hooks is left, hooks are enabled."""

    @contextmanager
    def disabled(there: Any, message: str) -> Iterator[None]:
        with there(message):
            yield
        torch._C._autograd._saved_tensors_hooks_enable()

    copy.call_instead("graph.hooks", "disable_saved_tensors_hooks", disabled)


@mutant("graph.hooks", "hooks", "hooks_cannot_be_disabled_while_they_are_on")
def disables_hooks_while_they_are_on(copy: Copy) -> None:
    """Hooks are disabled although some are on, which stay on."""

    @contextmanager
    def disabled(message: str) -> Iterator[None]:
        torch._C._autograd._saved_tensors_hooks_disable(message, False)
        try:
            yield
        finally:
            torch._C._autograd._saved_tensors_hooks_enable()

    copy.replace("graph.hooks", "disable_saved_tensors_hooks", disabled)


@mutant("graph.hooks", "hooks", "deep_graphs_under_hooks_are_freed", ends_process=True)
def asks_each_packed_tensor_for_its_node(copy: Copy) -> None:
    """Each tensor is asked for its node as it is saved, and a long chain of such nodes cannot be freed."""
    copy.call_before("graph.hooks", "saved_tensors_hooks._pack", lambda _, tensor: tensor.grad_fn)
