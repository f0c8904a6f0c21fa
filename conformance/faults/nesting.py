"""Faults of the nested checkpoint that laws of the family nesting must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("numbers-only-the-slots-that-are-alive", "nesting", "backward_inside_a_region", "region",
           "wanted = [weak() for weak in self.slots]",
           "wanted = [slot for weak in self.slots if (slot := weak()) is not None]"),
    Mutant("stop-is-an-exception", "nesting", "no_except_exception_catches_the_stop", "recomputation",
           "class Stop(BaseException)", "class Stop(Exception)"),
    Mutant("keeps-inputs-by-reference", "nesting", "hooks_see_the_outermost_inputs_alone", "packed",
           "if tensor.is_inference():", "if True:"),
    Mutant("lets-outer-hooks-see-what-is-inside", "nesting", "hooks_see_the_outermost_inputs_alone", "region",
           "        return slot\n",
           "        hooks = torch._C._autograd\n        hooks._pop_saved_tensors_default_hooks()\n"
           "        outer = hooks._top_saved_tensors_default_hooks(False)\n"
           "        if outer is not None:\n            outer[0](tensor)\n"
           "        hooks._push_saved_tensors_default_hooks(self.pack, self.unpack)\n        return slot\n"),
    Mutant("does-not-take-lists-apart", "nesting", "hooks_see_inputs_in_containers", "inputs", "tree_flatten(tree)",
           "tree_flatten(tree, is_leaf=lambda value: type(value) is list)"),
    Mutant("does-not-take-dataclasses-apart", "nesting", "hooks_see_inputs_in_containers", "inputs",
           "self._record(leaf) if _is_record(leaf) else leaf", "leaf", profile="default"),
    Mutant("packs-a-repeated-argument-twice", "nesting", "hooks_see_repeated_inputs_once", "inputs",
           "self.indices.get(id(tensor))", "self.indices.get(-1)"),
)  # fmt: skip
