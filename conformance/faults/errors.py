"""Faults of the nested checkpoint that laws of the family errors must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("overlooks-changes-since-forward", "errors", "changed_outputs", "region", "if now != version:", "if False:"),
    Mutant("compares-no-versions-when-it-recomputes", "errors", "gradients_beside_a_changed_weight", "recomputation",
           "if tensor._version != version:", "if False:"),
    Mutant("lets-the-recomputation-corrupt-what-it-saved", "errors", "corruption_by_the_recomputation_is_reported", "region",
           "if tensor._version != version:", "if False:"),
    Mutant("brings-what-it-has-when-tensors-are-missing", "errors", "missing_tensors_are_reported_in_any_case", "recomputation",
           "len(values) < due", "not values"),
    Mutant("lets-an-input-be-changed", "errors", "a_function_that_changes_its_argument", "region", "if changed is not None:",
           "if False:"),
    Mutant("expects-versions-of-copies", "errors", "hooks_that_copy_after_changes", "packed",
           "if version is not None and tensor._version != version:", "if False:"),
    Mutant("compares-no-metadata", "errors", "other_saved_tensors_are_reported", "recomputation",
           "if self.check and self.wanted[index] is not None:", "if False:"),
    Mutant("compares-no-dtypes", "errors", "other_saved_tensors_are_reported", "versions", "attrgetter(\"shape\", \"dtype\"",
           "attrgetter(\"shape\", \"layout\""),
    Mutant("compares-ranks-instead-of-shapes", "errors", "other_saved_tensors_are_reported", "versions", "attrgetter(\"shape\"",
           "attrgetter(\"names\"", profile="default"),
    Mutant("allows-one-tensor-more-or-less", "errors", "more_saved_tensors_are_reported", "recomputation",
           "self.count != self.known", "abs(self.count - self.known) > 1"),
    Mutant("ignores-a-mismatch", "errors", "other_saved_tensors_are_reported", "region", "if run.mismatch is not None:",
           "if False:"),
    Mutant("says-nothing-when-it-refuses", "errors", "other_saved_tensors_are_reported", "region",
           "raise CheckpointError(message)", "raise CheckpointError()"),
    Mutant("takes-any-determinism-check", "errors", "wrong_arguments_are_refused", "nested", "if determinism_check not in",
           "if False and determinism_check not in"),
    Mutant("checks-even-if-told-not-to", "errors", "the_determinism_check_can_be_switched_off", "nested",
           "determinism_check == \"default\"", "True"),
    Mutant("swallows-what-its-context-swallows", "errors", "a_context_that_swallows_is_refused", "nested",
           "if not region.complete:", "if False:"),
)  # fmt: skip
