"""Faults of the graph tools that laws of the family saving_on_cpu must catch."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def change_init(copy: Copy, kind: str, more: Callable[..., object]) -> None:
    """Have a new object of a class changed at once, given what it was made from."""
    copy.call_after("graph.save_on_device", f"{kind}.__init__", lambda _, *args: more(*args))


def change_what_stays(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In place of a tensor that stays where it is, keep something made from it."""

    def pack(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        packed = there(self, tensor)
        return changed(tensor) if packed is tensor else packed

    copy.call_instead("graph.save_on_device", "_MoveHooks.pack", pack)


def leave(copy: Copy, left: Callable[[torch.Tensor], bool]) -> None:
    """Have some tensors stay where they are."""
    copy.call_instead(
        "graph.save_on_device", "_MoveHooks.pack", lambda there, self, tensor: tensor if left(tensor) else there(self, tensor)
    )


def find_copies_by(copy: Copy, key: Callable[[torch.Tensor], tuple[object, ...]]) -> None:
    """Have what is saved again found by something else than its object, version and place."""
    copies: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()

    def pack(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        shape = copy["graph.save_on_device"].strided_layout(tensor)
        if shape is None:
            return there(self, tensor)
        known = (id(self), shape, *key(tensor))
        packed = copies.get(known) or there(self, tensor)
        return packed if packed is tensor else copies.setdefault(known, packed)

    copy.call_instead("graph.save_on_device", "_MoveHooks.pack", pack)


def change_copies(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In place of a copy on the host, keep something made from it."""

    def change(self: Any, *_: object) -> None:
        if self.layout is not None and not self.events:
            self.copy = changed(self.copy)

    change_init(copy, "_MovedTensor", change)


def call_on_another_stream(copy: Copy, path: str) -> None:
    """Let a method of a lane take an idle stream for the current one."""

    def called(there: Any, self: Any, *args: Any) -> Any:
        with self.module.stream(self.module.Stream(device=self.device)):
            return there(self, *args)

    copy.call_instead("graph.streams", path, called)


def change_snapshots(copy: Copy, snapshot: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let copies out read something other than a clone of the tensor."""

    def fetch(there: Any, self: Any, source: Any) -> Any:
        taken = snapshot(source)
        source.clone = lambda **_: taken
        try:
            return there(self, source)
        finally:
            del source.clone

    copy.call_instead("graph.streams", "CopyStreams.fetch", fetch)


@mutant("graph.save_on_device", "saving_on_cpu", "saving_on_the_cpu_notices_any_change")
def copies_what_is_there_already(copy: Copy) -> None:
    """What lives on the CPU already is copied, so a change to it is not noticed."""
    copy.replace("graph.save_on_device", "_with_index", lambda _: None)


@mutant("graph.save_on_device", "saving_on_cpu", "saving_on_the_cpu_does_not_hide_a_change")
def lets_what_stays_be_changed(copy: Copy) -> None:
    """What stays where it is is copied, so a change to it is not noticed."""
    change_what_stays(copy, lambda tensor: tensor.detach().clone())


@mutant("graph.save_on_device", "saving_on_cpu", "what_is_on_the_cpu_stays_as_it_is", profile="default")
def copies_what_is_written_later(copy: Copy) -> None:
    """What stays where it is is copied."""
    change_what_stays(copy, torch.clone)


@mutant("graph.save_on_device", "saving_on_cpu", "what_was_on_the_cpu_looks_the_same")
def brings_back_contiguous_tensors_of_the_cpu(copy: Copy) -> None:
    """What stays where it is loses its strides."""
    change_what_stays(copy, lambda tensor: tensor.detach().contiguous())


@mutant("graph.hooks", "saving_on_cpu", "a_graph_saved_on_the_cpu_is_freed")
def keeps_the_graph_of_a_result_on_the_cpu(copy: Copy) -> None:
    """A result that stays where it is owns its own graph."""
    copy.replace("graph.hooks", "_without_graph", lambda value, *_: value)


@mutant("graph.save_on_device", "saving_on_cpu", "what_changes_between_two_saves_where_no_version_tells")
def shares_copies_of_leaves(copy: Copy) -> None:
    """A leaf that is saved again at the same version is taken for unchanged."""
    copy.replace("graph.save_on_device", "_may_change_unseen", lambda _: False)


@mutant("graph.save_on_device", "saving_on_cpu", "parts_of_one_tensor_are_told_apart")
def takes_parts_of_a_subclass_for_one_another(copy: Copy) -> None:
    """Views of a tensor subclass are known by their base alone."""
    copy.replace("graph.save_on_device", "_has_no_place", lambda *_: False)


@mutant("graph.save_on_device", "saving_on_cpu", "each_tensor_is_moved_once")
def copies_at_every_save(copy: Copy) -> None:
    """A tensor that is saved twice is copied twice."""

    def pack(self: Any, tensor: torch.Tensor) -> None:
        self.copies.clear()

    copy.call_before("graph.save_on_device", "_MoveHooks.pack", pack)


@mutant("graph.save_on_device", "saving_on_cpu", "what_is_saved_again_is_moved_again_only_if_it_must_be")
def takes_a_changed_tensor_for_the_same(copy: Copy) -> None:
    """A tensor that was changed since it was saved is not copied again."""
    host = copy["graph.save_on_device"]
    find_copies_by(copy, lambda tensor: (id(host._root(tensor)), tensor.storage_offset()))


@mutant("graph.save_on_device", "saving_on_cpu", "parts_of_one_tensor_are_told_apart")
def takes_equal_parts_for_one(copy: Copy) -> None:
    """Parts of one tensor that have the same shape are taken for one."""
    host = copy["graph.save_on_device"]
    find_copies_by(copy, lambda tensor: (id(host._root(tensor)), tensor._version))


@mutant("graph.save_on_device", "saving_on_cpu", "a_tensor_in_the_place_of_one_that_died")
def knows_a_tensor_by_its_address(copy: Copy) -> None:
    """A tensor that has the address of one that died is taken for it."""
    find_copies_by(copy, lambda tensor: (tensor.untyped_storage().data_ptr(), tensor._version))


@mutant("graph.save_on_device", "saving_on_cpu", "what_is_saved_again_is_moved_again_only_if_it_must_be")
def keeps_copies_with_the_context(copy: Copy) -> None:
    """A context owns its copies, when no graph needs them any more."""

    def own(self: Any, *_: object) -> None:
        self.copies = {}

    change_init(copy, "_MoveHooks", own)


@mutant("graph.save_on_device", "saving_on_cpu", "copies_die_with_their_graph")
def keeps_every_copy(copy: Copy) -> None:
    """Copies are never let go."""
    kept: list[Any] = []
    change_init(copy, "_MovedTensor", lambda self, *_: kept.append(self))


@mutant("graph.save_on_device", "saving_on_cpu", "nothing_saved_stays_on_the_device")
def keeps_the_tensor_with_its_copy(copy: Copy) -> None:
    """A copy owns the tensor on the device."""

    def own(self: Any, tensor: torch.Tensor, *_: object) -> None:
        root = self.root()
        self.root = lambda: root

    change_init(copy, "_MovedTensor", own)


@mutant("graph.save_on_device", "saving_on_cpu", "small_tensors_stay", profile="default")
def moves_what_is_just_too_small(copy: Copy) -> None:
    """A tensor of the least size that is to be moved stays where it is."""
    copy.change_result("graph.save_on_device", "size_in_bytes", lambda result, *_: result - 1)


@mutant("graph.save_on_device", "saving_on_cpu", "a_size_must_be_a_number_of_bytes")
def takes_any_size(copy: Copy) -> None:
    """A negative size is taken for 0."""

    def made(there: Any, *args: Any) -> Any:
        *others, size = args
        return there(*others, 0 if isinstance(size, int) and size < 0 else size)

    copy.call_instead("graph.save_on_device", "_move_hooks", made)


@mutant("graph.save_on_device", "saving_on_cpu", "around_regions_their_inputs_are_moved", profile="default")
def leaves_leaves_where_they_are(copy: Copy) -> None:
    """Leaves are not moved."""
    leave(copy, lambda tensor: tensor.is_leaf)


@mutant("graph.save_on_device", "saving_on_cpu", "inside_regions_what_they_save_is_moved", profile="default")
def leaves_results_where_they_are(copy: Copy) -> None:
    """Results of operators are not moved."""
    leave(copy, lambda tensor: not tensor.is_leaf)


@mutant("graph.device_copies", "saving_on_cpu", "views_come_back_with_their_strides")
def loses_strides(copy: Copy) -> None:
    """What comes back has lost its strides."""
    copy.change_result("graph.device_copies", "StridedLayout.restore", lambda result, *_: result.contiguous())


@mutant("graph.device_copies", "saving_on_cpu", "what_comes_back_looks_the_same", profile="default")
def loses_conjugation(copy: Copy) -> None:
    """What comes back of a conjugated view is not conjugated."""
    copy.call_instead(
        "graph.device_copies",
        "StridedLayout.restore",
        lambda there, self, stored: there(dataclasses.replace(self, conjugated=False), stored),
    )


@mutant("graph.device_copies", "saving_on_cpu", "what_comes_back_from_pinned_memory_looks_the_same", profile="default")
def loses_negation(copy: Copy) -> None:
    """What comes back of a negated view is not negated."""
    copy.call_instead(
        "graph.device_copies",
        "StridedLayout.restore",
        lambda there, self, stored: there(dataclasses.replace(self, negated=False), stored),
    )


@mutant("graph.device_copies", "saving_on_cpu", "views_come_back_with_their_strides")
def loses_an_offset(copy: Copy) -> None:
    """Of a view, what is copied begins where its storage does."""

    def stored(there: Any, *args: Any) -> torch.Tensor:
        view: torch.Tensor = there(*args)
        return view.as_strided(view.size(), view.stride(), 0)

    copy.call_instead("graph.device_copies", "stored_elements", stored)


@mutant("graph.save_on_device", "saving_on_cpu", "saved_tensors_come_back_to_the_device", profile="default")
def rounds_what_comes_back(copy: Copy) -> None:
    """What comes back was kept in lower precision."""
    change_copies(copy, lambda kept: kept.half() if kept.is_floating_point() else kept)


@mutant("graph.save_on_device", "saving_on_cpu", "gradients_of_checkpoints_stay_as_they_are", profile="default")
def brings_back_the_wrong_way_round(copy: Copy) -> None:
    """What comes back is reversed."""
    change_copies(copy, lambda kept: kept.flip(0))


@mutant("graph.streams", "saving_on_cpu", "pinned_copies_do_not_race")
def does_not_wait_for_the_way_out(copy: Copy) -> None:
    """A copy back does not wait for the one out."""
    copy.call_instead(
        "graph.streams", "CopyStreams.send", lambda there, self, source, make, _: there(self, source, make, self.module.Event())
    )


@mutant("graph.streams", "saving_on_cpu", "pinned_copies_do_not_race", profile="default")
def does_not_wait_for_computation(copy: Copy) -> None:
    """A copy out does not wait for what computes the tensor, but for another stream."""
    call_on_another_stream(copy, "CopyStreams.fetch")


@mutant("graph.streams", "saving_on_cpu", "pinned_copies_do_not_race")
def does_not_wait_for_the_way_back(copy: Copy) -> None:
    """Computation does not wait for a copy back; another stream does."""
    call_on_another_stream(copy, "CopyStreams.send")


@mutant("graph.streams", "saving_on_cpu", "pinned_copies_do_not_race")
def gives_away_what_is_being_copied(copy: Copy) -> None:
    """The memory of a snapshot is given away while it is being copied."""

    def unrecorded(source: torch.Tensor) -> Any:
        taken: Any = source.clone(memory_format=torch.contiguous_format)
        taken.record_stream = lambda _: None
        return taken

    change_snapshots(copy, unrecorded)


@mutant("graph.streams", "saving_on_cpu", "a_change_after_moving_gives_no_wrong_gradient")
def copies_what_is_changed_meanwhile(copy: Copy) -> None:
    """A copy out reads the tensor itself, which may be changed at once."""
    change_snapshots(copy, lambda source: source)


@mutant("graph.streams", "saving_on_cpu", "pinned_copies_block_nobody")
def waits_for_the_way_out(copy: Copy) -> None:
    """The host waits for a copy out."""
    copy.replace("graph.streams", "CopyStreams.fetch", lambda self, source: (source.cpu(), self.module.Event()))
