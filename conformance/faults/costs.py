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
           "if task == -1 or there is not None:", "if True:"),
    Mutant("shares-values-between-backwards", "costs", "a_backward_during_another_recomputes_for_itself", "region",
           "task = torch._C._current_graph_task_id()", "task = 0"),
    Mutant("recomputes-slots-that-were-cleared", "costs", "what_the_graph_has_freed_is_not_recomputed", "region",
           "slot if count > _ALONE else None", "slot"),
    Mutant("shares-one-table-between-all-regions", "costs", "calls_with_early_stop", "recomputation", "self.values = Values()",
           "import weakref\n\n        tables = vars(Recomputation).get('tables') or weakref.WeakValueDictionary()\n"
           "        Recomputation.tables = tables\n"
           "        self.values = tables.setdefault(torch._C._current_graph_task_id(), Values())"),
    Mutant("shares-nothing-without-early-stop", "costs", "calls_without_early_stop", "region", "shared = task != -1 and",
           "shared = task != -1 and self.early_stop and"),
    Mutant("stops-early-in-its-first-backward-alone", "costs", "backward_of_one_output_recomputes_what_it_needs", "region",
           "early_stop=self.early_stop,", "early_stop=self.early_stop and not self.values,"),
    Mutant("runs-on-when-a-subset-is-asked-for", "costs", "requests_for_a_subset_recompute_what_they_need", "region",
           "early_stop=self.early_stop,", "early_stop=self.early_stop and torch.autograd._is_checkpoint_valid(),"),
    Mutant("keeps-three-tensors-or-more", "costs", "a_leaf_at_depth_d_runs_d_plus_one_times", "region",
           "if one is not None]) > 1", "if one is not None]) > 2"),
    Mutant("keeps-three-tensors-at-most", "costs", "a_parent_is_recomputed_once_for_all_its_regions", "region",
           "if one is not None]) > 1", "if one is not None]) in range(2, 4)"),
    Mutant("takes-an-ended-backward-for-this-one", "costs", "every_backward_recomputes_anew", "region",
           "if task == -1 or there is not None:", "if task == -1 or self.values:"),
    Mutant("keeps-what-was-asked-for-first", "costs", "recomputed_tensors_die_as_they_are_unpacked", "region",
           "return values.pop(slot[0])", "return values[slot[0]]"),
    Mutant("waits-in-every-operator", "costs", "kernels_with_early_stop", "recomputation",
           "    return -1\n", "    return last\n"),
    Mutant("waits-for-another-operator-that-saves", "costs", "nothing_runs_after_the_operator_that_saves_last",
           "recomputation", "if index >= self.last and self.ending is None and _modes() == self.modes:", "if False:"),
    Mutant("follows-versions-in-sight-of-modes", "costs", "no_operators_are_seen_but_the_functions", "versions",
           "alias = detached(tensor) if _modes() else tensor.detach()", "alias = tensor.detach()"),
    Mutant("looks-at-what-it-recomputed", "costs", "no_operators_are_seen_but_the_functions", "recomputation",
           "            self.values[index] = tensor\n",
           "            self.values[index] = tensor\n            tensor.detach()\n"),
    Mutant("reads-one-tensor-at-a-time", "costs", "reading_saved_tensors_again_recomputes_once", "region",
           "return own if id(slot) in own else {id(slot)}", "return {id(slot)}"),
    Mutant("looks-past-one-cleared-slot", "costs", "what_the_graph_has_freed_is_not_recomputed", "recomputation",
           "while wanted[self.last] is None:", "if wanted[self.last] is None:"),
)  # fmt: skip
