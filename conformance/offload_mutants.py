"""Offloaded models with one fault each: the package of ours with one place of its text replaced.

As in ``conformance.mutants``, a mutant names the law that must catch it, and the place must occur exactly once.
"""

from __future__ import annotations

import functools
import graphlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import impls
from impls import Implementation

DIRECTORY = Path(impls.__file__).parent / "offload"


def parts() -> tuple[str, ...]:
    """The modules that the package consists of, each after those that it imports."""
    files = {path.stem: path.read_text() for path in DIRECTORY.glob("*.py") if path.stem != "__init__"}
    graph = {name: set(re.findall(r"^from impls\.offload\.(\w+) import", text, re.MULTILINE)) for name, text in files.items()}
    return tuple(graphlib.TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())


@dataclass(frozen=True)
class OffloadMutant:
    """One fault: in ``part``, ``text`` is replaced by ``fault``; ``law``, which is one of ``family``, catches it.

    ``profile`` names how many cases the law needs for that. Raises ValueError when a field is empty and, once the
    implementation is asked for, when there is no such part or ``text`` does not occur in it exactly once.
    """

    name: str
    family: str
    law: str
    part: str
    text: str
    fault: str
    profile: str = "quick"

    def __post_init__(self) -> None:
        for field in ("name", "family", "law", "part", "text"):
            if not getattr(self, field):
                raise ValueError(f"mutant {self.name!r}: {field} is empty; it must name what its name says")

    @functools.cached_property
    def implementation(self) -> Implementation:
        """The faulty implementation, which claims all that ours claims."""
        if self.part not in parts():
            raise ValueError(f"mutant {self.name!r}: part is {self.part!r}; it must be one of {', '.join(parts())}")
        package = f"reprise_offload_mutant_{self.name.replace('-', '_')}"
        root = ModuleType(package)
        root.__path__ = []
        sys.modules[package] = root
        for part in parts():
            module = ModuleType(f"{package}.{part}")
            sys.modules[module.__name__] = module
            setattr(root, part, module)
            exec(compile(self.source(part, package), f"<{self.name}: {part}>", "exec"), module.__dict__)
        summary, ours = f"offload, but: {self.fault}", impls.get("offload")
        provides = sys.modules[f"{package}.model"].OffloadModel
        return Implementation(self.name, summary=summary, source=__name__, known=ours.known, kind="offload", provides=provides)

    def source(self, part: str, package: str) -> str:
        text = (DIRECTORY / f"{part}.py").read_text()
        if part == self.part:
            times = text.count(self.text)
            if times != 1:
                raise ValueError(f"mutant {self.name}: {self.text!r} occurs {times} times in {part}, not once")
            text = text.replace(self.text, self.fault)
        return text.replace("from impls.offload.", f"from {package}.")


OFFLOAD_MUTANTS = (
    OffloadMutant("loads-in-less-precision", "offload", "parameters_are_updated_as_plain_updates_them", "route",
                  "                    copies[name].copy_(tensor)\n",
                  "                    copies[name].copy_(tensor.bfloat16())\n"),
    OffloadMutant("rounds-what-it-loads-again", "offload", "parameters_are_updated_as_plain_updates_them", "saved",
                  "tensor = copy.as_strided(*self.layout)", "tensor = copy.bfloat16().to(copy.dtype).as_strided(*self.layout)"),
    OffloadMutant("forgets-strides", "offload", "parameters_are_updated_as_plain_updates_them", "saved",
                  "(tensor.size(), tensor.stride(), tensor.storage_offset())",
                  "(tensor.size(), torch.empty(tensor.size(), device='meta').stride(), tensor.storage_offset())"),
    OffloadMutant("loses-gradients-of-vectors", "offload", "parameters_are_updated_as_plain_updates_them", "attachment",
                  "            return grad.to(ctx.device), None",
                  "            return grad.to(ctx.device) * (grad.dim() > 1), None"),
    OffloadMutant("recomputes-with-other-random-numbers", "offload", "dropout_draws_what_plain_draws", "turn",
                  "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    OffloadMutant("replays-no-masks-of-microbatches", "offload", "each_microbatch_replays_its_own_mask", "turn",
                  "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    OffloadMutant("writes-nothing-back", "offload", "buffers_advance_once_a_step", "turn",
                  "            self.changes.write_back(self.copies)\n", ""),
    OffloadMutant("overlooks-running-statistics", "offload", "buffers_advance_once_a_step", "turn",
                  "statistics.updated if statistics else set()", "set()", profile="default"),
    OffloadMutant("recomputes-from-what-forward-left", "offload", "buffers_advance_once_a_step", "turn",
                  "self.start = turn.changes.starts[-1]", "self.start = {}", profile="default"),
    OffloadMutant("forgets-what-was-assigned", "offload", "buffers_advance_once_a_step", "changes",
                  "                self.chain.get_submodule(path)._buffers[own] = self.away(last)\n", "                pass\n",
                  profile="default"),
    OffloadMutant("drops-gradients-in-forward", "offload", "gradients_accumulate_over_batches", "model",
                  "        calls = split(", "        self.zero_grad()\n        calls = split("),
    OffloadMutant("keeps-boundaries-with-the-model", "offload", "several_forwards_before_their_backwards", "turn",
                  "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
                  "kept = vars(turn.residence).setdefault(f'kept {turn.index}', boundary)\n"
                  "        vars(kept).update(vars(boundary))\n"
                  "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    OffloadMutant("keeps-one-boundary-for-each-slice", "offload", "a_loss_of_several_forwards", "turn",
                  "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
                  "kept = vars(turn.residence).setdefault(f'kept {turn.index}', boundary)\n"
                  "        vars(kept).update(vars(boundary))\n"
                  "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    OffloadMutant("keeps-boundaries-for-all-models", "offload", "two_models_at_once", "turn",
                  "self.use, self.chain, self.boundary = turn.use, turn.chain, boundary\n",
                  "kept = vars(Boundary).get(f'kept {turn.index}', boundary)\n"
                  "        setattr(Boundary, f'kept {turn.index}', kept)\n        vars(kept).update(vars(boundary))\n"
                  "        self.use, self.chain, self.boundary = turn.use, turn.chain, kept\n", profile="default"),
    OffloadMutant("detaches-inputs", "offload", "inputs_get_their_gradients", "model", "leaf.to(device)",
                  "leaf.detach().to(device)"),
    OffloadMutant("brings-more-in-each-backward", "offload", "some_gradients_can_be_asked_for", "attachment",
                  "        return grads[0], None\n",
                  "        ctx.mail.events[len(ctx.mail.events)] = None\n"
                  "        return grads[0] * len(ctx.mail.events), None\n"),
    OffloadMutant("detaches-gradients", "offload", "gradients_can_be_differentiated", "attachment",
                  "            return grad.to(ctx.device), None", "            return grad.detach().to(ctx.device), None"),
    OffloadMutant("always-trains", "offload", "evaluation_equals_plain", "execution", "        put = {",
                  "        chain.train()\n        put = {", profile="default"),
    OffloadMutant("runs-slices-without-autocast", "offload", "autocast_equals_plain", "execution", "        put = {",
                  "        torch.set_autocast_enabled('cpu', False)\n        put = {"),
    OffloadMutant("squeezes-what-it-joins", "offload", "microbatches_sum_up_to_the_whole", "microbatches", "torch.cat(parts)",
                  "torch.cat(parts).squeeze(-1)", profile="default"),
    OffloadMutant("joins-the-other-way-round", "offload", "two_microbatches_are_the_plain_model_on_each", "microbatches",
                  "torch.cat(parts)", "torch.cat(parts[::-1])"),
    OffloadMutant("drops-keyword-arguments", "offload-models", "the_first_module_gets_every_input", "microbatches",
                  "return [(args, kwargs)]", "return [(args, {})]"),
    OffloadMutant("leaves-inputs-where-they-are", "offload-models", "the_first_module_gets_every_input", "model",
                  "            moved[id(leaf)] = leaf.to(device)", "            moved[id(leaf)] = leaf"),
    OffloadMutant("joins-shapes-away", "offload-models", "outputs_have_their_structure", "microbatches", "torch.cat(parts)",
                  "torch.cat(parts).squeeze()"),
    OffloadMutant("attaches-to-an-alias-of-a-parameter", "offload-models", "hooks_of_parameters_see_their_gradients",
                  "attachment", "_Arrive.apply(parameter, mail)", "_Arrive.apply(parameter.detach().requires_grad_(), mail)"),
    OffloadMutant("calls-forward-past-the-hooks", "offload-models", "hooks_of_modules_have_their_effect", "cutting",
                  "            value = module(value)", "            value = module.forward(value)"),
    OffloadMutant("hands-other-values-to-the-hooks-around", "offload-models", "hooks_for_saved_tensors_around_a_model", "saved",
                  "self.packed, self.hook = pack(tensor), unpack", "self.packed, self.hook = pack(tensor * 2), unpack"),
    OffloadMutant("names-modules-by-number", "offload-models", "training_goes_on_after_saving_and_loading", "cutting",
                  "named = dict(model._modules)", "named = {str(index): module for index, module in enumerate(model)}"),
    OffloadMutant("pickles-its-locks", "offload-models", "training_goes_on_after_pickling", "residence", "def __reduce__(",
                  "def reduce("),
    OffloadMutant("numbers-modules", "offload-models", "a_model_is_what_it_was", "cutting", "named = dict(model._modules)",
                  "named = {str(index): module for index, module in enumerate(model)}"),
    OffloadMutant("compares-no-versions", "offload-models", "a_parameter_that_changes_before_backward", "use",
                  "            if now.version != then.version:", "            if False:"),
    OffloadMutant("lets-saved-tensors-change", "offload-models", "an_output_that_is_changed_in_place", "saved",
                  "if self.tensor._version != self.version:", "if False:", profile="default"),
    OffloadMutant("lets-saved-inputs-change", "offload-models", "an_input_that_changes_before_backward", "saved",
                  "if self.tensor._version != self.version:", "if False:"),
    OffloadMutant("keeps-inputs-by-reference", "offload-models", "modules_may_change_their_input_in_place", "boundary",
                  "        if hooks_are_active() or value.device == route.offload_device:", "        if False:"),
    OffloadMutant("ties-modules-as-parameters", "offload-models", "a_module_may_occur_twice_in_a_slice", "execution",
                  "tie_weights=False", "tie_weights=True"),
    OffloadMutant("looks-at-a-module-twice", "offload-models", "a_module_may_occur_twice_in_a_slice", "use",
                  "in chain.named_modules():", "in chain.named_modules(remove_duplicate=False):"),
    OffloadMutant("makes-gradients-dense", "offload-models", "sparse_gradients_stay_sparse", "attachment",
                  "            return grad.to(ctx.device), None", "            return grad.to_dense().to(ctx.device), None"),
    OffloadMutant("takes-microbatches-without-checkpoints", "offload-models", "wrong_models_and_options_are_refused", "model",
                  "if num_microbatches > 1 and not checkpoint_activation:", "if False:"),
    OffloadMutant("takes-any-number", "offload-models", "wrong_models_and_options_are_refused", "model", "    if value < 1 or",
                  "    if False and", profile="default"),
    OffloadMutant("takes-a-module-in-two-slices", "offload-models", "wrong_models_and_options_are_refused", "cutting",
                  "if before != number:", "if False:", profile="default"),
    OffloadMutant("takes-a-forward-of-its-own", "offload-models", "wrong_models_and_options_are_refused", "cutting",
                  "if type(model).forward is not nn.Sequential.forward or", "if", profile="default"),
    OffloadMutant("takes-fewer-rows-than-microbatches", "offload-models", "rows_that_cannot_be_split_are_refused",
                  "microbatches", "if count < parts:", "if False:"),
    OffloadMutant("warns-in-training-alone", "offload-models", "statistics_of_a_microbatch_are_warned_of", "model",
                  "(module.training or module.running_mean is None)", "module.training", profile="default"),
    OffloadMutant("warns-always", "offload-models", "statistics_of_a_microbatch_are_warned_of", "model",
                  "        if self._num_microbatches > 1:", "        if True:"),
    OffloadMutant("never-recomputes", "offload-costs", "each_slice_runs_forward_twice", "turn",
                  "= below, checkpointed and torch.is_grad_enabled()", "= below, False"),
    OffloadMutant("cuts-by-number-of-modules", "offload-costs", "slices_are_those_of_the_greedy_rule", "model",
                  "[sum(parameter.numel() for parameter in module.parameters()) for module in named.values()]",
                  "[1 for _ in named]"),
    OffloadMutant("starts-a-slice-one-module-late", "offload-costs", "slices_are_those_of_the_greedy_rule", "cutting",
                  "held + count > share", "held > share"),
    OffloadMutant("cuts-where-nothing-is-held", "offload-costs", "slices_are_those_of_the_greedy_rule", "cutting",
                  "if held and held + count", "if cut[-1] and held + count", profile="default"),
    OffloadMutant("keeps-inputs-beside-their-copies", "offload-costs", "boundary_activations_alone_are_kept", "turn",
                  "        region.first = lambda",
                  "        region.inputs = args, kwargs  # type: ignore[attr-defined]\n        region.first = lambda"),
    OffloadMutant("drops-slices-at-the-end-of-forward", "offload-costs", "two_slices_of_parameters_are_resident_at_most",
                  "turn", "            self.loaded, self.copies = None, {}", "            pass"),
    OffloadMutant("keeps-copies-with-what-is-saved", "offload-costs", "two_slices_of_parameters_are_resident_at_most", "saved",
                  "        self.copies, self.storages = {}, {}", "        pass"),
    OffloadMutant("drops-slices-at-the-end-of-backward", "offload-costs", "two_slices_of_parameters_are_resident_at_most",
                  "residence", "        self.current, self.coming = self.coming, None",
                  "        vars(self).setdefault('kept', []).append(self.current)\n"
                  "        self.current, self.coming = self.coming, None"),
    OffloadMutant("moves-parameters-to-the-device", "offload-costs", "parameters_stay_where_they_are", "model",
                  "value = tensor.detach().to(route.offload_device)", "value = tensor.detach().to(route.device)"),
    OffloadMutant("loads-for-every-saved-tensor", "offload-costs", "traffic_is_parameters_twice_in_and_gradients_out",
                  "residence",
                  "        if self.current is not None and self.current[0] == use.index and "
                  "self.current[1].serves(use.stamps, names):", "        if False and self.current is not None:"),
    OffloadMutant("copies-everything-back", "offload-costs", "traffic_is_parameters_twice_in_and_gradients_out", "changes",
                  "        for name in sorted(self.names):\n            last",
                  "        for name in sorted(copies):\n            last"),
    OffloadMutant("copies-unchanged-buffers-back", "offload-costs", "only_what_changed_is_copied_back", "changes",
                  "        for name in sorted(self.names):\n            last",
                  "        for name in sorted(copies):\n            last"),
    OffloadMutant("loads-the-first-slice-twice", "offload-costs", "without_gradients_parameters_come_in_once", "model",
                  "        turns[0].load()", "        turns[0].load()\n        turns[0].load()"),
    OffloadMutant("knows-its-own-nodes", "offload-costs", "dropped_outputs_free_everything_of_a_model", "model",
                  "            below = turn.use, nodes_of(values)",
                  "            below = turn.use, nodes_of(values)\n            turn.use.mine = below"),
    OffloadMutant("owns-what-a-backward-loaded", "offload-costs", "an_error_leaves_nothing_of_a_model_behind", "residence",
                  "self.tasks[number] = weakref.ref(task)", "self.tasks[number] = lambda: task"),
    OffloadMutant("keeps-what-it-restored", "offload-costs", "a_retained_backward_leaves_what_was_there", "boundary",
                  "tensors = [copy.restore()", "self.last = tensors = [copy.restore()"),
    OffloadMutant("never-forgets-a-backward", "offload-costs", "steps_of_a_model_leave_nothing_behind", "residence",
                  "self.tasks = {key: weak for key, weak in self.tasks.items() if weak() is not None}", "pass",
                  profile="default"),
    OffloadMutant("uses-memory-before-it-is-free", "offload-costs", "copies_do_not_race", "route",
                  "                side.back.wait_event(free)\n", ""),
    OffloadMutant("does-not-wait-for-what-is-loaded", "offload-costs", "copies_do_not_race", "route",
                  "            self.lane.module.current_stream(self.lane.device).wait_event(self.done)", "            pass"),
    OffloadMutant("lets-gradients-be-read-early", "offload-costs", "copies_do_not_race", "attachment",
                  "            event.synchronize()", "            pass"),
    OffloadMutant("frees-parameters-that-are-still-read", "offload-costs", "copies_do_not_race", "turn",
                  "            if event is not None:\n                event.synchronize()", "            pass"),
    OffloadMutant("lets-two-threads-run-a-slice", "offload", "two_threads_do_not_meet", "residence",
                  "= threading.RLock(), threading.RLock()",
                  "= threading.RLock(), __import__('types').SimpleNamespace(acquire=lambda timeout: True, "
                  "release=lambda: None)", profile="default"),
    OffloadMutant("passes-a-tuple-as-arguments", "offload", "parameters_are_updated_as_plain_updates_them", "cutting",
                  "            value = module(value)",
                  "            value = module(*value) if isinstance(value, tuple) else module(value)", profile="default"),
    OffloadMutant("recomputes-attention-with-other-masks", "offload-models", "a_language_model_trains_as_plain", "turn",
                  "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    OffloadMutant("loads-roughly", "offload-models", "modules_may_checkpoint_themselves", "route",
                  "                    copies[name].copy_(tensor)\n", "                    copies[name].copy_(tensor * 2)\n"),
    OffloadMutant("attaches-to-each-parameter-once", "offload-models", "a_shared_parameter_gets_one_gradient", "attachment",
                  "    if not parameter.requires_grad:",
                  "    if not parameter.requires_grad or id(parameter) in (seen := vars(route).setdefault('seen', "
                  "set())) or seen.add(id(parameter)):"),
    OffloadMutant("sends-gradients-to-the-host", "offload", "the_offload_device_may_be_another", "attachment",
                  "            return grad.to(ctx.device), None", "            return grad.cpu(), None", profile="default"),
    OffloadMutant("recomputes-twice-with-other-masks", "offload-models", "a_checkpoint_around_a_model", "turn",
                  "checkpoint(region, *", "checkpoint(region, preserve_rng_state=False, *"),
    OffloadMutant("leaves-its-hooks-on-after-an-error", "offload-models", "a_step_after_an_error_equals_plain", "saved",
                  "    def __exit__(self, *_: object) -> None:\n        _pop()",
                  "    def __exit__(self, *_: object) -> None:\n        if _[0] is None:\n            _pop()"),
    OffloadMutant("gives-zeros-for-no-gradient", "offload-models", "undefined_gradients_stay_undefined", "attachment",
                  "        ctx.set_materialize_grads(False)\n        ctx.device, ctx.lane,", "        ctx.device, ctx.lane,"),
    OffloadMutant("overlooks-changes-through-data", "offload-models", "buffers_may_change_where_no_version_tells",
                  "statistics", "if argument.alias_info is not None and argument.alias_info.is_write:", "if False:"),
    OffloadMutant("makes-a-buffer-again", "offload-models", "a_buffer_made_in_forward_is_not_made_twice", "turn",
                  "            self.refuse_new_buffers()", "            pass"),
)  # fmt: skip
