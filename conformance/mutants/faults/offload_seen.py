"""Faults of the offloaded model that laws about what modules see must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("runs-again-in-the-present-mode", "offload-models", "modules_train_when_they_run_again_as_they_did", "offload.turn",
           "with self.use.residence.turn(), in_modes(self.modes):", "with self.use.residence.turn():"),
    TextMutant("stays-in-the-mode-of-forward", "offload-models", "modules_train_when_they_run_again_as_they_did",
           "offload.execution", "            module.training = not training", "            pass"),
    TextMutant("gives-tensors-for-parameters", "offload-models", "a_parameter_looks_like_one", "offload.attachment",
           "        alias._is_param = True  # which isinstance asks for", "        pass"),
    TextMutant("gives-everything-as-parameters", "offload-models", "a_parameter_looks_like_one", "offload.attachment",
           "    if isinstance(original, nn.Parameter):", "    if True:"),
    TextMutant("forgets-attributes-of-copies", "offload-models", "a_parameter_looks_like_one", "offload.attachment",
           "return dressed(alias, type(alias), attributes(original))", "return alias"),
    TextMutant("forgets-attributes-when-it-runs-again", "offload-models", "a_parameter_looks_like_one", "offload.turn",
           "given = {name: like(alias, self.use.tensors[name]) for name, alias in given.items()}", "pass", profile="default"),
    TextMutant("overlooks-shared-memory", "offload-models", "memory_that_is_shared_is_changed_for_all", "offload.changes",
           "            if other is not tensor and any(", "            if False and any("),
    TextMutant("loses-hooks-of-forward", "offload-models", "a_hook_that_forward_registers_stays_or_is_refused",
           "offload.changes", "            if copy._backward_hooks:", "            if False:"),
)  # fmt: skip
