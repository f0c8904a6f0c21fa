"""Faults of the graph tools that laws of the family mutation must catch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def overlook(copy: Copy, overlooked: Callable[[torch.Tensor], bool]) -> None:
    """Have some of the tensors that operators write to overlooked."""
    copy.change_result(
        "graph.mutation", "_written_tensors", lambda result, *_: (tensor for tensor in result if not overlooked(tensor))
    )


def overlook_operators(copy: Copy, overlooked: Callable[[Any, list[torch.Tensor]], bool]) -> None:
    """Have some operators taken for ones that write to nothing."""

    def written(there: Any, func: Any, *args: Any) -> list[torch.Tensor]:
        found = list(there(func, *args))
        return [] if overlooked(func, found) else found

    copy.call_instead("graph.mutation", "_written_tensors", written)


def overlook_arguments(copy: Copy, left: Callable[[Any], Any]) -> None:
    """Have written tensors searched only in what is left of each positional argument."""
    copy.call_instead(
        "graph.mutation",
        "_written_tensors",
        lambda there, func, args, kwargs: there(func, [left(each) for each in args], kwargs),
    )


@mutant("graph.mutation", "mutation", "an_out_that_grows")
def looks_at_an_out_before_it_grows(copy: Copy) -> None:
    """An `out` argument that an operator resizes is not seen to reach further."""
    copy.replace("graph.mutation", "_has_out", lambda _: False)


@mutant("graph.mutation", "mutation", "statistics_changed_before_backward")
def overlooks_what_batch_norm_writes(copy: Copy) -> None:
    """Writes that are not in an operator's schema are not seen."""
    copy.replace("graph.mutation", "_BATCH_NORMS", {})


@mutant("graph.mutation", "mutation", "statistics_changed_before_backward")
def overlooks_operators_that_update_statistics(copy: Copy) -> None:
    """Running statistics are taken for changed by batch norm alone, not by operators that only update them."""
    copy.wrap("graph.mutation", "_BATCH_NORMS", lambda table: {name: of for name, of in table.items() if of[1] is not None})


@mutant("graph.mutation", "mutation", "noise_that_is_drawn_once_it_is_saved")
def takes_drawn_noise_for_a_change(copy: Copy) -> None:
    """A buffer that an operator has saved is cloned before the operator writes it."""
    copy.replace("graph.mutation", "_LATE_WRITES", {})


@mutant("graph.mutation", "mutation", "a_saved_tensor_changed_by_a_method")
def clones_nothing(copy: Copy) -> None:
    """No write is seen."""
    overlook(copy, lambda _: True)


@mutant("graph.storage_spans", "mutation", "a_saved_tensor_changed_through_a_view")
def finds_tensors_by_where_they_begin(copy: Copy) -> None:
    """A change is seen only through a tensor that begins where the saved one does."""
    copy.replace("graph.storage_spans", "Span.overlaps", lambda one, other: one[:2] == other[:2])


@mutant("graph.storage_spans", "mutation", "a_saved_view_changed_through_its_base")
def finds_views_by_where_they_end(copy: Copy) -> None:
    """A change is seen only through a tensor that begins and ends where the saved one does."""
    copy.replace("graph.storage_spans", "Span.overlaps", lambda one, other: one == other)


@mutant("graph.storage_spans", "mutation", "a_change_beside_a_saved_view_clones_nothing")
def clones_whatever_shares_memory(copy: Copy) -> None:
    """A saved tensor is cloned before a change anywhere in its storage."""
    copy.replace("graph.storage_spans", "Span.overlaps", lambda one, other: one.storage == other.storage)


@mutant("graph.mutation", "mutation", "saved_tensors_in_a_list")
def overlooks_lists(copy: Copy) -> None:
    """Tensors in a list are not seen to be written to."""
    overlook_arguments(copy, lambda value: None if isinstance(value, list | tuple) else value)


@mutant("graph.mutation", "mutation", "views_of_saved_tensors_in_a_list")
def overlooks_views_in_lists(copy: Copy) -> None:
    """Views in a list are not seen to be written to."""

    def left(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [each for each in value if not (isinstance(each, torch.Tensor) and each._is_view())]

    overlook_arguments(copy, left)


@mutant("graph.mutation", "mutation", "a_saved_tensor_as_out")
def overlooks_out(copy: Copy) -> None:
    """Tensors that are given by name are not seen to be written to."""
    copy.call_instead("graph.mutation", "_written_tensors", lambda there, func, args, _: there(func, args, {}))


@mutant("graph.mutation", "mutation", "saved_tensors_as_several_outs")
def looks_for_one_out(copy: Copy) -> None:
    """Of tensors that are given by name, only one named `out` is seen to be written to."""
    copy.call_instead(
        "graph.mutation", "_written_tensors", lambda there, func, args, kwargs: there(func, args, {"out": kwargs.get("out")})
    )


@mutant("graph.mutation", "mutation", "counts_of_clones_are_exact")
def counts_every_save(copy: Copy) -> None:
    """A tensor that is saved twice is cloned twice."""
    copy.replace("graph.mutation", "_is_same_place", lambda *_: False)


@mutant("graph.mutation", "mutation", "counts_of_clones_are_exact_through_views")
def clones_what_nothing_writes(copy: Copy) -> None:
    """An operator that gives a view of a tensor is taken for one that writes to it."""

    def written(there: Any, func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
        yield from there(func, args, kwargs)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and not argument.alias_info.is_write:
                yield from (each for each in [value] if isinstance(each, torch.Tensor))

    copy.call_instead("graph.mutation", "_written_tensors", written)


@mutant("graph.mutation", "mutation", "changes_between_backward_passes")
def gives_a_clone_once(copy: Copy) -> None:
    """A clone is let go when backward has got it."""

    def unpack(tensor: Any, self: Any, handle: Any) -> None:
        self.cloned.pop(handle, None)

    copy.call_after("graph.mutation", "SavedTensors.unpack", unpack)


@mutant("graph.mutation", "mutation", "tensors_changed_in_forward", profile="default")
def clones_too_late(copy: Copy) -> None:
    """What is kept as a clone has the values after the change."""

    def replace(there: Any, self: Any, handle: Any, _: object) -> None:
        there(self, handle, self.original[handle])
        handle.pending_writes = 1

    copy.call_instead("graph.mutation", "SavedTensors.replace", replace)


@mutant("graph.mutation", "mutation", "tensors_changed_after_forward")
def clones_results_alone(copy: Copy) -> None:
    """A saved leaf is not cloned before a change that the context has seen."""
    leaves: weakref.WeakSet[Any] = weakref.WeakSet()

    def pack(handle: Any, self: Any, tensor: torch.Tensor) -> None:
        if tensor.is_leaf:
            leaves.add(handle)

    def replace(there: Any, self: Any, handle: Any, clone: Any) -> None:
        self.expect_version_change(handle, 1) if handle in leaves else there(self, handle, clone)

    copy.call_after("graph.mutation", "SavedTensors.pack", pack)
    copy.call_instead("graph.mutation", "SavedTensors.replace", replace)


@mutant("graph.mutation", "mutation", "a_saved_index_or_condition_changed")
def overlooks_integers(copy: Copy) -> None:
    """A write to integers or truth values is not seen."""
    overlook(copy, lambda tensor: not tensor.is_floating_point())


@mutant("graph.mutation", "mutation", "changes_through_data")
def overlooks_zero(copy: Copy) -> None:
    """A write by `zero_` is not seen."""
    overlook_operators(copy, lambda func, _: func is torch.ops.aten.zero_.default)


@mutant("graph.mutation", "mutation", "weights_stepped_before_backward_where_allowed")
def overlooks_optimizers(copy: Copy) -> None:
    """Writes are not seen that are made as optimizers make them."""
    overlook_operators(copy, lambda func, written: len(written) > 1 or "addc" in func.__name__ or not torch.is_grad_enabled())


@mutant("graph.mutation", "mutation", "nothing_changes_where_nothing_is_changed")
def refuses_what_is_not_changed(copy: Copy) -> None:
    """A tensor that was changed in place before it was saved counts as changed since."""
    copy.replace("graph.mutation", "SavedTensors.untouched", lambda _, handle: handle.version == 0)


@mutant("graph.mutation", "mutation", "contexts_cannot_be_nested")
def lets_contexts_nest(copy: Copy) -> None:
    """A context inside another one is not refused."""
    copy.replace("graph.mutation", "dispatch_modes", list)


@mutant("graph.mutation", "mutation", "backward_after_the_context_is_refused")
def knows_no_end(copy: Copy) -> None:
    """A context that was left goes on to give what it saved."""
    copy.replace("graph.mutation", "SavedTensors.close", lambda _: None)


@mutant("graph.mutation", "mutation", "a_context_is_over_after_an_error")
def goes_on_after_an_error(copy: Copy) -> None:
    """Hooks of a context that is left through an error stay on."""

    @contextmanager
    def pushed(pack: Any, unpack: Any) -> Iterator[None]:
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
        yield
        torch._C._autograd._pop_saved_tensors_default_hooks()

    copy.replace("graph.hooks", "push_methods", pushed)


@mutant("graph.mutation", "mutation", "one_context_after_another")
def has_one_context_for_all(copy: Copy) -> None:
    """All contexts are the first one, which is over when it is left."""
    copy.wrap("graph.mutation", "SavedTensors", functools.cache)


@mutant("graph.mutation", "mutation", "contexts_of_threads_are_independent")
def has_one_context_for_all_threads(copy: Copy) -> None:
    """When a context is left, the last one that was entered on any thread is over."""
    entered: list[Any] = []

    def made(_: None, self: Any) -> None:
        entered[:] = [self]

    copy.call_after("graph.mutation", "SavedTensors.__init__", made)
    copy.call_instead("graph.mutation", "SavedTensors.close", lambda there, _: there(entered[0]))


@mutant("graph.mutation", "mutation", "originals_and_clones_die_with_their_graph")
def owns_results_with_their_graph(copy: Copy) -> None:
    """A result that its own operator saves owns itself through its graph."""

    def pack(handle: Any, self: Any, tensor: torch.Tensor) -> None:
        self.original[handle] = tensor

    copy.call_after("graph.mutation", "SavedTensors.pack", pack)


@mutant("graph.mutation", "mutation", "a_context_leaves_nothing_behind")
def never_forgets_a_storage(copy: Copy) -> None:
    """An entry stays for each storage that was read, when all who read it are gone."""
    copy.replace("graph.mutation", "_forgetting", lambda readers, number: lambda dead: readers.get(number, set()).discard(dead))


@mutant("graph.mutation", "mutation", "changes_beside_checkpointed_regions")
def clones_what_is_beside(copy: Copy) -> None:
    """Ones come back in the place of what was cloned."""
    copy.call_instead(
        "graph.mutation",
        "SavedTensors.unpack",
        (lambda there, self, handle: torch.ones_like(there(self, handle)) if handle in self.cloned else there(self, handle)),
    )


@mutant("graph.storage_spans", "mutation", "a_sparse_tensor_changed_by_its_values")
def overlooks_compressed_memory(copy: Copy) -> None:
    """Tensors of compressed sparse layouts are taken for ones that have no memory."""
    copy.replace("graph.storage_spans", "_COMPRESSED", {})


@mutant("graph.mutation", "mutation", "a_change_that_the_context_does_not_see")
def does_not_look_at_clones(copy: Copy) -> None:
    """That a clone was changed in backward is not noticed."""
    copy.call_instead(
        "graph.mutation", "SavedTensors.untouched", lambda there, self, handle: handle in self.cloned or there(self, handle)
    )


@mutant("graph.mutation", "mutation", "a_change_that_the_context_does_not_see")
def expects_a_change_too_many(copy: Copy) -> None:
    """One more change than the context has seen is taken for expected."""

    def untouched(there: Any, self: Any, handle: Any) -> Any:
        handle.pending_writes += 1
        unchanged = there(self, handle)
        handle.pending_writes -= 1
        return unchanged

    copy.call_instead("graph.mutation", "SavedTensors.untouched", untouched)


@mutant("graph.mutation", "mutation", "a_change_that_the_context_does_not_see")
def takes_what_was_changed_unseen_for_the_same(copy: Copy) -> None:
    """A tensor that is saved again is taken for the same, also after a change that the context has not seen."""
    mutation = copy["graph.mutation"]

    def pack(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        new = there(self, tensor)
        before = (one for one in list(self.original) if one.spans == new.spans)
        return next((one for one in before if mutation._is_same_place(one.place, new.place)), new)

    copy.call_instead("graph.mutation", "SavedTensors.pack", pack)


@mutant("graph.mutation", "mutation", "saved_tensors_changed_in_inference_mode")
def clones_for_inference(copy: Copy) -> None:
    """A clone that is made in inference mode cannot be used in backward."""
    copy.replace(
        "graph.mutation", "SavedTensors.clone", lambda self, handle: copy["graph.mutation"].replica(self.original[handle])
    )


@mutant("graph.mutation", "mutation", "a_saved_tensor_that_is_given_other_memory")
def forgets_who_has_other_memory(copy: Copy) -> None:
    """A write to a tensor that was given other memory is taken for one to what was saved."""
    copy.replace("graph.mutation", "SavedTensors.expect_version_changes", lambda *_: None)


@mutant("graph.mutation", "mutation", "a_saved_tensor_that_is_given_other_memory")
def counts_for_all_that_was_parted(copy: Copy) -> None:
    """A write counts for all saved tensors except those with the version of the written tensor."""

    def spare_parted(self: Any, written: list[torch.Tensor]) -> None:
        versions = {tensor._version for tensor in written if not tensor.is_inference()}
        for handle in list(self.original) if self.has_new_storage else ():
            if self.original[handle]._version not in versions:
                self.expect_version_change(handle, len(written))

    copy.replace("graph.mutation", "SavedTensors.expect_version_changes", spare_parted)


@mutant("graph.mutation", "mutation", "a_saved_tensor_that_is_given_other_memory")
def sees_no_other_memory_before_it_saves(copy: Copy) -> None:
    """That a tensor is given other memory is not seen while nothing is saved."""

    def dispatch(there: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return there(self, func, types, args, kwargs) if self.saved.readers else func(*args, **(kwargs or {}))

    copy.call_instead("graph.mutation", "_CloneFirst.__torch_dispatch__", dispatch)


@mutant("graph.mutation", "mutation", "what_is_changed_in_a_list_is_saved_again")
def takes_what_was_changed_for_what_was_saved(copy: Copy) -> None:
    """A tensor that is saved again stands for what it was when it was saved first."""

    def replace(_: None, saved: Any, handle: Any, clone: torch.Tensor) -> None:
        saved.original[handle] = clone

    copy.call_after("graph.mutation", "SavedTensors.replace", replace)


@mutant("graph.mutation", "mutation", "what_is_changed_is_saved_again")
def finds_what_was_cloned_as_well(copy: Copy) -> None:
    """A tensor that is saved again gets the handle of a clone of what was in its place."""

    def pack(there: Any, saved: Any, tensor: torch.Tensor) -> Any:
        spans = copy["graph.storage_spans"].spans(tensor)
        return next((handle for handle in saved.cloned if handle.spans == spans), None) or there(saved, tensor)

    copy.call_instead("graph.mutation", "SavedTensors.pack", pack)
