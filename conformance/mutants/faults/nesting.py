"""Faults of the nested checkpoint that laws of the family nesting must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

# The hooks around a recomputation, which its own are on top of.
_OUTER = """        hooks = torch._C._autograd
        hooks._pop_saved_tensors_default_hooks()
        outer = hooks._top_saved_tensors_default_hooks(False)
        hooks._push_saved_tensors_default_hooks(self.pack, self.unpack)
"""

FAULTS = (
    TextMutant("numbers-only-the-slots-that-are-alive", "nesting", "backward_inside_a_region", "nested.region",
           "wanted = _in_graph(self.slots)",
           "wanted = [slot for slot in _in_graph(self.slots) if slot is not None]"),
    TextMutant("stop-is-an-exception", "nesting", "no_except_exception_catches_the_stop", "nested.recomputation",
           "class Stop(BaseException)", "class Stop(Exception)"),
    TextMutant("keeps-inputs-by-reference", "nesting", "hooks_see_the_outermost_inputs_alone", "tensors.packed",
           "if tensor.is_inference():", "if True:"),
    TextMutant("lets-outer-hooks-see-what-is-inside", "nesting", "hooks_see_the_outermost_inputs_alone", "nested.region",
           "        return slot\n",
           "        hooks = torch._C._autograd\n        hooks._pop_saved_tensors_default_hooks()\n"
           "        outer = hooks._top_saved_tensors_default_hooks(False)\n"
           "        if outer is not None:\n            outer[0](tensor)\n"
           "        hooks._push_saved_tensors_default_hooks(self.pack, self.unpack)\n        return slot\n"),
    TextMutant("does-not-take-lists-apart", "nesting", "hooks_see_inputs_in_containers", "nested.inputs",
           "if kind is list or kind is tuple:", "if kind is list:\n        return None\n    if kind is tuple:"),
    TextMutant("does-not-take-dataclasses-apart", "nesting", "hooks_see_inputs_in_containers", "nested.inputs",
           "    if _is_record(value):", "    if False:", profile="default"),
    TextMutant("packs-a-repeated-argument-twice", "nesting", "hooks_see_repeated_inputs_once", "nested.inputs",
           "self.indices.get(id(tensor))", "self.indices.get(-1)"),
    TextMutant("detaches-what-a-region-inside-is-given", "nesting", "trees_of_regions", "nested.inputs",
           "self.packed.append(Packed(tensor))", "self.packed.append(Packed(tensor.detach()))"),
    TextMutant("takes-the-reentrant-way-inside-a-region", "nesting", "trees_of_regions_that_share_values_through_closures",
           "nested.api",
           "    forward_context, recompute_context = context_fn()\n",
           "    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:\n        import impls.reentrant\n\n"
           "        return impls.reentrant.checkpoint(function, *args)\n"
           "    forward_context, recompute_context = context_fn()\n", profile="default"),
    TextMutant("saves-no-keyword-arguments", "nesting", "hooks_see_inputs_passed_by_keyword", "nested.inputs",
           "{name: self._take(one) for name, one in kwargs.items()}", "dict(kwargs)"),
    TextMutant("saves-no-inputs-without-grad", "nesting", "hooks_see_the_outermost_inputs_alone", "nested.inputs",
           "if self.watched or tensor.is_inference():", "if self.watched and tensor.requires_grad or tensor.is_inference():",
           profile="default"),
    TextMutant("saves-a-tensor-once-for-all-regions", "nesting", "trees_of_regions", "nested.inputs",
           "self.packed.append(Packed(tensor))",
           "self.packed.append(vars(tensor).setdefault('packed', None) or Packed(tensor))\n"
           "                tensor.packed = self.packed[-1]", profile="default"),
    TextMutant("hands-on-what-it-recomputes", "nesting", "recomputation_is_hidden_from_hooks", "nested.recomputation",
           "        slot = None\n",
           _OUTER + "        if outer is not None:\n            outer[0](tensor)\n        slot = None\n"),
    TextMutant("lets-hooks-change-what-it-recomputes", "nesting", "hooks_around_and_inside_regions", "nested.recomputation",
           "        slot = None\n",
           _OUTER + "        tensor = tensor if outer is None else outer[1](outer[0](tensor))\n        slot = None\n"),
    TextMutant("uses-up-what-it-recomputes-inside", "nesting", "gradient_penalty_inside_a_region", "nested.recomputation",
           "self.values.get(packed[0])", "self.values.pop(packed[0], None)"),
    TextMutant("refuses-to-recompute-inside-a-recomputation", "nesting", "backward_of_another_region_inside_a_region", "nested.region",
           "        wanted = _in_graph(self.slots)\n",
           "        wanted = _in_graph(self.slots)\n"
           "        if isinstance(_enclosing(), Recomputation):\n            self.refuse('another one is being recomputed')\n"),
    TextMutant("refuses-regions-of-others-around-it", "nesting", "any_implementation_inside_any_other", "nested.region",
           "    return owner if isinstance(owner, Region | Recomputation) else None",
           "    if hooks and not isinstance(owner, Region | Recomputation):\n"
           "        raise RuntimeError('hooks on saved tensors that are of no region are active')\n    return owner"),
    TextMutant("takes-a-forward-for-ended-when-backward-runs", "nesting", "backward_inside_a_region_without_early_stop", "nested.region",
           "complete=complete,", "complete=True,"),
)  # fmt: skip
