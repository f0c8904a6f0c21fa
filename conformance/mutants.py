"""Implementations with one fault each: the nested checkpoint with one place of its text replaced.

A mutant is what a law is sharpened on. It names the law that must catch it, and the place that it changes must occur
exactly once in the text, so that a mutant can never silently become the correct implementation.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import impls
import impls.nested
from impls import Implementation

# The modules that nested consists of, each after those that it imports.
PARTS = ("versions", "ambient", "operators", "packed", "inputs", "recomputation", "region", "nested")


@dataclass(frozen=True)
class Mutant:
    """One fault: in ``part``, ``text`` is replaced by ``fault``; ``law``, which is one of ``family``, catches it.

    ``profile`` names how many cases the law needs for that. Raises ValueError when a field is empty and, once the
    implementation is asked for, when ``part`` is none of nested's or ``text`` does not occur in it exactly once.
    """

    name: str
    family: str
    law: str
    part: str
    text: str
    fault: str
    profile: str = "quick"

    def __post_init__(self) -> None:
        for field in ("name", "family", "law", "text"):
            if not getattr(self, field):
                raise ValueError(f"mutant {self.name!r}: {field} is empty; it must name what its name says")
        if self.part not in PARTS:
            raise ValueError(f"mutant {self.name!r}: part is {self.part!r}; it must be one of {', '.join(PARTS)}")

    @functools.cached_property
    def implementation(self) -> Implementation:
        """The faulty implementation, which claims all that nested claims."""
        package = f"reprise_mutant_{self.name.replace('-', '_')}"
        root = ModuleType(package)
        root.__path__ = []
        sys.modules[package] = root
        for part in ("implementation", "sequential"):
            sys.modules[f"{package}.{part}"] = sys.modules[f"impls.{part}"]
        for part in PARTS:
            module = ModuleType(f"{package}.{part}")
            sys.modules[module.__name__] = module
            setattr(root, part, module)
            exec(compile(self.source(part, package), f"<{self.name}: {part}>", "exec"), module.__dict__)
        nested = impls.get("nested")
        checkpoint = sys.modules[f"{package}.nested"].checkpoint
        summary = f"nested, but: {self.fault}"
        return Implementation(self.name, checkpoint, summary, "conformance.mutants", nested.capabilities, nested.known)

    def source(self, part: str, package: str) -> str:
        text = (Path(impls.__file__).parent / f"{part}.py").read_text()
        if part == self.part:
            times = text.count(self.text)
            if times != 1:
                raise ValueError(f"mutant {self.name}: {self.text!r} occurs {times} times in {part}, not once")
            text = text.replace(self.text, self.fault)
        return text.replace("from impls.", f"from {package}.").replace("from impls import", f"from {package} import")


MUTANTS = (
    Mutant("swaps-slots-three-and-four", "gradients", "core_programs_equal_plain", "recomputation",
           "self.values[index] = tensor",
           "self.values[5 - index if index in (2, 3) else index] = tensor", profile="default"),
    Mutant("checkpoints-only-if-an-input-requires-grad", "gradients", "no_input_requires_grad", "nested",
           "if not torch.is_grad_enabled():",
           "if not torch.is_grad_enabled() or not any(getattr(a, 'requires_grad', True) for a in args):"),
    Mutant("recomputes-without-a-graph", "gradients", "core_programs_equal_plain", "recomputation",
           "_set_grad_enabled(True)",
           "_set_grad_enabled(False)"),
    Mutant("lets-a-slot-be-read-once-in-a-backward", "gradients", "saved_tensors_are_readable_twice", "region",
           "values.pop(index, None)",
           "values.pop(index)"),
    Mutant("rounds-what-it-recomputes", "gradients", "core_programs_equal_plain", "recomputation",
           "self.values[index] = tensor",
           "self.values[index] = tensor.float().to(tensor.dtype) if tensor.dtype is torch.float64 else tensor"),
    Mutant("lets-go-of-the-inputs-in-the-first-backward", "gradients", "repeated_backward", "inputs",
           "zip(self.packed, self.versions, strict=True)\n        ]",
           "zip(self.packed, self.versions, strict=True)\n        ]\n        self.packed = []"),
    Mutant("passes-keyword-arguments-by-position", "structure", "keyword_arguments", "region",
           "run.run(lambda: self.function(*args, **kwargs)",
           "run.run(lambda: self.function(*args, *reversed(kwargs.values()))", profile="default"),
    Mutant("returns-lists-as-tuples", "structure", "containers_as_outputs", "nested", "    return output\n",
           "    return tuple(output) if isinstance(output, list) else output\n"),
    Mutant("rebuilds-a-dataclass-as-a-dict", "structure", "containers_as_arguments", "inputs",
           "if id(self) not in made:",
           "if True:\n            return put_together(self.fields, tensors, made)\n        if False:"),
    Mutant("rebuilds-what-holds-no-tensor", "structure", "objects_without_tensors", "inputs",
           "if any(isinstance(leaf, _Position | _Record) for leaf in fields[0]):", "if True:"),
    Mutant("takes-an-int-for-a-position", "structure", "non_tensor_arguments", "inputs", "type(leaf) is _Position",
           "isinstance(leaf, int)"),
    Mutant("drops-none-from-outputs", "structure", "non_tensor_outputs", "nested", "    return output\n",
           "    return tuple(o for o in output if o is not None) if type(output) is tuple else output\n"),
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
    Mutant("never-stops-early", "costs", "calls_with_early_stop", "nested",
           "region.early_stop = early_stop if override is None else override", "region.early_stop = False"),
    Mutant("stops-one-tensor-late", "costs", "kernels_with_early_stop", "recomputation",
           "index >= self.until",
           "index > self.until"),
    Mutant("ignores-early-stop-switched-off", "costs", "kernels_without_early_stop", "nested",
           "early_stop if override is None else override", "override is not False"),
    Mutant("recomputes-for-each-saved-tensor", "costs", "no_region_runs_too_often", "region",
           "if task == -1 or self.recomputed(task) is not None:",
           "if True:"),
    Mutant("shares-values-between-backwards", "costs", "a_backward_during_another_recomputes_for_itself", "region",
           "task = torch._C._current_graph_task_id()",
           "task = 0"),
    Mutant("recomputes-slots-that-were-cleared", "costs", "what_the_graph_has_freed_is_not_recomputed", "region",
           "self.slots.append(weakref.ref(slot))",
           "self.slots.append(lambda: slot)"),
    Mutant("keeps-recomputed-tensors-after-backward", "lifetimes", "a_backward_of_some_outputs_keeps_nothing", "region",
           "torch.autograd.Variable._execution_engine.queue_callback(values)",
           "self.kept = values"),
    Mutant("never-forgets-a-backward", "lifetimes", "steps_leave_nothing_behind", "region",
           "self.values = {key: weak for key, weak in self.values.items() if weak() is not None}",
           "pass"),
    Mutant("keeps-what-was-unpacked", "lifetimes", "each_recomputed_tensor_dies_at_its_unpack", "region",
           "values.pop(index, None)",
           "values.get(index)"),
    Mutant("waits-for-the-collector", "lifetimes", "dropping_the_outputs_frees_everything", "region",
           "self.check, self.complete = True, True, False",
           "self.check, self.complete = True, True, False; self.itself = self"),
    Mutant("keeps-the-storage-with-the-counter", "lifetimes", "nothing_of_the_inside_is_alive_after_forward",
           "versions", "            alias.data = _EMPTY", "            pass"),
    Mutant("keeps-the-output-with-the-region", "lifetimes", "dropping_the_outputs_frees_everything", "nested",
           "        region.enclosing = region.look = None\n",
           "        region.enclosing = region.look = None\n    region.output = output\n"),
    Mutant("leaves-its-hooks-on-after-an-error", "lifetimes", "an_error_leaves_hooks_and_grad_mode", "nested",
           "    finally:\n        _pop_hooks()",
           "    except ZeroDivisionError:\n        raise\n    else:\n        _pop_hooks()"),
    Mutant("replays-no-random-numbers", "rng", "dropout_masks_are_replayed", "recomputation",
           "            ambient.set_generators(states)", "            pass"),
    Mutant("does-not-put-the-stream-back", "rng", "ambient_stream_is_left_alone", "recomputation",
           "            ambient.set_generators(present)", "            pass"),
    Mutant("does-not-put-the-stream-back-after-an-error", "rng", "an_error_leaves_the_stream_alone", "recomputation",
           "        finally:\n            ambient.set_generators(present)",
           "        except ZeroDivisionError:\n            raise\n        ambient.set_generators(present)"),
    Mutant("replays-in-the-first-backward-only", "rng", "every_backward_draws_the_same", "recomputation",
           "            ambient.set_generators(states)",
           "            ambient.set_generators(states)\n            states.clear()"),
    Mutant("replays-from-the-seed", "rng", "draws_between_regions", "ambient", "generator.set_state(state)",
           "generator.manual_seed(generator.initial_seed())"),
    Mutant("always-preserves-random-numbers", "rng", "preserve_rng_state_switched_off", "nested",
           "if preserve_rng_state:", "if True:"),
    Mutant("overlooks-explicit-generators", "rng", "explicit_generators_are_replayed", "inputs",
           "isinstance(leaf, torch.Generator)", "False"),
    Mutant("lets-two-threads-recompute-at-once", "rng", "two_threads_draw_their_own", "region",
           "lock = _turn if self.states else self.lock",
           "lock = threading.RLock()"),
    Mutant("forgets-the-device-context", "ambient", "device_context_is_forwards", "ambient",
           "if wanted.device != present.device:", "if False:"),
    Mutant("never-leaves-a-device-context", "ambient", "device_context_is_forwards", "ambient",
           "if wanted.device != present.device:", "if wanted.device not in (None, present.device):", profile="default"),
    Mutant("forgets-the-default-dtype", "ambient", "default_dtype_is_forwards", "ambient",
           "        _set_global(wanted)\n\n",
           "        _set_global(wanted._replace(dtype=present.dtype))\n\n"),
    Mutant("leaves-the-default-dtype-behind", "ambient", "default_dtype_is_forwards", "ambient",
           "_set_global(self.present)",
           "_set_global(self.present._replace(dtype=self.wanted.dtype))"),
    Mutant("forgets-deterministic-algorithms", "ambient", "deterministic_flags_are_forwards", "ambient",
           "if _deterministic() != wanted.deterministic:",
           "if False:"),
    Mutant("forgets-warn-only", "ambient", "deterministic_flags_are_forwards", "ambient",
           "wanted.deterministic[0], warn_only=wanted.deterministic[1]", "wanted.deterministic[0]"),
    Mutant("forgets-autocast", "autocast", "autocast_is_forwards", "ambient",
           "if (wanted.autocast, wanted.cache) != (present.autocast, present.cache):", "if False:", profile="default"),
    Mutant("forgets-the-autocast-cache", "autocast", "autocast_is_forwards", "ambient", "dtype, enabled, wanted.cache",
           "dtype, enabled", profile="default"),
    Mutant("forgets-the-autocast-dtype", "autocast", "autocast_is_forwards", "ambient",
           "torch.autocast(kind, dtype, enabled, wanted.cache)",
           "torch.autocast(kind, torch.bfloat16, enabled, wanted.cache)"),
    Mutant("never-switches-autocast-off", "autocast", "autocast_is_forwards", "ambient",
           "for kind, enabled, dtype in wanted.autocast:",
           "for kind, enabled, dtype in (one for one in wanted.autocast if one[1]):", profile="default"),
    Mutant("overlooks-changes-since-forward", "errors", "changed_outputs", "region",
           "if now != version:", "if False:"),
    Mutant("compares-no-versions-when-it-recomputes", "errors", "gradients_beside_a_changed_weight", "recomputation",
           "if tensor._version != version:",
           "if False:"),
    Mutant("lets-the-recomputation-corrupt-what-it-saved", "errors", "corruption_by_the_recomputation_is_reported",
           "region",
           "if tensor._version != version:",
           "if False:"),
    Mutant("brings-what-it-has-when-tensors-are-missing", "errors", "missing_tensors_are_reported_in_any_case",
           "recomputation",
           "len(values) < due",
           "not values"),
    Mutant("lets-an-input-be-changed", "errors", "a_function_that_changes_its_argument", "region",
           "if changed is not None:",
           "if False:"),
    Mutant("expects-versions-of-copies", "errors", "hooks_that_copy_after_changes", "packed",
           "if version is not None and tensor._version != version:", "if False:"),
    Mutant("compares-no-metadata", "errors", "other_saved_tensors_are_reported", "recomputation",
           "if self.check and self.wanted[index] is not None:",
           "if False:"),
    Mutant("compares-no-dtypes", "errors", "other_saved_tensors_are_reported", "versions",
           "attrgetter(\"shape\", \"dtype\"",
           "attrgetter(\"shape\", \"layout\""),
    Mutant("compares-ranks-instead-of-shapes", "errors", "other_saved_tensors_are_reported", "versions",
           "attrgetter(\"shape\"",
           "attrgetter(\"names\"", profile="default"),
    Mutant("allows-one-tensor-more-or-less", "errors", "more_saved_tensors_are_reported", "recomputation",
           "self.count != self.known",
           "abs(self.count - self.known) > 1"),
    Mutant("ignores-a-mismatch", "errors", "other_saved_tensors_are_reported", "region",
           "if run.mismatch is not None:",
           "if False:"),
    Mutant("says-nothing-when-it-refuses", "errors", "other_saved_tensors_are_reported", "region",
           "raise CheckpointError(message)",
           "raise CheckpointError()"),
    Mutant("takes-any-determinism-check", "errors", "wrong_arguments_are_refused", "nested",
           "if determinism_check not in", "if False and determinism_check not in"),
    Mutant("checks-even-if-told-not-to", "errors", "the_determinism_check_can_be_switched_off", "nested",
           "determinism_check == \"default\"", "True"),
    Mutant("swallows-what-its-context-swallows", "errors", "a_context_that_swallows_is_refused", "nested",
           "if not region.complete:", "if False:"),
)  # fmt: skip
