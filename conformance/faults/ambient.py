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
           "if _deterministic() != wanted.deterministic:", "if False:"),
    Mutant("forgets-warn-only", "ambient", "deterministic_flags_are_forwards", "ambient",
           "wanted.deterministic[0], warn_only=wanted.deterministic[1]", "wanted.deterministic[0]"),
)  # fmt: skip
