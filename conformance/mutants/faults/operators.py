"""Faults of the nested checkpoint that laws of the family operators must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

_RESTORED = "return self.args, self.kwargs, self.tensors"

FAULTS = (
    TextMutant("mixes-up-arguments-after-the-third", "operators", "operators_that_a_region_begins_with", "nested.inputs", _RESTORED,
           "return (*self.args[:3], *self.args[:2:-1]), self.kwargs, self.tensors"),
    TextMutant("stops-inside-an-operator", "operators", "operators_that_a_region_ends_with", "nested.recomputation",
           "_written_late(slots, self.last) if early_stop else -1", "-1"),
    TextMutant("brings-no-tensors-without-dimensions", "operators", "operators_that_a_region_ends_with", "nested.recomputation",
           "            self.values[index] = tensor\n",
           "            self.values[index] = tensor if tensor.dim() else torch.ones_like(tensor)\n"),
    TextMutant("repeats-keyword-arguments-by-position", "operators", "operators_with_all_their_arguments", "nested.inputs", _RESTORED,
           "return (*self.args, *self.kwargs.values()), {}, self.tensors"),
    TextMutant("mixes-up-arguments-after-the-first", "operators", "operators_that_write_to_their_arguments", "nested.inputs", _RESTORED,
           "return (*self.args[:1], *self.args[:0:-1]), self.kwargs, self.tensors"),
)  # fmt: skip
