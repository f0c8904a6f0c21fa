"""Faults of the offloaded model that laws of the family offload must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("loads-in-less-precision", "offload", "parameters_are_updated_as_plain_updates_them", "offload.route",
           "                    copies[name].copy_(tensor)\n", "                    copies[name].copy_(tensor.bfloat16())\n"),
    TextMutant("rounds-what-it-loads-again", "offload", "parameters_are_updated_as_plain_updates_them", "offload.saved",
           "tensor = copy.as_strided(*self.layout)", "tensor = copy.bfloat16().to(copy.dtype).as_strided(*self.layout)"),
    TextMutant("forgets-strides", "offload", "parameters_are_updated_as_plain_updates_them", "offload.saved",
           "(tensor.size(), tensor.stride(), tensor.storage_offset())",
           "(tensor.size(), torch.empty(tensor.size(), device='meta').stride(), tensor.storage_offset())"),
    TextMutant("loses-gradients-of-vectors", "offload", "parameters_are_updated_as_plain_updates_them", "offload.attachment",
           "            return grad.to(ctx.device), None", "            return grad.to(ctx.device) * (grad.dim() > 1), None"),
    TextMutant("recomputes-with-other-random-numbers", "offload", "dropout_draws_what_plain_draws", "offload.turn",
           "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    TextMutant("replays-no-masks-of-microbatches", "offload", "each_microbatch_replays_its_own_mask", "offload.turn",
           "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    TextMutant("writes-nothing-back", "offload", "buffers_advance_once_a_step", "offload.turn",
           "            self.changes.write_back(self.copies)\n", ""),
    TextMutant("overlooks-running-statistics", "offload", "buffers_advance_once_a_step", "offload.turn",
           "statistics.updated, start", "set(), start", profile="default"),
    TextMutant("recomputes-from-what-forward-left", "offload", "buffers_advance_once_a_step", "offload.turn",
           "self.start = turn.changes.starts[-1]", "self.start = Start()", profile="default"),
    TextMutant("forgets-what-was-assigned", "offload", "buffers_advance_once_a_step", "offload.changes",
           "                self.chain.get_submodule(path)._buffers[own] = self.away(last)\n", "                pass\n",
           profile="default"),
    TextMutant("drops-gradients-in-forward", "offload", "gradients_accumulate_over_batches", "offload.model",
           "        calls = split(", "        self.zero_grad()\n        calls = split("),
    TextMutant("keeps-boundaries-with-the-model", "offload", "several_forwards_before_their_backwards", "offload.turn",
           "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
           "kept = vars(turn.residence).setdefault(f'kept {turn.index}', boundary)\n"
           "        vars(kept).update(vars(boundary))\n"
           "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    TextMutant("keeps-one-boundary-for-each-slice", "offload", "a_loss_of_several_forwards", "offload.turn",
           "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
           "kept = vars(turn.residence).setdefault(f'kept {turn.index}', boundary)\n"
           "        vars(kept).update(vars(boundary))\n"
           "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    TextMutant("keeps-boundaries-for-all-models", "offload", "two_models_at_once", "offload.turn",
           "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
           "kept = vars(Boundary).get(f'kept {turn.index}', boundary)\n"
           "        setattr(Boundary, f'kept {turn.index}', kept)\n        vars(kept).update(vars(boundary))\n"
           "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    TextMutant("detaches-inputs", "offload", "inputs_get_their_gradients", "offload.model", "[tensor.to(device)",
           "[tensor.detach().to(device)"),
    TextMutant("brings-more-in-each-backward", "offload", "some_gradients_can_be_asked_for", "offload.attachment",
           "        return grads[0], None\n",
           "        ctx.mail.events[len(ctx.mail.events)] = None\n"
           "        return grads[0] * len(ctx.mail.events), None\n"),
    TextMutant("detaches-gradients", "offload", "gradients_can_be_differentiated", "offload.attachment",
           "            return grad.to(ctx.device), None", "            return grad.detach().to(ctx.device), None"),
    TextMutant("always-trains", "offload", "evaluation_equals_plain", "offload.execution", "        put = {",
           "        chain.train()\n        put = {", profile="default"),
    TextMutant("runs-slices-without-autocast", "offload", "autocast_equals_plain", "offload.execution", "        put = {",
           "        torch.set_autocast_enabled('cpu', False)\n        put = {"),
    TextMutant("squeezes-what-it-joins", "offload", "microbatches_sum_up_to_the_whole", "offload.microbatches", "torch.cat(parts)",
           "torch.cat(parts).squeeze(-1)", profile="default"),
    TextMutant("joins-the-other-way-round", "offload", "two_microbatches_are_the_plain_model_on_each", "offload.microbatches",
           "torch.cat(parts)", "torch.cat(parts[::-1])"),
    TextMutant("lets-two-threads-run-a-slice", "offload", "two_threads_do_not_meet", "offload.residence",
           "= threading.RLock(), threading.RLock()",
           "= threading.RLock(), __import__('types').SimpleNamespace(acquire=lambda timeout: True, "
           "release=lambda: None)", profile="default"),
    TextMutant("passes-a-tuple-as-arguments", "offload", "parameters_are_updated_as_plain_updates_them", "offload.cutting",
           "            value = module(value)",
           "            value = module(*value) if isinstance(value, tuple) else module(value)", profile="default"),
    TextMutant("sends-gradients-to-the-host", "offload", "the_offload_device_may_be_another", "offload.attachment",
           "            return grad.to(ctx.device), None", "            return grad.cpu(), None", profile="default"),
)  # fmt: skip
