"""Faults of the nested checkpoint that laws of the family costs must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("never-stops-early", "costs", "calls_with_early_stop", "nested",
           "region.early_stop = early_stop if override is None else override", "region.early_stop = False"),
    Mutant("stops-one-tensor-late", "costs", "kernels_with_early_stop", "recomputation", "index >= self.until",
           "index > self.until"),
    Mutant("ignores-early-stop-switched-off", "costs", "kernels_without_early_stop", "nested",
           "early_stop if override is None else override", "override is not False"),
    Mutant("recomputes-for-each-saved-tensor", "costs", "no_region_runs_too_often", "region",
           "if task == -1 or self.recomputed(task) is not None:", "if True:"),
    Mutant("shares-values-between-backwards", "costs", "a_backward_during_another_recomputes_for_itself", "region",
           "task = torch._C._current_graph_task_id()", "task = 0"),
    Mutant("recomputes-slots-that-were-cleared", "costs", "what_the_graph_has_freed_is_not_recomputed", "region",
           "self.slots.append(weakref.ref(slot))", "self.slots.append(lambda: slot)"),
)  # fmt: skip
