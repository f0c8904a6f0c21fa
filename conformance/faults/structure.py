"""Faults of the nested checkpoint that laws of the family structure must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("passes-keyword-arguments-by-position", "structure", "keyword_arguments", "region",
           "run.run(lambda: self.function(*args, **kwargs)", "run.run(lambda: self.function(*args, *reversed(kwargs.values()))",
           profile="default"),
    Mutant("returns-lists-as-tuples", "structure", "containers_as_outputs", "nested", "    return output\n",
           "    return tuple(output) if isinstance(output, list) else output\n"),
    Mutant("sorts-keyword-arguments", "structure", "keyword_arguments_that_are_false", "inputs",
           "return self.args, self.kwargs, Hooked", "return self.args, dict(sorted(self.kwargs.items())), Hooked"),
    Mutant("rebuilds-a-dataclass-as-a-dict", "structure", "containers_as_arguments", "inputs", "if id(self) not in made:",
           "if True:\n            return put_together(self.fields, tensors, made)\n        if False:"),
    Mutant("rebuilds-what-holds-no-tensor", "structure", "objects_without_tensors", "inputs",
           "if any(isinstance(leaf, _Position | _Record) for leaf in fields[0]):", "if True:"),
    Mutant("takes-an-int-for-a-position", "structure", "non_tensor_arguments", "inputs", "type(leaf) is _Position",
           "isinstance(leaf, int)"),
    Mutant("keeps-tensors-alone", "structure", "non_tensor_arguments", "inputs", "return self.args, self.kwargs, Hooked",
           "return tuple(one if type(one) in _TENSORS else None for one in self.args), self.kwargs, Hooked"),
    Mutant("drops-none-from-outputs", "structure", "non_tensor_outputs", "nested", "    return output\n",
           "    return tuple(o for o in output if o is not None) if type(output) is tuple else output\n"),
    Mutant("puts-containers-together-once", "structure", "containers_that_the_function_empties", "inputs",
           "            return *put_together((leaves, spec), tensors, {}), Hooked(tensors)\n",
           "            self.structure = put_together((leaves, spec), tensors, {}), None\n"
           "            return *self.structure[0], Hooked(tensors)\n"
           "        if spec is None:\n            return *leaves, Hooked(tensors)\n"),
    Mutant("puts-a-container-together-at-each-place", "structure", "a_container_passed_twice", "inputs",
           "lambda node: id(node) in inner", "lambda node: False"),
    Mutant("puts-a-dataclass-together-at-each-place", "structure", "a_container_passed_twice", "inputs",
           "if id(self) not in made:", "if True:"),
    Mutant("takes-a-repeated-container-apart-at-each-place", "structure", "a_container_passed_twice", "inputs",
           "            if id(leaf) not in self.records:\n", "            if True:\n"),
    Mutant("constructs-a-dataclass-anew", "structure", "dataclasses_are_not_constructed_anew", "inputs",
           "            made[id(self)] = object.__new__(self.kind)\n            vars(made[id(self)]).update(",
           "            made[id(self)] = self.kind(put_together(self.fields, tensors, made)['value'])\n            ("),
    Mutant("knows-the-fields-of-a-dataclass-alone", "structure", "dataclasses_are_not_constructed_anew", "inputs",
           "self.take_apart(dict(vars(value)))",
           "self.take_apart({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})"),
    Mutant("swaps-keyword-arguments-each-time", "structure", "keyword_arguments", "inputs",
           "return self.args, self.kwargs, Hooked",
           "values = reversed(self.kwargs.values())\n"
           "        self.kwargs = dict(zip(self.kwargs, values, strict=True))\n"
           "        return self.args, self.kwargs, Hooked", profile="default"),
    Mutant("drops-keyword-arguments-that-are-false", "structure", "keyword_arguments_that_are_false", "inputs",
           "return self.args, self.kwargs, Hooked",
           "return self.args, {n: v for n, v in self.kwargs.items() if isinstance(v, torch.Tensor) or v}, Hooked"),
    Mutant("expects-backward-to-read-all-it-recomputes", "structure", "unused_outputs", "recomputation",
           "        self.clear()\n",
           "        if self:\n            raise RuntimeError(f'{len(self)} recomputed tensors were never unpacked')\n"),
    Mutant("returns-inputs-detached", "structure", "outputs_that_are_inputs", "nested", "    return output\n",
           "    if type(output) is tuple:\n"
           "        output = tuple(o.detach() if any(o is a for a in args) else o for o in output)\n"
           "    return output\n"),
    Mutant("returns-the-base-of-a-view", "structure", "outputs_that_are_views", "nested", "    return output\n",
           "    if type(output) is tuple:\n        output = tuple(o if o._base is None else o._base for o in output)\n"
           "    return output\n"),
    Mutant("returns-an-output-detached-the-second-time", "structure", "an_output_returned_twice", "nested",
           "    return output\n",
           "    if type(output) is tuple:\n        numbered = {id(o): i for i, o in reversed([*enumerate(output)])}\n"
           "        output = tuple(o if numbered[id(o)] == i else o.detach() for i, o in enumerate(output))\n"
           "    return output\n"),
    Mutant("passes-a-repeated-argument-once", "structure", "the_same_tensor_passed_twice", "inputs",
           "return self.args, self.kwargs, Hooked",
           "return tuple({id(one): one for one in self.args}.values()), self.kwargs, Hooked"),
    Mutant("lets-every-output-require-grad", "structure", "outputs_without_grad", "nested", "    return output\n",
           "    for one in output if type(output) is tuple else [output]:\n"
           "        one.requires_grad_(one.is_floating_point())\n    return output\n"),
    Mutant("takes-the-inputs-of-a-functions-first-call", "structure", "the_same_call_again", "region",
           "self.function, self.inputs, self.context = function, inputs, context",
           "self.function, self.inputs, self.context = function, vars(function).setdefault('inputs', inputs), context"),
    Mutant("remembers-the-value-of-a-call", "structure", "the_same_call_again", "nested",
           "            output = function(*args, **kwargs)\n            region.complete = True\n        else",
           "            known = vars(_validate).setdefault('known', {})\n            if (function, *args) not in known:\n"
           "                known[function, *args] = function(*args, **kwargs)\n            output = known[function, *args]\n"
           "            region.complete = True\n        else"),
    Mutant("leaves-the-hooks-of-a-recomputation", "structure", "hooks_that_a_function_registers_on_its_argument", "region",
           "            hooked.restore()", "            pass"),
    Mutant("leaves-the-hooks-of-a-recomputation-that-fails", "structure", "hooks_that_a_function_registers_on_its_argument",
           "region", "        finally:\n            hooked.restore()",
           "        except Exception:\n            raise\n        else:\n            hooked.restore()"),
    Mutant("takes-off-the-hooks-of-the-user-too", "structure", "hooks_that_a_function_registers_on_its_argument", "inputs",
           "set(registered or ()) - before", "set(registered or ())"),
    Mutant("forgets-hooks-on-accumulation", "structure", "hooks_that_a_function_registers_on_its_argument", "inputs",
           "in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks):", "in (tensor._backward_hooks,):"),
    Mutant("knows-hooks-of-the-first-argument-alone", "structure", "hooks_that_a_function_registers_on_its_argument", "inputs",
           "self.tensors, self.before = tensors, [_hooks(tensor) for tensor in tensors]",
           "self.tensors, self.before = tensors[:1], [_hooks(tensor) for tensor in tensors[:1]]"),
    Mutant("takes-one-hook-off", "structure", "hooks_that_a_function_registers_on_its_argument", "inputs",
           "in set(registered or ()) - before:", "in [*(set(registered or ()) - before)][:1]:"),
    Mutant("knows-hooks-of-positional-arguments-alone", "structure", "hooks_on_arguments_by_keyword_and_in_containers",
           "inputs", "self.args, self.kwargs, Hooked(self.tensors)",
           "self.args, self.kwargs, Hooked([one for one in self.args if type(one) in _TENSORS])"),
    Mutant("leaves-hooks-on-what-containers-hold", "structure", "hooks_on_arguments_by_keyword_and_in_containers", "inputs",
           "tensors, {}), Hooked(tensors)\n", "tensors, {}), Hooked([])\n"),
    Mutant("looks-for-repeated-containers-by-position-alone", "structure", "a_container_passed_twice", "inputs",
           "self.repeated = _repeated(tree)", "self.repeated = _repeated(tree[0])"),
)  # fmt: skip
