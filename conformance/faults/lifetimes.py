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
           "    return output\n", "    region.output = output\n    return output\n"),
    Mutant("leaves-its-hooks-on-after-an-error", "lifetimes", "an_error_leaves_hooks_and_grad_mode", "nested",
           "    finally:\n        _pop_hooks()",
           "    except ZeroDivisionError:\n        raise\n    else:\n        _pop_hooks()"),
    Mutant("lets-go-at-the-next-backward", "lifetimes", "a_request_for_some_gradients_keeps_nothing", "region",
           "self.values[task] = weakref.ref(values)\n"
           "            torch.autograd.Variable._execution_engine.queue_callback(values)",
           "self.values = {task: lambda: values}"),
    Mutant("recomputed-graph-owns-its-tensors", "lifetimes", "a_differentiable_backward_keeps_nothing", "recomputation",
           "            return slot\n", "            return tensor\n"),
    Mutant("keeps-what-each-backward-left", "lifetimes", "partial_backward_passes_over_one_graph", "region",
           "self.values[task] = weakref.ref(values)\n", "self.values[task] = lambda: values\n        if False:\n"),
    Mutant("lets-the-graph-own-what-is-left", "lifetimes", "what_a_request_did_not_need_dies_with_it", "region",
           "torch.autograd.Variable._execution_engine.queue_callback(values)", "slot[1].values = values"),
    Mutant("remembers-what-it-unpacked-last", "lifetimes", "a_backward_that_is_refused_keeps_nothing", "region",
           "\"unlike in forward\")  # fmt: skip\n", "\"unlike in forward\")  # fmt: skip\n        self.newest = tensor\n"),
    Mutant("has-its-own-words-for-a-second-backward", "lifetimes", "a_second_backward_raises_what_plain_raises", "nested",
           "    return output\n",
           "    if isinstance(output, torch.Tensor) and region.slots:\n"
           "        freed = \"its graph was freed by an earlier backward\"\n"
           "        output.register_hook("
           "lambda _: None if any(region.pack.__globals__['_in_graph'](region.slots)) else region.refuse(freed))\n"
           "    return output\n"),
    Mutant("keeps-the-tensor-that-was-asked-for-first", "lifetimes", "recomputed_tensors_live_no_longer_than_saved_ones",
           "region", "return values.pop(slot[0])", "return values[slot[0]]"),
    Mutant("always-waits-with-the-stop", "lifetimes", "early_stop_leaves_the_tail_unrun", "recomputation",
           "    return -1\n", "    return last\n"),
    Mutant("stops-early-in-outermost-regions-alone", "lifetimes", "early_stop_leaves_the_tail_unrun", "nested",
           "region.early_stop = early_stop if override is None else override",
           "region.early_stop = (early_stop if override is None else override) and region.enclosing is None"),
    Mutant("writes-the-region-down-on-the-function", "lifetimes", "a_callable_of_any_kind_makes_no_cycle", "region",
           "self.function, self.inputs, self.context = function, inputs, context",
           "self.function, self.inputs, self.context = function, inputs, context\n        function.region = self"),
    Mutant("keeps-tensors-that-have-hooks", "lifetimes", "hooks_of_the_user_make_no_cycle", "region",
           "        seen = look(tensor)\n",
           "        if tensor._backward_hooks:\n            self.hooked = tensor\n        seen = look(tensor)\n"),
    Mutant("keeps-inputs-that-were-changed", "lifetimes", "a_region_that_changes_its_input_makes_no_cycle", "nested",
           "if region.inputs.changed() is not None:", "if False:"),
    Mutant("keeps-inputs-changed-before-an-error", "lifetimes", "a_region_that_changes_its_input_makes_no_cycle", "nested",
           "if region.inputs.changed() is not None:", "if region.complete and region.inputs.changed() is not None:"),
    Mutant("keeps-the-error-of-forward", "lifetimes", "an_error_in_forward_keeps_nothing", "nested",
           "    finally:\n        _pop_hooks()",
           "    except BaseException as error:\n        region.error = error\n        raise\n    finally:\n"
           "        _pop_hooks()"),
    Mutant("lets-go-only-when-all-went-well", "lifetimes", "an_error_in_recomputation_keeps_nothing", "recomputation",
           "            self.values, self.wanted = Values(), ()", "        self.values, self.wanted = Values(), ()"),
    Mutant("keeps-the-error-of-a-recomputation", "lifetimes", "a_graph_that_failed_is_freed_when_dropped", "region",
           "        finally:\n            lock.release()",
           "        except BaseException as error:\n            self.error = error\n            raise\n        finally:\n"
           "            lock.release()"),
    Mutant("puts-the-stream-back-after-exceptions-alone", "lifetimes", "an_error_leaves_the_stream_of_random_numbers",
           "recomputation", "        finally:\n            ambient.set_generators(present)",
           "        except Exception:\n            ambient.set_generators(present)\n            raise\n"
           "        ambient.set_generators(present)"),
    Mutant("leaves-autocast-on-after-an-error", "lifetimes", "an_error_leaves_autocast", "ambient",
           "if self.stack is not None:", "if self.stack is not None and error[0] is None:"),
    Mutant("does-not-wait-for-another-thread", "lifetimes", "two_threads_over_one_graph", "region", "lock.acquire(timeout=300)",
           "lock.acquire(blocking=False)"),
    Mutant("has-regions-of-each-thread", "lifetimes", "backward_in_another_thread", "region", "class Region:",
           "class Region(threading.local):"),
    Mutant("saves-in-the-newest-region", "lifetimes", "a_forward_on_another_thread_meanwhile", "nested",
           "    _push_hooks(region.pack, region.unpack)\n",
           "    vars(_validate)['newest'] = region\n"
           "    _push_hooks(lambda tensor: vars(_validate)['newest'].pack(tensor), region.unpack)\n"),
    Mutant("refuses-while-forward-is-under-way-elsewhere", "lifetimes", "backward_of_a_region_that_is_under_way", "region",
           "        changed = self.inputs.changed()\n",
           "        if not complete and _enclosing() is None:\n            self.refuse('its forward has not ended')\n"
           "        changed = self.inputs.changed()\n"),
    Mutant("raises-one-stop-for-all", "lifetimes", "a_retained_backward_keeps_nothing", "recomputation",
           "lets it pass.\"\"\"\n",
           "lets it pass.\"\"\"\n\n    def __new__(cls, made=[]):\n        made or made.append(super().__new__(cls))\n"
           "        return made[0]\n"),
    Mutant("saves-unneeded-outputs-in-their-own-graph", "lifetimes", "reading_saved_tensors_keeps_nothing", "recomputation",
           "return detached(tensor) if tensor.requires_grad else tensor", "return tensor"),
    Mutant("keeps-the-inputs-it-restored", "lifetimes", "schedules_in_any_order", "region",
           "args, kwargs, hooked = self.inputs.restore()",
           "args, kwargs, hooked = self.restored = self.inputs.restore()"),
    Mutant("lets-pytree-keep-the-arguments", "lifetimes", "arguments_in_containers_are_freed", "inputs",
           "lambda node: id(node) in inner", "lambda node: node is not tree and id(node) in self.repeated"),
    Mutant("lets-pytree-keep-what-it-looked-through", "lifetimes", "arguments_in_containers_are_freed", "inputs",
           "    seen.clear()\n    trees.clear()\n", ""),
    Mutant("keeps-attributes-that-are-tensors", "lifetimes", "attributes_that_are_tensors_are_freed", "packed",
           "known.get(id(value)) or Packed(value, known) if isinstance(value, torch.Tensor) else value", "value"),
    Mutant("remembers-the-objects-of-the-last-call", "lifetimes", "objects_are_let_go_with_the_graph", "nested",
           "    _validate(function, context_fn, determinism_check, kwargs)\n",
           "    _validate(function, context_fn, determinism_check, kwargs)\n"
           "    vars(_validate)['last'] = [one for one in args if not isinstance(one, torch.Tensor)]\n"),
    Mutant("remembers-the-last-function", "lifetimes", "objects_are_let_go_with_the_graph", "nested",
           "    _validate(function, context_fn, determinism_check, kwargs)\n",
           "    _validate(function, context_fn, determinism_check, kwargs)\n    vars(_validate)['last'] = function\n"),
    Mutant("has-one-lock-for-all", "lifetimes", "regions_of_two_threads_run_at_once", "region",
           "lock = _turn if self.states else self.lock", "lock = _turn"),
    Mutant("lets-one-forward-run-at-a-time", "lifetimes", "regions_of_two_threads_run_at_once", "nested",
           "        if forward_context is NOTHING and not debug:\n            output = function(*args, **kwargs)\n",
           "        if forward_context is NOTHING and not debug:\n            import impls.region\n\n"
           "            with impls.region._turn:\n                output = function(*args, **kwargs)\n"),
    Mutant("keeps-tensors-of-subclasses", "lifetimes", "attributes_that_are_tensors_are_freed", "packed",
           "None if ordinary or not isinstance(tensor, torch.nn.Parameter) else tensor", "None if ordinary else tensor"),
    Mutant("keeps-a-log-of-what-failed", "lifetimes", "steps_leave_nothing_behind", "region",
           "        finally:\n            lock.release()",
           "        except Exception:\n            self.failed = [*getattr(self, 'failed', ()), [task]]\n            raise\n"
           "        finally:\n            lock.release()"),
    Mutant("keeps-its-lock-after-an-error", "lifetimes", "another_thread_goes_on_after_an_error", "region",
           "            return values.pop(slot[0])\n        finally:\n            lock.release()",
           "            value = values.pop(slot[0])\n            lock.release()\n            return value\n"
           "        finally:\n            pass"),
    Mutant("keeps-integers", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "region",
           "        seen = look(tensor)\n",
           "        if not tensor.dtype.is_floating_point and not tensor.is_complex():\n"
           "            self.kept = [*vars(self).get('kept', ()), tensor]\n"
           "        seen = look(tensor)\n", profile="default"),
    Mutant("keeps-what-is-complex", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "region",
           "        seen = look(tensor)\n",
           "        if tensor.is_complex():\n            self.kept = [*vars(self).get('kept', ()), tensor]\n"
           "        seen = look(tensor)\n", profile="default"),
    Mutant("keeps-what-was-changed-before", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "region",
           "        seen = look(tensor)\n",
           "        if tensor._version:\n            self.kept = [*vars(self).get('kept', ()), tensor]\n"
           "        seen = look(tensor)\n", profile="default"),
    Mutant("keeps-lower-precision", "lifetimes", "nothing_of_the_inside_is_alive_after_forward", "region",
           "        seen = look(tensor)\n",
           "        if tensor.dtype is torch.bfloat16:\n            self.kept = [*vars(self).get('kept', ()), tensor]\n"
           "        seen = look(tensor)\n", profile="default"),
)  # fmt: skip
