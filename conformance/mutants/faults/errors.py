"""Faults of the nested checkpoint that laws of the family errors must catch."""

from __future__ import annotations

from typing import Any

from conformance.mutants.mutant import Copy, TextMutant, mutant
from impls.nested.user_hooks import ROUTES

# What can go wrong where PyTorch's policies ask for hooks, which they do from torch 2.14 on.
_ROUTED = (
    TextMutant("shows-a-policy-its-own-hooks", "errors", "a_policy_takes_no_hooks_for_the_users", "nested.user_hooks",
           "_checkpoint_internal = True", "_checkpoint_internal = False"),
    TextMutant("hides-the-users-hooks-from-a-policy", "errors", "hooks_get_what_a_policy_keeps_if_asked_to", "nested.user_hooks",
           "return self.__self__.around ", "return None "),
)  # fmt: skip

FAULTS = (
    *(_ROUTED if ROUTES else ()),
    TextMutant("overlooks-changes-since-forward", "errors", "changed_outputs", "nested.region", "if now != version:", "if False:"),
    TextMutant("compares-no-versions-when-it-recomputes", "errors", "gradients_beside_a_changed_weight", "nested.recomputation",
           "if tensor._version != version:", "if False:"),
    TextMutant("lets-the-recomputation-corrupt-what-it-saved", "errors", "corruption_by_the_recomputation_is_reported", "nested.region",
           "if tensor._version != version:", "if False:"),
    TextMutant("brings-what-it-has-when-tensors-are-missing", "errors", "missing_tensors_are_reported_in_any_case", "nested.recomputation",
           "len(values) < due", "not values"),
    TextMutant("lets-an-input-be-changed", "errors", "a_function_that_changes_its_argument", "nested.region", "if changed is not None:",
           "if False:"),
    TextMutant("expects-versions-of-copies", "errors", "hooks_that_copy_after_changes", "tensors.packed",
           "if version is not None and tensor._version != version:", "if False:"),
    TextMutant("compares-no-metadata", "errors", "other_saved_tensors_are_reported", "nested.recomputation",
           "if self.check and (self.wanted[index] is not None or others):", "if False:"),
    TextMutant("compares-no-dtypes", "errors", "other_saved_tensors_are_reported", "tensors.versions", "attrgetter(\"shape\", \"dtype\"",
           "attrgetter(\"shape\", \"layout\""),
    TextMutant("compares-ranks-instead-of-shapes", "errors", "other_saved_tensors_are_reported", "tensors.versions", "attrgetter(\"shape\"",
           "attrgetter(\"names\"", profile="default"),
    TextMutant("allows-one-tensor-more-or-less", "errors", "more_saved_tensors_are_reported", "nested.recomputation",
           "self.count != self.known", "abs(self.count - self.known) > 1"),
    TextMutant("ignores-a-mismatch", "errors", "other_saved_tensors_are_reported", "nested.region", "if run.mismatch is not None:",
           "if False:"),
    TextMutant("says-nothing-when-it-refuses", "errors", "other_saved_tensors_are_reported", "nested.region",
           "raise CheckpointError(message)", "raise CheckpointError()"),
    TextMutant("names-nothing-when-it-refuses", "errors", "changed_outputs", "nested.region", "raise CheckpointError(message)",
           "raise CheckpointError('something about this region is not as it should be')"),
    TextMutant("speaks-of-shapes-when-it-refuses", "errors", "missing_tensors_are_reported_in_any_case", "nested.region",
           "raise CheckpointError(message)",
           "raise RuntimeError('The size of tensor a (3) must match the size of tensor b (2)')"),
    TextMutant("does-not-name-an-option", "errors", "wrong_arguments_are_refused", "nested.api",
           "f\"determinism_check is {determinism_check!r}; it must be 'default' or 'none'\"",
           "f\"{determinism_check!r} is not accepted; it must be 'default' or 'none'\""),
    TextMutant("takes-any-determinism-check", "errors", "wrong_arguments_are_refused", "nested.api", "if determinism_check not in",
           "if False and determinism_check not in"),
    TextMutant("checks-even-if-told-not-to", "errors", "the_determinism_check_can_be_switched_off", "nested.api",
           "determinism_check == \"default\"", "True"),
    TextMutant("swallows-what-its-context-swallows", "errors", "a_context_that_swallows_is_refused", "nested.api",
           "if not region.complete:", "if False:"),
    TextMutant("enters-no-context-when-it-recomputes", "errors", "selective_checkpointing", "nested.recomputation",
           "with self.operators or NOTHING, context:", "with self.operators or NOTHING:"),
    TextMutant("enters-no-context-in-forward", "errors", "contexts_are_entered_once_for_each_run", "nested.api",
           "with region.operators or NOTHING, forward_context:", "with region.operators or NOTHING:"),
    TextMutant("shows-the-stop-to-its-context", "errors", "a_function_runs_inside_of_its_context", "nested.recomputation",
           "                with self.operators or NOTHING, context:\n                    self._collect(function)",
           "                try:\n                    with context:\n                        self._collect(function)\n"
           "                        if self.stopped:\n                            raise Stop\n"
           "                except Stop:\n                    pass"),
    TextMutant("enters-no-context-without-grad", "errors", "a_function_runs_inside_of_its_context", "nested.api",
           "        with forward_context:\n            return function(*args, **kwargs)\n",
           "        return function(*args, **kwargs)\n"),
    TextMutant("stop-is-a-runtime-error", "errors", "except_exception_does_not_catch_the_stop", "nested.recomputation",
           "class Stop(BaseException)", "class Stop(RuntimeError)"),
    TextMutant("forgets-a-stop-that-was-swallowed", "errors", "swallowing_the_stop_changes_no_gradient", "nested.recomputation",
           "self.stopped, self.mismatch = True, mismatch", "self.mismatch = mismatch"),
    TextMutant("stops-early-inside-in-any-case", "errors", "context_managers_without_finally", "nested.api",
           "region.early_stop = early_stop if override is None else override",
           "region.early_stop = (early_stop if override is None else override) or region.enclosing is not None"),
    TextMutant("notes-versions-when-backward-asks", "errors", "weights_changed_before_backward", "nested.region",
           "        index, follows, seen = slot\n",
           "        index, follows, seen = slot\n        for _, counts, at in self.slots:\n"
           "            torch._C._autograd._unsafe_set_version_counter((counts,), (at[3],))\n"),
    TextMutant("does-not-watch-keyword-arguments", "errors", "changed_arguments_that_nothing_saved", "nested.inputs",
           "[one for one in (*args, *kwargs.values()) if", "[one for one in args if"),
    TextMutant("does-not-watch-tensors-of-other-classes", "errors", "changed_arguments_that_nothing_saved", "nested.inputs",
           "if kind in _TENSORS or (kind not in _ATOMS and isinstance(value, torch.Tensor)):", "if kind in _TENSORS:"),
    TextMutant("follows-what-the-hooks-bring-back", "errors", "hooks_around_do_not_hide_changes", "nested.inputs",
           "self.counters.append(counter(tensor))", "self.counters.append(counter(tensor.clone()))"),
    TextMutant("watches-arguments-up-to-the-first-backward", "errors", "changed_arguments_that_nothing_saved", "nested.region",
           "changed = self.inputs.changed()", "changed = None if self.values else self.inputs.changed()"),
    TextMutant("takes-the-version-now-for-the-one-then", "errors", "changes_inside_after_saving", "nested.region", "version = seen[3]",
           "version = follows._version"),
    TextMutant("takes-one-change-for-an-optimizers-step", "errors", "changed_closure_tensors", "nested.region",
           "        index, follows, seen = slot\n",
           "        index, follows, seen = slot\n        for _, counts, at in self.slots:\n"
           "            if counts._version == at[3] + 1:\n"
           "                torch._C._autograd._unsafe_set_version_counter((counts,), (at[3],))\n"),
    TextMutant("notes-versions-when-it-recomputes", "errors", "weights_changed_during_backward", "nested.region",
           "        wanted = _in_graph(self.slots)\n",
           "        wanted = _in_graph(self.slots)\n        for _, counts, at in self.slots:\n"
           "            torch._C._autograd._unsafe_set_version_counter((counts,), (at[3],))\n"),
    TextMutant("forgives-a-mismatch-the-second-time", "errors", "other_saved_tensors_are_reported", "nested.region",
           "if run.mismatch is not None:", "if run.mismatch is not None and vars(self).setdefault('told', run) is run:"),
    TextMutant("tells-of-a-changed-output-once", "errors", "changed_outputs", "nested.region", "if now != version:",
           "if now != version and vars(self).setdefault('told', now) == now and not vars(self).pop('was', False):\n"
           "            self.was = True"),
    TextMutant("takes-versions-for-part-of-the-determinism-check", "errors", "changes_are_reported_in_any_case", "nested.region",
           "if now != version:", "if self.check and now != version:"),
    TextMutant("compares-versions-inside-as-part-of-the-determinism-check", "errors", "changes_are_reported_in_any_case",
           "nested.recomputation", "if tensor._version != version:", "if self.check and tensor._version != version:"),
    TextMutant("watches-the-first-argument-alone", "errors", "changes_between_forward_and_backward", "nested.inputs",
           "if now == self.versions:", "if now[:1] == (self.versions or [])[:1]:"),
    TextMutant("stops-again-in-what-is-being-left", "errors", "context_managers_inside_are_left", "nested.recomputation",
           "if not self.stopped:", "if True:"),
    TextMutant("shares-looks-but-for-versions", "errors", "hooks_that_copy_after_changes", "nested.region", "if seen == self.look:",
           "if self.look is not None and seen[:3] == self.look[:3]:"),
    TextMutant("tells-the-parent-alone-what-it-saves", "errors", "gradients_beside_a_changed_weight", "nested.region",
           "one.outside[-len(one.inside)] = known\n            one = one.enclosing\n",
           "one.outside[-len(one.inside)] = known\n            return\n"),
    TextMutant("does-not-compare-versions-inside", "errors", "gradients_beside_a_changed_weight", "nested.recomputation",
           "if index < len(self.inside):", "if False:"),
    TextMutant("follows-the-first-tensors-alone", "errors", "a_change_is_reported_however_late", "nested.region",
           "if now != version:", "if now != version and index < 40:"),
    TextMutant("counts-changes-in-three-bits", "errors", "a_change_is_reported_however_late", "nested.region",
           "if now != version:", "if now % 8 != version % 8:", profile="default"),
    TextMutant("compares-versions-up-to-the-first-backward", "errors", "changed_outputs", "nested.region", "if now != version:",
           "if now != version and not self.values:"),
    TextMutant("forgets-versions-of-subclasses-when-it-recomputes", "errors", "a_changed_tensor_of_a_subclass", "nested.region",
           "        wanted = _in_graph(self.slots)\n",
           "        wanted = _in_graph(self.slots)\n        for _, counts, at in self.slots:\n"
           "            if hasattr(counts, 'last'):\n"
           "                torch._C._autograd._unsafe_set_version_counter((counts.tensor(),), (at[3],))\n"),
    TextMutant("lets-interpreters-rename-the-stop", "errors", "scripted_functions", "nested.recomputation",
           "            if self.stopped:\n                return\n            raise", "            raise"),
    TextMutant("does-not-look-where-leaves-are", "errors", "weights_and_buffers_that_are_replaced", "nested.recomputation",
           "if known is not None and known.moved", "if False and known.moved"),
    TextMutant("does-not-look-where-leaves-inside-are", "errors", "weights_and_buffers_that_are_replaced", "nested.recomputation",
           "if before is not None and before.moved", "if False and before.moved", profile="default"),
    TextMutant("looks-where-leaves-are-and-not-results", "errors", "names_that_are_bound_late", "nested.region",
           "(node is None or node._sequence_nr() < self.begun)", "node is None"),
    TextMutant("takes-views-for-wholes", "errors", "weights_and_buffers_that_are_replaced", "nested.region",
           "origin(tensor, tensor if base is None else base, seen)", "origin(tensor, tensor, seen)"),
    TextMutant("keeps-parameters-alone", "errors", "weights_and_buffers_that_are_replaced", "nested.outside_tensors", "if watched:", "if True:"),
    TextMutant("takes-what-is-elsewhere-for-something-else", "errors", "other_tensors_with_the_same_values", "nested.outside_tensors",
           "return not _equal(", "return True or not _equal("),
    TextMutant("keeps-what-was-swapped-in-forward", "errors", "other_tensors_with_the_same_values", "nested.outside_tensors",
           ".itemsize == self.address", ".itemsize >= 0"),
    TextMutant("keeps-the-leaves-that-it-makes", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "nested.outside_tensors",
           "= _reference(whole)", "= lambda: whole"),
)  # fmt: skip


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

    def forgetting(keep: Any) -> Any:
        def kept(origins: Any, *args: Any, **kwargs: Any) -> None:
            keep(origins, *args, **kwargs)
            for one in origins:
                one.whole = lambda: None

        return kept

    copy.wrap("nested.outside_tensors", "keep", forgetting)


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def takes_a_shape_for_another(copy: Copy) -> None:
    """How a tensor lay in memory is read from what it was given in forward."""

    def without_shape(present: Any) -> Any:
        def stored(self: Any) -> Any:
            whole = self.whole()
            self.layout = self.layout or (None if whole is None else copy["nested.outside_tensors"]._layout(whole))
            return present(self)

        return stored

    copy.wrap("nested.outside_tensors", "Origin.present", without_shape)


@mutant("nested.outside_tensors", "errors", "other_tensors_with_the_same_values")
def compares_only_what_is_computed_with(copy: Copy) -> None:
    """Numbers that torch cannot compare, as it only stores them, are an error."""
    copy.replace("nested.outside_tensors", "_BITS", {})
