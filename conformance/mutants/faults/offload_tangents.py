"""Faults of the offloaded model that laws about forward-mode differentiation and transforms must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("loses-tangents-of-frozen-parameters", "offload-models", "tangents_go_through_a_model", "offload.attachment",
           "        tangent = tangent_of(parameter)\n", "        tangent = None\n"),
    TextMutant("halves-tangents", "offload-models", "tangents_go_through_a_model", "offload.attachment",
           "    def jvp(ctx: Any, *tangents: Any) -> Any:\n        return tangents[0]\n",
           "    def jvp(ctx: Any, *tangents: Any) -> Any:\n        return tangents[0] / 2\n"),
    TextMutant("sends-no-tangents-of-gradients", "offload-models", "gradients_have_tangents", "offload.attachment",
           '        return tangents[0].to("cpu")', '        return tangents[0].to("cpu") * 2'),
    TextMutant("runs-again-without-tangents", "offload-models", "a_slice_that_ran_on_tangents_does_not_run_again",
           "offload.turn", "        if self.has_tangents:", "        if False:"),
    TextMutant("overlooks-tangents-of-inputs", "offload-models", "a_slice_that_ran_on_tangents_does_not_run_again",
           "offload.boundary", "any(tangent_of(tensor) is not None for tensor in tensors)", "False"),
    TextMutant("is-transformed-by-halves", "offload-models", "transforms_are_right_or_refused", "offload.model",
           "        if torch._C._functorch.peek_interpreter_stack() is None:", "        if True:"),
)  # fmt: skip
