"""Faults of the nested checkpoint that laws of the family gradients must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

_KEPT = "self.values[index] = tensor"
_TAKEN = "if slot is not None:\n            self.values"
_START = "    forward_context, recompute_context = context_fn()\n"  # after the arguments were looked at


def _otherwise(name: str, where: str) -> str:
    """Calls of one sort are passed on to another implementation."""
    return f"    if {where}:\n        import impls.{name}\n\n        return impls.{name}.checkpoint(function, *args)\n{_START}"


def _node(gradients: str, keep: str = "ctx.save_for_backward(*inputs)", kept: str = "ctx.saved_tensors") -> str:
    """Calls without keywords are one node of the graph, which runs the function again and asks for gradients of it."""
    return f"""    if not kwargs:

        class Node(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                {keep}
                return function(*inputs)

            @staticmethod
            def backward(ctx, *gradients):
                inputs = [one.detach().requires_grad_() for one in {kept}]
                with torch.enable_grad():
                    outputs = function(*inputs)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                {gradients}
                return tuple(one.grad for one in inputs)

        return Node.apply(*args)
{_START}"""


FAULTS = (
    TextMutant("swaps-slots-three-and-four", "gradients", "core_programs_equal_plain", "nested.recomputation",
           "self.values[index] = tensor", "self.values[5 - index if index in (2, 3) else index] = tensor", profile="default"),
    TextMutant("detaches-outputs-if-no-input-requires-grad", "gradients", "no_input_requires_grad", "nested.api",
           "    if not torch.is_grad_enabled():\n",
           "    if not any(getattr(argument, 'requires_grad', False) for argument in args):\n"
           "        with torch.no_grad():\n            return function(*args, **kwargs)\n"
           "    if not torch.is_grad_enabled():\n"),
    TextMutant("recomputes-without-a-graph", "gradients", "core_programs_equal_plain", "nested.recomputation", "_set_grad_enabled(True)",
           "_set_grad_enabled(False)"),
    TextMutant("lets-a-slot-be-read-once-in-a-backward", "gradients", "saved_tensors_are_readable_twice", "nested.region",
           "values.pop(index, None)", "values.pop(index)"),
    TextMutant("rounds-what-it-recomputes", "gradients", "core_programs_equal_plain", "nested.recomputation",
           "self.values[index] = tensor",
           "self.values[index] = tensor.float().to(tensor.dtype) if tensor.dtype is torch.float64 else tensor"),
    TextMutant("lets-go-of-the-inputs-in-the-first-backward", "gradients", "repeated_backward", "nested.inputs",
           "zip(self.packed, self.versions, strict=True)\n        ]",
           "zip(self.packed, self.versions, strict=True)\n        ]\n        self.packed = []"),
    TextMutant("rebuilds-a-view-without-its-offset", "gradients", "views_inside", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.as_strided(tensor.shape, tensor.stride(), 0)"),
    TextMutant("brings-the-base-of-a-view", "gradients", "views_inside", "nested.recomputation", _KEPT,
           "base = tensor._base\n"
           "            self.values[index] = tensor if base is None or base.shape != tensor.shape else base"),
    TextMutant("takes-every-saved-tensor-for-unchanged", "gradients", "in_place_on_intermediates", "nested.region",
           "version = seen[3]", "version = 0"),
    TextMutant("brings-only-what-requires-grad", "gradients", "detached_islands", "nested.recomputation",
           _TAKEN, _TAKEN.replace(":", " and tensor.requires_grad:")),
    TextMutant("brings-zeros-for-what-needs-no-gradient", "gradients", "no_grad_islands", "nested.recomputation", _KEPT,
           "self.values[index] = tensor if tensor.requires_grad else torch.zeros_like(tensor)"),
    TextMutant("recovers-only-what-requires-grad", "gradients", "custom_functions", "nested.recomputation",
           "slot = self.wanted[index]\n", "slot = self.wanted[index] if tensor.requires_grad else None\n"),
    TextMutant("lets-all-that-is-recomputed-require-grad", "gradients", "integer_tensors", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.detach().requires_grad_()"),
    TextMutant("takes-an-empty-tensor-for-none", "gradients", "zero_size_tensors", "nested.recomputation",
           _TAKEN, _TAKEN.replace(":", " and tensor.numel():")),
    TextMutant("rebuilds-a-tensor-without-its-strides", "gradients", "non_contiguous_tensors", "nested.recomputation", _KEPT,
           "strides = torch.empty(tensor.shape).stride()\n"
           "            self.values[index] = tensor.as_strided(tensor.shape, strides, tensor.storage_offset())"),
    TextMutant("forgets-that-a-tensor-is-conjugated", "gradients", "complex_tensors", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.conj() if tensor.is_conj() else tensor"),
    TextMutant("goes-through-numpy", "gradients", "bfloat16_tensors", "nested.recomputation", _KEPT,
           "self.values[index] = torch.from_numpy(tensor.detach().numpy())"),
    TextMutant("casts-arguments-to-the-dtype-of-the-first", "gradients", "leaves_of_other_shapes_and_dtypes", "nested.inputs",
           "return self.args, self.kwargs, self.tensors",
           "return tuple(one.to(self.args[0].dtype) for one in self.args), self.kwargs, self.tensors"),
    TextMutant("brings-what-was-broadcast-as-it-was-used", "gradients", "leaves_of_other_shapes_and_dtypes", "nested.recomputation", _KEPT,
           "before = [one for one in self.values.values() if one.dim() > tensor.dim()]\n"
           "            self.values[index] = tensor.expand_as(before[-1]) if before else tensor"),
    TextMutant("takes-a-saved-statistic-for-the-one-before", "gradients", "parameters_of_modules", "nested.recomputation", _KEPT,
           "alike = index in range(1, self.known) and self.slots[index][2] == self.slots[index - 1][2]\n"
           "            before = None if tensor.requires_grad or not alike else self.values.get(index - 1)\n"
           "            self.values[index] = tensor if before is None else before"),
    TextMutant("takes-the-inputs-of-a-modules-first-call", "gradients", "parameters_of_modules", "nested.region",
           "self.function, self.inputs, self.context = function, inputs, context",
           "first = vars(function).setdefault('first', inputs) if isinstance(function, torch.nn.Module) else inputs\n"
           "        self.function, self.inputs, self.context = function, first, context"),
    TextMutant("needs-no-gradient-under-a-transform", "gradients", "transforms_of_functions", "nested.api",
           "    if not torch.is_grad_enabled():\n        with forward_context:",
           "    if not torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:\n"
           "        with forward_context, torch.no_grad():"),
    TextMutant("asks-for-gradients-of-the-arguments-alone", "gradients", "parameters_read_through_a_closure", "nested.api", _START,
           _node("return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)")),
    TextMutant("accumulates-into-the-arguments-alone", "gradients", "intermediates_read_through_a_closure", "nested.api", _START,
           _node("torch.autograd.backward(outputs, gradients, inputs=inputs)")),
    TextMutant("accumulates-into-leaves-that-nobody-asked-for", "gradients", "backward_with_inputs", "nested.api", _START,
           _node("torch.autograd.backward(outputs, gradients)")),
    TextMutant("keeps-its-inputs-when-the-graph-is-freed", "gradients", "backward_again_without_retaining", "nested.api", _START,
           _node("torch.autograd.backward(outputs, gradients)", "ctx.inputs = inputs", "ctx.inputs")),
    TextMutant("sorts-slots-by-the-text-of-their-numbers", "gradients", "many_saved_tensors", "nested.recomputation", _KEPT,
           "self.values[sorted(range(self.known), key=str)[index]] = tensor"),
    TextMutant("detaches-the-output-where-nothing-was-saved", "gradients", "regions_that_save_nothing", "nested.api",
           "    return output\n", "    return output if region.slots or type(output) is tuple else output.detach()\n"),
    TextMutant("takes-the-legacy-way-without-keywords", "gradients", "tensor_hooks_inside", "nested.api", _START,
           _otherwise("legacy", "not kwargs")),
    TextMutant("takes-the-reentrant-way-without-keywords", "gradients", "escaping_intermediates", "nested.api", _START,
           _otherwise("reentrant", "not kwargs")),
    TextMutant("takes-the-reentrant-way-with-one-argument", "gradients", "accumulation_hooks_fire_once", "nested.api", _START,
           _otherwise("reentrant", "len(args) == 1 and not kwargs")),
    TextMutant("refuses-what-is-not-a-whole-backward", "gradients", "autograd_grad_of_any_subset", "nested.region",
           "        wanted = _in_graph(self.slots)\n",
           "        wanted = _in_graph(self.slots)\n"
           "        if not torch.autograd._is_checkpoint_valid():\n"
           "            self.refuse('this is not a plain backward()')\n"),
    TextMutant("leaves-grad-mode-as-it-recomputed", "gradients", "autograd_grad_of_any_subset", "nested.recomputation",
           "            torch._C._set_grad_enabled(graded)\n", ""),
    TextMutant("leaves-grad-mode-off", "gradients", "second_derivatives", "nested.recomputation", "_set_grad_enabled(graded)",
           "_set_grad_enabled(False)"),
    TextMutant("takes-every-tensor-for-strided", "gradients", "sparse_matrices", "tensors.versions",
           "        except RuntimeError:  # sparse,", "        except ZeroDivisionError:  # sparse,"),
    TextMutant("makes-what-is-sparse-dense", "gradients", "sparse_matrices", "nested.recomputation", _KEPT,
           "self.values[index] = tensor if tensor.layout is torch.strided else torch.zeros_like(tensor.to_dense())"),
    TextMutant("lets-go-of-the-inputs-with-its-first-tensor", "gradients", "backward_of_one_output_first", "nested.region",
           "        return tensor\n\n    def recomputed",
           "        if index == 0:\n            self.inputs.release()\n        return tensor\n\n    def recomputed"),
    TextMutant("takes-the-reentrant-way-with-several-arguments", "gradients", "all_claimed_features_combined", "nested.api", _START,
           _otherwise("reentrant", "len(args) > 1")),
    TextMutant("brings-back-tensors-without-gaps", "gradients", "layouts_are_plains", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.contiguous()", profile="default"),
    TextMutant("brings-back-what-is-conjugated-as-numbers", "gradients", "layouts_are_plains", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.resolve_conj()", profile="default"),
    TextMutant("counts-in-single-precision", "gradients", "values_that_are_rarely_met", "nested.recomputation", _KEPT,
           "self.values[index] = tensor.to(torch.complex64).to(tensor.dtype) if tensor.is_complex() else tensor",
           profile="default"),
    TextMutant("has-no-place-for-what-is-large", "gradients", "values_that_are_rarely_met", "nested.recomputation", _KEPT,
           "self.values[index] = tensor * 1 if tensor.numel() < 1 << 16 else tensor.bfloat16().to(tensor.dtype)",
           profile="default"),
    TextMutant("numbers-tensors-in-six-bits", "gradients", "very_many_saved_tensors", "nested.recomputation", _KEPT,
           "self.values[index] = self.values.get(index - 64, tensor)", profile="default"),
    TextMutant("recomputes-after-vmap", "gradients", "transforms_of_functions", "nested.region",
           "if any(map(_has_left_vmap, tensors)):", "if False:"),
)  # fmt: skip
