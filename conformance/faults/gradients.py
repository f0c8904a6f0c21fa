"""Faults of the nested checkpoint that laws of the family gradients must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("swaps-slots-three-and-four", "gradients", "core_programs_equal_plain", "recomputation",
           "self.values[index] = tensor", "self.values[5 - index if index in (2, 3) else index] = tensor", profile="default"),
    Mutant("detaches-outputs-if-no-input-requires-grad", "gradients", "no_input_requires_grad", "nested",
           "    if not torch.is_grad_enabled():\n",
           "    if not any(getattr(argument, 'requires_grad', False) for argument in args):\n"
           "        with torch.no_grad():\n            return function(*args, **kwargs)\n"
           "    if not torch.is_grad_enabled():\n"),
    Mutant("recomputes-without-a-graph", "gradients", "core_programs_equal_plain", "recomputation", "_set_grad_enabled(True)",
           "_set_grad_enabled(False)"),
    Mutant("lets-a-slot-be-read-once-in-a-backward", "gradients", "saved_tensors_are_readable_twice", "region",
           "values.pop(index, None)", "values.pop(index)"),
    Mutant("rounds-what-it-recomputes", "gradients", "core_programs_equal_plain", "recomputation",
           "self.values[index] = tensor",
           "self.values[index] = tensor.float().to(tensor.dtype) if tensor.dtype is torch.float64 else tensor"),
    Mutant("lets-go-of-the-inputs-in-the-first-backward", "gradients", "repeated_backward", "inputs",
           "zip(self.packed, self.versions, strict=True)\n        ]",
           "zip(self.packed, self.versions, strict=True)\n        ]\n        self.packed = []"),
)  # fmt: skip
