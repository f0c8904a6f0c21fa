"""Faults of the nested checkpoint that laws of the family errors must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import compare_versions_alone_if, forget_change, forget_changes, set_version
from conformance.mutants.mutant import Copy, mutant
from impls.nested.user_hooks import ROUTES

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def _forget_changes_if(copy: Copy, forgotten: Callable[[Any, Any], bool]) -> None:
    """Overlook that a saved tensor was changed, where ``forgotten`` says so of a region and a slot that backward unpacks."""

    def unpack(self: Any, slot: Any) -> None:
        if forgotten(self, slot):
            forget_change(slot)

    copy.call_before("nested.region", "Region.unpack", unpack)


def _recomputed_at_the_versions_of_forward(copy: Copy) -> None:
    def run(values: Any, self: Any, *_: Any) -> None:
        for index, tensor in values.items():
            set_version(tensor, self.slots[index][2][3])

    copy.call_after("nested.recomputation", "Recomputation.run", run)


def _forgive_if(copy: Copy, forgiven: Callable[[Any, Any], bool]) -> None:
    """Overlook what is wrong with a recomputation, where ``forgiven`` says so of it and of what it recomputed."""

    def run(values: Any, self: Any, *_: Any) -> None:
        if forgiven(self, values):
            self.mismatch = None

    copy.call_after("nested.recomputation", "Recomputation.run", run)


def _look_at(copy: Copy, *names: str) -> None:
    """Look at other attributes of saved tensors."""
    copy.replace("tensors.versions", "look", attrgetter(*names))


def _origins_if(copy: Copy, wanted: Callable[[int], bool]) -> None:
    """Let a recomputation know the origins alone whose index is ``wanted``."""

    def change(given: dict[str, Any]) -> None:
        given["outside"] = {index: one for index, one in given["outside"].items() if wanted(index)}

    copy.change_arguments("nested.recomputation", "Recomputation.__init__", change)


def _renew_versions(inputs: Any) -> None:
    """Take the versions that the arguments of a region have now for those that they had at the call."""
    followed: Any = getattr(inputs, "counters", None) or getattr(inputs, "tensors", ())
    inputs.versions = [one._version for one in followed]


# What can go wrong where PyTorch's policies ask for hooks, which they do from torch 2.14 on.
if ROUTES:

    @mutant("nested.user_hooks", "errors", "a_policy_takes_no_hooks_for_the_users")
    def shows_a_policy_its_own_hooks(copy: Copy) -> None:
        """The hooks of a region do not have the mark by which a policy knows them."""
        copy.replace("nested.user_hooks", "_Marked._checkpoint_internal", False)

    @mutant("nested.user_hooks", "errors", "hooks_get_what_a_policy_keeps_if_asked_to")
    def hides_the_users_hooks_from_a_policy(copy: Copy) -> None:
        """A policy that asks for the user's hooks is told that there are none."""
        copy.replace("nested.user_hooks", "_Marked._user_hooks", None)


@mutant("nested.region", "errors", "changed_outputs")
def overlooks_changes_since_forward(copy: Copy) -> None:
    """What follows the version of a saved tensor stays at the version it had when it was saved."""
    copy.replace("nested.region", "counter", lambda tensor: SimpleNamespace(_version=tensor._version), only_here=True)


@mutant("nested.recomputation", "errors", "gradients_beside_a_changed_weight")
def compares_no_versions_when_it_recomputes(copy: Copy) -> None:
    """Versions of tensors in forward and in recomputation are not compared."""
    copy.replace("nested.recomputation", "Recomputation.same_version", lambda *_: None)


@mutant("nested.region", "errors", "corruption_by_the_recomputation_is_reported")
def lets_the_recomputation_corrupt_what_it_saved(copy: Copy) -> None:
    """A recomputed tensor that the recomputation itself has changed in place is handed to backward."""
    _recomputed_at_the_versions_of_forward(copy)


@mutant("nested.recomputation", "errors", "missing_tensors_are_reported_in_any_case")
def brings_what_it_has_when_tensors_are_missing(copy: Copy) -> None:
    """Without the determinism check, a recomputation that saves too few tensors is fine as long as it saves some."""
    _forgive_if(copy, lambda run, values: bool(values) and not run.stopped and not run.check)


@mutant("nested.inputs", "errors", "a_function_that_changes_its_argument")
def lets_an_input_be_changed(copy: Copy) -> None:
    """That forward has changed an input in place is forgotten as forward ends."""
    for kind in ("Held", "Inputs"):
        copy.call_after("nested.inputs", f"{kind}.end", lambda _, self: _renew_versions(self))


@mutant("tensors.packed", "errors", "hooks_that_copy_after_changes")
def expects_versions_of_copies(copy: Copy) -> None:
    """A copy that hooks bring back does not get the version of the tensor that it is a copy of."""
    copy.change_arguments("tensors.packed", "Packed.unpack", lambda given: given.update(version=None))


@mutant("nested.recomputation", "errors", "other_saved_tensors_are_reported")
def compares_no_metadata(copy: Copy) -> None:
    """Of saved tensors, nothing but the version is compared."""
    compare_versions_alone_if(copy, lambda *_: True)


@mutant("tensors.versions", "errors", "other_saved_tensors_are_reported")
def compares_no_dtypes(copy: Copy) -> None:
    """A saved tensor may come back with another dtype."""
    _look_at(copy, "shape", "layout", "device", "_version", "requires_grad", "is_leaf")


@mutant("tensors.versions", "errors", "other_saved_tensors_are_reported", profile="default")
def compares_ranks_instead_of_shapes(copy: Copy) -> None:
    """A saved tensor may come back with another shape that has as many dimensions."""
    _look_at(copy, "names", "dtype", "device", "_version", "requires_grad", "is_leaf")


@mutant("nested.recomputation", "errors", "more_saved_tensors_are_reported")
def allows_one_tensor_more_or_less(copy: Copy) -> None:
    """A recomputation may save one tensor more or less than forward, if it brings what is needed."""
    _forgive_if(copy, lambda run, _: not run.stopped and run.count > run.last and abs(run.count - run.known) == 1)


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def ignores_a_mismatch(copy: Copy) -> None:
    """What is wrong with a recomputation is found, and not reported."""
    _forgive_if(copy, lambda *_: True)


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def says_nothing_when_it_refuses(copy: Copy) -> None:
    """The error has no message."""
    copy.raise_instead("nested.region", "Region.refuse", copy["nested.region"].CheckpointError)


@mutant("nested.region", "errors", "changed_outputs")
def names_nothing_when_it_refuses(copy: Copy) -> None:
    """The message says neither which region is meant nor what is wrong."""
    error = copy["nested.region"].CheckpointError
    copy.raise_instead("nested.region", "Region.refuse", lambda: error("something about this region is not as it should be"))


@mutant("nested.region", "errors", "missing_tensors_are_reported_in_any_case")
def speaks_of_shapes_when_it_refuses(copy: Copy) -> None:
    """The error is of the kind that an operator raises for shapes that do not fit."""
    message = "The size of tensor a (3) must match the size of tensor b (2)"
    copy.raise_instead("nested.region", "Region.refuse", lambda: RuntimeError(message))


@mutant("nested.api", "errors", "wrong_arguments_are_refused")
def does_not_name_an_option(copy: Copy) -> None:
    """The error about a wrong determinism_check does not say which option is wrong."""

    def validate(function: Any, context_fn: Any, check: Any, kwargs: Any) -> None:
        if check not in ("default", "none"):
            raise ValueError(f"{check!r} is not accepted; it must be 'default' or 'none'")

    copy.call_before("nested.api", "_validate", validate)


@mutant("nested.api", "errors", "wrong_arguments_are_refused")
def takes_any_determinism_check(copy: Copy) -> None:
    """The value of determinism_check is not validated."""
    copy.change_arguments("nested.api", "_validate", lambda given: given.update(determinism_check="default"))


@mutant("nested.api", "errors", "the_determinism_check_can_be_switched_off")
def checks_even_if_told_not_to(copy: Copy) -> None:
    """The determinism check is always on."""
    copy.change_arguments("nested.api", "_run", lambda given: given.update(determinism_check="default"))


@mutant("nested.api", "errors", "a_context_that_swallows_is_refused")
def swallows_what_its_context_swallows(copy: Copy) -> None:
    """A region whose forward context swallowed an exception counts as complete, and returns None."""
    copy.set_before("nested.region", "Region.end", complete=lambda _: True)


@mutant("nested.recomputation", "errors", "selective_checkpointing")
def enters_no_context_when_it_recomputes(copy: Copy) -> None:
    """The recomputation context of context_fn is not entered."""
    nothing = copy["nested.recomputation"].NOTHING
    copy.change_arguments("nested.recomputation", "Recomputation.run", lambda given: given.update(context=nothing))


@mutant("nested.api", "errors", "contexts_are_entered_once_for_each_run")
def enters_no_context_in_forward(copy: Copy) -> None:
    """The forward context of context_fn is not entered."""

    def change(given: dict[str, Any]) -> None:
        contexts = given["context_fn"]
        given["context_fn"] = lambda: (copy["nested.api"].NOTHING, contexts()[1])

    copy.change_arguments("nested.api", "_run", change)


@mutant("nested.recomputation", "errors", "a_function_runs_inside_of_its_context")
def shows_the_stop_to_its_context(copy: Copy) -> None:
    """What ends a recomputation early passes through the context of context_fn."""
    stop = copy["nested.recomputation"].Stop

    @contextmanager
    def shown(run: Any, context: AbstractContextManager[Any]) -> Iterator[None]:
        try:
            with context:
                yield
                if run.stopped:
                    raise stop
        except stop:
            pass

    def change(given: dict[str, Any]) -> None:
        given["context"] = shown(given["self"], given["context"])

    copy.change_arguments("nested.recomputation", "Recomputation.run", change)


@mutant("nested.api", "errors", "a_function_runs_inside_of_its_context")
def enters_no_context_without_grad(copy: Copy) -> None:
    """Where there is nothing to differentiate, the forward context of context_fn is not entered."""

    def change(given: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            given["context_fn"] = copy["nested.api"].noop_context_fn

    copy.change_arguments("nested.api", "_run", change)


@mutant("nested.recomputation", "errors", "except_exception_does_not_catch_the_stop")
def stop_is_a_runtime_error(copy: Copy) -> None:
    """What ends a recomputation early is a RuntimeError."""
    copy.replace("nested.recomputation", "Stop", type("Stop", (RuntimeError,), {}))


@mutant("nested.recomputation", "errors", "swallowing_the_stop_changes_no_gradient")
def forgets_a_stop_that_was_swallowed(copy: Copy) -> None:
    """A recomputation does not remember that it was to end."""

    def stop(there: Any, self: Any, mismatch: str | None = None) -> None:
        try:
            there(self, mismatch)
        finally:
            self.stopped = False

    copy.call_instead("nested.recomputation", "Recomputation.stop", stop)


@mutant("nested.region", "errors", "context_managers_without_finally")
def stops_early_inside_in_any_case(copy: Copy) -> None:
    """A region inside another one stops early even if told not to."""

    def end(self: Any, output: Any) -> None:
        self.early_stop = self.early_stop or self.enclosing is not None

    copy.call_before("nested.region", "Region.end", end)


@mutant("nested.region", "errors", "weights_changed_before_backward")
def notes_versions_when_backward_asks(copy: Copy) -> None:
    """Versions of all saved tensors are noted as backward unpacks the first one."""
    copy.call_before("nested.region", "Region.unpack", lambda self, _: forget_changes(self))


@mutant("nested.inputs", "errors", "changed_arguments_that_nothing_saved")
def does_not_watch_keyword_arguments(copy: Copy) -> None:
    """Changes to tensors that were passed by keyword are not seen."""

    def init(there: Any, self: Any, args: Any, kwargs: Any) -> None:
        there(self, args, {})
        self.kwargs = kwargs

    copy.call_instead("nested.inputs", "Held.__init__", init)


@mutant("nested.inputs", "errors", "changed_arguments_that_nothing_saved")
def does_not_watch_tensors_of_other_classes(copy: Copy) -> None:
    """Arguments of a subclass of Tensor are taken for objects that are no tensors."""

    def take(there: Any, self: Any, value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) and type(value) not in _ORDINARY else there(self, value)

    copy.call_instead("nested.inputs", "Inputs._take", take)


@mutant("nested.inputs", "errors", "hooks_around_do_not_hide_changes")
def follows_what_the_hooks_bring_back(copy: Copy) -> None:
    """Where hooks are around, the version of an input is followed by a copy of it."""
    copy.call_instead("nested.inputs", "counter", lambda counter, tensor: counter(tensor.clone()), only_here=True)


@mutant("nested.region", "errors", "changed_arguments_that_nothing_saved")
def watches_arguments_up_to_the_first_backward(copy: Copy) -> None:
    """In a second backward, arguments count as unchanged."""

    def recompute(self: Any, task: int, slot: Any) -> None:
        if self.values:
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
                forget_change(slot)

    copy.call_before("nested.region", "Region.unpack", unpack)


@mutant("nested.region", "errors", "weights_changed_during_backward")
def notes_versions_when_it_recomputes(copy: Copy) -> None:
    """Versions of all saved tensors are noted as the recomputation begins."""
    copy.call_before("nested.region", "Region.recompute", lambda self, *_: forget_changes(self))


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def forgives_a_mismatch_the_second_time(copy: Copy) -> None:
    """A region refuses once, and goes on with what it has when it is asked again."""

    def refuse(there: Any, self: Any, *args: Any) -> None:
        if "told" not in vars(self):
            self.told = True
            there(self, *args)

    copy.call_instead("nested.region", "Region.refuse", refuse)


@mutant("nested.region", "errors", "changed_outputs")
def tells_of_a_changed_output_once(copy: Copy) -> None:
    """That a saved tensor was changed is an error the first time that it is unpacked, and not the second time."""

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
        "Recomputation.same_version",
        lambda there, self, *args: there(self, *args) if self.check else None,
    )


@mutant("nested.inputs", "errors", "changes_between_forward_and_backward")
def watches_the_first_argument_alone(copy: Copy) -> None:
    """Of the arguments, only the first may not be changed."""
    copy.change_result("nested.inputs", "Held.changed", lambda found, _: 0 if found == 0 else None)


@mutant("nested.recomputation", "errors", "context_managers_inside_are_left")
def stops_again_in_what_is_being_left(copy: Copy) -> None:
    """What ends a recomputation early is raised once more for each tensor that is saved afterwards."""
    copy.set_before("nested.recomputation", "Recomputation.stop", stopped=lambda _: False)


@mutant("nested.region", "errors", "hooks_that_copy_after_changes")
def shares_looks_but_for_versions(copy: Copy) -> None:
    """Neighbours that differ in their versions alone share one look, with the version of the first."""

    class Alike(tuple[Any, ...]):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, tuple) and self[:3] == other[:3]

    copy.change_result("nested.region", "look", lambda look, _: Alike(look), only_here=True)


@mutant("nested.region", "errors", "gradients_beside_a_changed_weight")
def tells_the_parent_alone_what_it_saves(copy: Copy) -> None:
    """Regions further out do not get to know what a region saves."""

    def saw(self: Any, tensor: torch.Tensor, known: Any) -> None:
        self.inside.append(tensor._version)
        if known is not None:
            self.outside[-len(self.inside)] = known

    copy.replace("nested.region", "Region.saw", saw)


@mutant("nested.recomputation", "errors", "gradients_beside_a_changed_weight")
def does_not_compare_versions_inside(copy: Copy) -> None:
    """Versions of what regions inside save are not compared when a region is recomputed."""
    copy.set_before("nested.recomputation", "Recomputation.saw", inside=lambda _: ())


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
    _forget_changes_if(copy, lambda self, _: bool(self.values))


@mutant("nested.region", "errors", "a_changed_tensor_of_a_subclass")
def forgets_versions_of_subclasses_when_it_recomputes(copy: Copy) -> None:
    """Versions of saved tensors of subclasses are noted as the recomputation begins."""

    def recompute(self: Any, *_: Any) -> None:
        for slot in self.slots:
            if not isinstance(slot[1], torch.Tensor):
                forget_change(slot)

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("nested.recomputation", "errors", "scripted_functions")
def lets_interpreters_rename_the_stop(copy: Copy) -> None:
    """An exception that an interpreter makes of the one that ends a recomputation is raised."""

    def collect(there: Any, self: Any, function: Callable[[], Any]) -> None:
        raised: list[Exception] = []

        def noting() -> None:
            try:
                function()
            except Exception as error:
                raised.append(error)
                raise

        there(self, noting)
        if raised:
            raise raised[0]

    copy.call_instead("nested.recomputation", "Recomputation._collect", collect)


@mutant("nested.recomputation", "errors", "weights_and_buffers_that_are_replaced")
def does_not_look_where_leaves_are(copy: Copy) -> None:
    """That a tensor from outside was replaced is not seen where the region itself saves it."""
    _origins_if(copy, lambda index: index < 0)


@mutant("nested.recomputation", "errors", "weights_and_buffers_that_are_replaced", profile="default")
def does_not_look_where_leaves_inside_are(copy: Copy) -> None:
    """That a tensor from outside was replaced is not seen where a region inside saves it."""
    _origins_if(copy, lambda index: index >= 0)


@mutant("nested.region", "errors", "names_that_are_bound_late")
def looks_where_leaves_are_and_not_results(copy: Copy) -> None:
    """Results that were computed before the region are taken for its own, and not looked for."""
    copy.set_after("nested.region", "Region.__init__", begun=lambda _: -1)


@mutant("nested.region", "errors", "weights_and_buffers_that_are_replaced")
def takes_views_for_wholes(copy: Copy) -> None:
    """A saved view is not looked for as a part of its base."""
    copy.change_arguments("nested.outside_tensors", "origin", lambda given: given.update(whole=given["tensor"]))


@mutant("nested.outside_tensors", "errors", "weights_and_buffers_that_are_replaced")
def keeps_parameters_alone(copy: Copy) -> None:
    """The storages of tensors from outside that are no parameters are not kept for comparison."""
    copy.change_arguments("nested.outside_tensors", "keep", lambda given: given.update(watched=True))


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def takes_what_is_elsewhere_for_something_else(copy: Copy) -> None:
    """A tensor in the place of another one counts as different even if its values are the same."""
    copy.replace("nested.outside_tensors", "_equal", lambda *_: False)


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def keeps_what_was_swapped_in_forward(copy: Copy) -> None:
    """Of a tensor that got another storage in forward, that one is kept for comparison."""

    def present(self: Any) -> Any:
        whole = self.whole()
        if whole is not None and self.layout is None:
            self.layout = copy["nested.outside_tensors"]._layout(whole)
        return None if whole is None else whole.untyped_storage()

    copy.replace("nested.outside_tensors", "Origin.present", present)


@mutant("nested.outside_tensors", "lifetimes", "nothing_of_the_inside_is_alive_after_forward")
def keeps_the_leaves_that_it_makes(copy: Copy) -> None:
    """What a region saves and may be from outside is referred to strongly."""
    copy.replace("nested.outside_tensors", "_reference", lambda whole: lambda: whole)


@mutant("nested.outside_tensors", "errors", "regions_inside_a_functional_call")
def takes_what_looks_alike_for_the_same(copy: Copy) -> None:
    """A tensor that stands in for another one is never noticed."""
    copy.replace("nested.outside_tensors", "replaced", lambda *_: False)


@mutant("nested.recomputation", "errors", "scripted_functions_that_specialise")
def compares_versions_alone(copy: Copy) -> None:
    """Of what a recomputation saves, nothing but the version is compared with what forward saved."""

    def compare(self: Any, index: int, tensor: Any) -> None:
        self.same_version(tensor, self.slots[index][2][3])

    copy.replace("nested.recomputation", "Recomputation.compare", compare)
    copy.replace("nested.outside_tensors", "replaced", lambda *_: False)


@mutant("nested.outside_tensors", "errors", "names_that_are_bound_late")
def compares_addresses_alone(copy: Copy) -> None:
    """A tensor that begins where another one did is taken for it, transposed or not."""
    copy.replace("nested.outside_tensors", "Origin.moved", lambda self, tensor: self.address != tensor.data_ptr())


@mutant("nested.outside_tensors", "errors", "names_that_are_bound_late")
def forgets_what_is_returned(copy: Copy) -> None:
    """What the function returns of what it read is compared with nothing."""

    def keep(_: None, origins: Any, *__: Any, **___: Any) -> None:
        for one in origins:
            one.whole = lambda: None

    copy.call_after("nested.outside_tensors", "keep", keep)


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def takes_a_shape_for_another(copy: Copy) -> None:
    """How a tensor lay in memory is read from what it was given in forward."""

    def present(self: Any) -> None:
        whole = self.whole()
        self.layout = self.layout or (None if whole is None else copy["nested.outside_tensors"]._layout(whole))

    copy.call_before("nested.outside_tensors", "Origin.present", present)


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def compares_only_what_is_computed_with(copy: Copy) -> None:
    """Numbers that torch cannot compare, as it only stores them, are an error."""
    copy.replace("nested.outside_tensors", "_BITS", {})
