"""Faults of the nested checkpoint that laws of the family ambient must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("forgets-the-device-context", "ambient", "device_context_is_forwards", "ambient",
           "if wanted.device != present.device:", "if False:"),
    Mutant("never-leaves-a-device-context", "ambient", "device_context_is_forwards", "ambient",
           "if wanted.device != present.device:", "if wanted.device not in (None, present.device):", profile="default"),
    Mutant("forgets-the-default-dtype", "ambient", "default_dtype_is_forwards", "ambient", "        _set_global(wanted)\n\n",
           "        _set_global(wanted._replace(dtype=present.dtype))\n\n"),
    Mutant("leaves-the-default-dtype-behind", "ambient", "default_dtype_is_forwards", "ambient", "_set_global(self.present)",
           "_set_global(self.present._replace(dtype=self.wanted.dtype))"),
    Mutant("forgets-deterministic-algorithms", "ambient", "deterministic_flags_are_forwards", "ambient",
           "if (_deterministic(), _warns_only()) != wanted.deterministic:", "if False:"),
    Mutant("forgets-warn-only", "ambient", "deterministic_flags_are_forwards", "ambient",
           "wanted.deterministic[0], warn_only=wanted.deterministic[1]", "wanted.deterministic[0]"),
    Mutant("leaves-grad-mode-on-after-reading", "ambient", "grad_mode_is_forwards", "recomputation",
           "            torch._C._set_grad_enabled(graded)", "            pass"),
    Mutant("recomputes-in-inference-mode", "ambient", "backward_in_inference_mode", "region",
           "if torch.is_inference_mode_enabled():", "if False:"),
    Mutant("enables-grad-in-any-case", "ambient", "nothing_to_differentiate_costs_one_call", "nested",
           "with forward_context:\n", "with forward_context, torch.enable_grad():\n"),
    Mutant("recomputes-what-needs-no-grad", "ambient", "nothing_to_differentiate_costs_one_call", "nested",
           "        with forward_context:\n            return function(*args, **kwargs)\n",
           "        with torch.enable_grad():\n            function(*args, **kwargs)\n        with forward_context:\n"
           "            return function(*args, **kwargs)\n"),
    Mutant("passes-parameters-as-tensors", "ambient", "arguments_look_the_same", "packed",
           "None if ordinary or not isinstance(tensor, torch.nn.Parameter) else tensor", "None"),
    Mutant("forgets-attributes", "ambient", "attributes_of_arguments_are_there", "packed", "if attributes and ordinary:",
           "if False:"),
    Mutant("needs-no-gradient-in-eval", "ambient", "a_module_in_eval_gives_gradients", "nested",
           "    if not torch.is_grad_enabled():\n        with forward_context:",
           "    if not torch.is_grad_enabled() or not getattr(function, \"training\", True):\n"
           "        with forward_context, torch.no_grad():"),
    Mutant("switches-anomaly-mode-off", "ambient", "anomaly_mode_changes_nothing", "recomputation",
           "            torch._C._set_grad_enabled(True)",
           "            torch._C._set_grad_enabled(True)\n            torch.autograd.set_detect_anomaly(False)"),
    Mutant("leaves-modes-as-an-error-finds-them", "ambient", "an_error_leaves_modes_as_they_were", "ambient",
           "_set_global(self.present)", "_set_global(self.present) if error[0] is None else None"),
    Mutant("recomputes-in-the-grad-mode-that-it-finds", "ambient", "grad_mode_is_forwards", "recomputation",
           "            torch._C._set_grad_enabled(True)\n", ""),
    Mutant("compares-dtypes-alone", "ambient", "train_and_eval_flipped_before_backward", "recomputation",
           "if self.check and self.wanted[index] is not None:", "if self.check and tensor.dtype != expected[1]:"),
    Mutant("keeps-the-modes-of-its-last-run", "ambient", "default_dtype_is_forwards", "region",
           "        if run.mismatch is not None:",
           "        self.modes = ambient.modes()\n        if run.mismatch is not None:"),
)  # fmt: skip
