"""Faults of the nested checkpoint that laws of the family structure must catch: arguments, outputs and calls."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import Args, change_inputs, change_output, change_restored
from conformance.mutants.mutant import Copy, mutant


@mutant("nested.inputs", "structure", "keyword_arguments", profile="default")
def passes_keyword_arguments_by_position(copy: Copy) -> None:
    """A recomputation gets keyword arguments by position, the last one first."""
    for kind in ("FlatInputs", "Inputs"):
        change_restored(copy, lambda args, kwargs: ((*args, *reversed(kwargs.values())), {}), kind)


@mutant("nested.api", "structure", "options_alone_give_a_decorator")
def decorates_without_its_options(copy: Copy) -> None:
    """A decorated function is called with the default options."""
    parameters = inspect.signature(copy["nested.api"].checkpoint).parameters.values()
    defaults = tuple(one.default for one in parameters if one.kind is one.KEYWORD_ONLY)
    copy.change_arguments("nested.api", "_Decorated.__init__", lambda given: given.update(options=defaults))


@mutant("nested.api", "structure", "options_alone_give_a_decorator")
def takes_methods_for_functions(copy: Copy) -> None:
    """A decorated method gets no self."""
    copy.replace("nested.api", "_Decorated.__get__", lambda self, instance, owner=None: self)


@mutant("nested.api", "structure", "containers_as_outputs")
def returns_lists_as_tuples(copy: Copy) -> None:
    """An output that is a list is returned as a tuple."""
    change_output(copy, lambda output, _: tuple(output) if isinstance(output, list) else output)


@mutant("nested.inputs", "structure", "keyword_arguments_that_are_false")
def sorts_keyword_arguments(copy: Copy) -> None:
    """A recomputation gets keyword arguments in the order of their names."""
    change_restored(copy, lambda args, kwargs: (args, dict(sorted(kwargs.items()))))


@mutant("nested.inputs", "structure", "non_tensor_arguments")
def takes_an_int_for_a_position(copy: Copy) -> None:
    """An int comes back as the tensor at that position, counted round."""

    def changed(whole: Any, value: Any, tensors: Any, *others: Any) -> Any:
        return tensors[value % len(tensors)] if isinstance(value, int) else whole(value, tensors, *others)

    copy.call_instead("nested.inputs", "_rebuild", changed)


@mutant("nested.inputs", "structure", "non_tensor_arguments")
def keeps_tensors_alone(copy: Copy) -> None:
    """A recomputation gets None in place of what is no tensor."""
    change_restored(copy, lambda args, kwargs: (tuple(one if isinstance(one, torch.Tensor) else None for one in args), kwargs))


@mutant("nested.api", "structure", "non_tensor_outputs")
def drops_none_from_outputs(copy: Copy) -> None:
    """An output that is a tuple is returned without None."""
    change_output(copy, lambda output, _: tuple(o for o in output if o is not None) if type(output) is tuple else output)


@mutant("nested.inputs", "structure", "keyword_arguments", profile="default")
def swaps_keyword_arguments_each_time(copy: Copy) -> None:
    """Each recomputation gets the values of keyword arguments in the order opposite to the one before."""
    copy.set_before(
        "nested.inputs",
        "FlatInputs.restore",
        kwargs=lambda self: dict(zip(self.kwargs, reversed(self.kwargs.values()), strict=True)),
    )


@mutant("nested.inputs", "structure", "keyword_arguments_that_are_false")
def drops_keyword_arguments_that_are_false(copy: Copy) -> None:
    """A recomputation gets no keyword arguments that are false, such as None and 0."""
    change_restored(copy, lambda args, kwargs: (args, {n: v for n, v in kwargs.items() if isinstance(v, torch.Tensor) or v}))


@mutant("nested.recomputation", "structure", "unused_outputs")
def expects_backward_to_read_all_it_recomputes(copy: Copy) -> None:
    """A backward that did not unpack all that was recomputed for it fails."""

    def changed(self: Any) -> None:
        if self:
            raise RuntimeError(f"{len(self)} recomputed tensors were never unpacked")

    copy.call_before("nested.recomputation", "RecomputedTensors.__call__", changed)


@mutant("nested.api", "structure", "outputs_that_are_inputs")
def returns_inputs_detached(copy: Copy) -> None:
    """An argument that is one of several outputs is returned detached."""

    def change(output: Any, args: Args) -> Any:
        if type(output) is not tuple:
            return output
        return tuple(o.detach() if any(o is a for a in args) else o for o in output)

    change_output(copy, change)


@mutant("nested.api", "structure", "outputs_that_are_views")
def returns_the_base_of_a_view(copy: Copy) -> None:
    """The base of a view that is one of several outputs is returned in its place."""

    def change(output: Any, args: Args) -> Any:
        return tuple(o if o._base is None else o._base for o in output) if type(output) is tuple else output

    change_output(copy, change)


@mutant("nested.api", "structure", "an_output_returned_twice")
def returns_an_output_detached_the_second_time(copy: Copy) -> None:
    """An output that occurs twice is returned detached at its second place."""

    def change(output: Any, args: Args) -> Any:
        if type(output) is not tuple:
            return output
        first = {id(o): i for i, o in reversed([*enumerate(output)])}
        return tuple(o if first[id(o)] == i else o.detach() for i, o in enumerate(output))

    change_output(copy, change)


@mutant("nested.inputs", "structure", "the_same_tensor_passed_twice")
def passes_a_repeated_argument_once(copy: Copy) -> None:
    """A recomputation gets an argument that is passed twice at its first place alone."""
    change_restored(copy, lambda args, kwargs: (tuple({id(one): one for one in args}.values()), kwargs))


@mutant("nested.api", "structure", "outputs_without_grad")
def lets_every_output_require_grad(copy: Copy) -> None:
    """Every output in floating point requires grad."""

    def change(output: Any, args: Args) -> Any:
        for one in output if type(output) is tuple else [output]:
            one.requires_grad_(one.is_floating_point())
        return output

    change_output(copy, change)


@mutant("nested.region", "structure", "the_same_call_again")
def takes_the_inputs_of_a_functions_first_call(copy: Copy) -> None:
    """A function is recomputed with the arguments of its first call."""
    change_inputs(copy, lambda function, inputs: vars(function).setdefault("inputs", inputs))


@mutant("nested.api", "structure", "the_same_call_again")
def remembers_the_value_of_a_call(copy: Copy) -> None:
    """A call of the same function with the same arguments returns what the one before returned."""
    known: dict[Any, Any] = {}

    def changed(run: Any, function: Any, args: Args, *others: Any) -> Any:
        if (function, *args) not in known:
            known[function, *args] = run(function, args, *others)
        return known[function, *args]

    copy.call_instead("nested.api", "_run", changed)


@mutant("nested.api", "structure", "buffers_among_the_outputs")
def lets_buffers_among_the_outputs_require_grad(copy: Copy) -> None:
    """What needs no grad and is one of several outputs, but no argument, requires grad from then on."""

    def change(output: Any, args: Args) -> Any:
        for one in output if type(output) is tuple else ():
            if one.is_leaf and one._base is None and not any(one is a for a in args):
                one.requires_grad_()
        return output

    change_output(copy, change)


def _hands_out_originals_if(copy: Copy, wanted: Any) -> None:
    copy.change_result("tensors.origins", "is_copy", lambda found, tensor, original: found and wanted(tensor, original))


@mutant("tensors.packed", "structure", "gradients_that_a_function_retains_on_its_argument")
def hands_out_another_object_of_a_result(copy: Copy) -> None:
    """A tensor that is kept for a recomputation comes back as another object, although the first one is alive."""
    _hands_out_originals_if(copy, lambda tensor, original: False)


@mutant("tensors.packed", "structure", "arguments_that_are_known_by_identity")
def makes_what_has_attributes_anew(copy: Copy) -> None:
    """An argument with attributes is another object in the recomputation, with the same attributes."""
    copy.change_result("tensors.packed", "Packed.has_same_attributes", lambda same, self, _: same and not self.attributes)


@mutant("tensors.packed", "structure", "arguments_that_hooks_copy_stay_the_callers")
def hands_out_what_hooks_copied(copy: Copy) -> None:
    """A tensor that hooks bring back in other memory is given to a recomputation."""
    _hands_out_originals_if(copy, lambda tensor, original: tensor.data_ptr() == original.data_ptr())


@mutant("nested.region", "structure", "results_from_a_closure_that_a_function_changes")
def looks_into_no_closures(copy: Copy) -> None:
    """Changes to what is in the closure of a function are not seen."""
    copy.replace("nested.region", "closed_over_results", lambda function: [], only_here=True)


@mutant("tensors.closures", "structure", "results_from_a_closure_that_a_function_changes")
def looks_into_the_closure_of_the_region_alone(copy: Copy) -> None:
    """Closures of functions that are in a closure are not looked at."""
    copy.replace("tensors.closures", "LIMIT", 1)
