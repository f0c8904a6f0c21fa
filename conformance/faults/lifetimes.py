"""Faults of the nested checkpoint that laws of the family lifetimes must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("keeps-recomputed-tensors-after-backward", "lifetimes", "a_backward_of_some_outputs_keeps_nothing", "region",
           "torch.autograd.Variable._execution_engine.queue_callback(values)", "self.kept = values"),
    Mutant("never-forgets-a-backward", "lifetimes", "steps_leave_nothing_behind", "region",
           "self.values = {key: weak for key, weak in self.values.items() if weak() is not None}", "pass"),
    Mutant("keeps-what-was-unpacked", "lifetimes", "each_recomputed_tensor_dies_at_its_unpack", "region",
           "values.pop(index, None)", "values.get(index)"),
    Mutant("waits-for-the-collector", "lifetimes", "dropping_the_outputs_frees_everything", "region",
           "self.check, self.complete = True, True, False",
           "self.check, self.complete = True, True, False; self.itself = self"),
    Mutant("keeps-the-storage-with-the-counter", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "versions",
           "            alias.data = _EMPTY", "            pass"),
    Mutant("keeps-the-output-with-the-region", "lifetimes", "dropping_the_outputs_frees_everything", "nested",
           "        region.enclosing = region.look = None\n",
           "        region.enclosing = region.look = None\n    region.output = output\n"),
    Mutant("leaves-its-hooks-on-after-an-error", "lifetimes", "an_error_leaves_hooks_and_grad_mode", "nested",
           "    finally:\n        _pop_hooks()",
           "    except ZeroDivisionError:\n        raise\n    else:\n        _pop_hooks()"),
)  # fmt: skip
