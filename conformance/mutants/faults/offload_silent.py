"""Faults of the offloaded model that laws about changes of which no version tells must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("reads-what-a-silent-change-began-with", "offload-models", "a_buffer_is_read_where_no_version_tells_of_its_changes",
           "offload.use", "        if name not in start or name in start.silent:", "        if name not in start:"),
    TextMutant("reads-what-a-later-microbatch-changed", "offload-models", "microbatches_that_read_a_buffer_which_they_change",
           "offload.use", "if following is None or not torch.equal(following[name], self.tensors[name]):",
           "if following is None:"),
    TextMutant("keeps-what-a-later-microbatch-changed", "offload-models", "microbatches_that_read_a_buffer_which_they_change",
           "offload.changes", "            if not told or name in start.silent:", "            if name in start.silent:",
           profile="default"),
    TextMutant("runs-again-on-what-another-forward-left", "offload-models", "a_later_forward_changes_what_an_earlier_one_read",
           "offload.turn", "        self.use.check_silent(names)\n", "", profile="default"),
    TextMutant("looks-at-operators-where-there-are-buffers", "offload-models", "weights_may_change_where_no_version_tells",
           "offload.turn", "with statistics if given else nullcontext():",
           "with statistics if [*self.chain.buffers()] else nullcontext():"),
    TextMutant("overlooks-other-data", "offload-models", "weights_may_change_where_no_version_tells", "offload.changes",
           "redirected = not told and storage_number(copy) != storage", "redirected = False"),
    TextMutant("reads-other-data", "offload-models", "a_weight_that_is_given_other_data_after_it_was_read", "offload.changes",
           "                start.overtaken[name] = None\n", ""),
)  # fmt: skip
