"""Faults of the nested checkpoint that laws of the family structure must catch."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def return_as(copy: Copy, change: Callable[[Any, _Args], Any]) -> None:
    """A call returns ``change(output, args)`` in place of its output."""
    copy.call_instead("nested.api", "_run", lambda run, function, args, *others: change(run(function, args, *others), args))


def restore(copy: Copy, change: Callable[[_Args, _Kwargs], tuple[_Args, _Kwargs]], kind: str = "Held") -> None:
    """A recomputation gets ``change(args, kwargs)``; of calls without containers, or, as ``Inputs``, of those with some."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, *others = there(self)
        return *change(args, kwargs), *others

    copy.call_instead("nested.inputs", f"{kind}.restore", changed)


def take_inputs(copy: Copy, change: Callable[[Any, Any], Any]) -> None:
    """A region is made of ``change(function, inputs)`` in place of its inputs."""
    copy.call_instead(
        "nested.region",
        "Region.__init__",
        lambda init, self, function, inputs, context: init(self, function, change(function, inputs), context),
    )


def _put_records_together(copy: Copy, change: Callable[[Any, dict[str, Any]], Any]) -> None:
    """A dataclass that is made anew is ``change(form, fields)``, where the fields are by name."""

    def changed(together: Any, children: Any, form: Any) -> Any:
        if isinstance(form, copy["nested.inputs"]._Fields):
            return change(form, dict(zip(form.names, children, strict=True)))
        return together(children, form)

    copy.call_instead("nested.inputs", "_together", changed)


def _keep_containers(copy: Copy, where: Callable[[Any], bool]) -> None:
    """A container goes through as it is only if ``where`` is true of its form."""
    copy.call_instead(
        "nested.inputs", "_Container.holds", lambda holds, self, children: where(self.form) and holds(self, children)
    )


def _register(copy: Copy, change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> None:
    """Hooks are left as they were by ``change(hooks, before, mine)``, which stand for those before, and those that came."""
    copy.call_instead(
        "nested.hook_registrations",
        "_restore",
        lambda there, hooks, before, mine: there(hooks, *change(hooks, before, mine)),
    )


@mutant("nested.inputs", "structure", "keyword_arguments", profile="default")
def passes_keyword_arguments_by_position(copy: Copy) -> None:
    """A recomputation gets keyword arguments by position, the last one first."""
    for kind in ("Held", "Inputs"):
        restore(copy, lambda args, kwargs: ((*args, *reversed(kwargs.values())), {}), kind)


@mutant("nested.api", "structure", "options_alone_give_a_decorator")
def decorates_without_its_options(copy: Copy) -> None:
    """A decorated function is called with the default options."""
    copy.replace(
        "nested.api",
        "_Decorated.__call__",
        lambda self, *args, **kwargs: copy["nested.api"].checkpoint(self._function, *args, **kwargs),
    )


@mutant("nested.api", "structure", "options_alone_give_a_decorator")
def takes_methods_for_functions(copy: Copy) -> None:
    """A decorated method gets no self."""
    copy.replace("nested.api", "_Decorated.__get__", lambda self, instance, owner=None: self)


@mutant("nested.api", "structure", "containers_as_outputs")
def returns_lists_as_tuples(copy: Copy) -> None:
    """An output that is a list is returned as a tuple."""
    return_as(copy, lambda output, _: tuple(output) if isinstance(output, list) else output)


@mutant("nested.inputs", "structure", "keyword_arguments_that_are_false")
def sorts_keyword_arguments(copy: Copy) -> None:
    """A recomputation gets keyword arguments in the order of their names."""
    restore(copy, lambda args, kwargs: (args, dict(sorted(kwargs.items()))))


@mutant("nested.inputs", "structure", "dataclasses_are_not_constructed_anew")
def rebuilds_a_dataclass_as_a_dict(copy: Copy) -> None:
    """A recomputation gets a dict in place of a dataclass that is made anew."""
    _put_records_together(copy, lambda form, fields: fields)


@mutant("nested.inputs", "structure", "containers_as_arguments")
def rebuilds_lists_the_other_way_round(copy: Copy) -> None:
    """A list or tuple that is made anew is in the opposite order."""
    copy.call_instead(
        "nested.inputs",
        "_together",
        lambda together, children, form: together(children[::-1] if isinstance(form, type) else children, form),
    )


@mutant("nested.inputs", "structure", "objects_without_tensors")
def rebuilds_dataclasses_that_hold_no_tensor(copy: Copy) -> None:
    """A dataclass is made anew for each recomputation, also if it holds no tensor."""
    fields = copy["nested.inputs"]._Fields
    _keep_containers(copy, lambda form: not isinstance(form, fields))


@mutant("nested.inputs", "structure", "containers_that_the_function_identifies")
def makes_lists_anew(copy: Copy) -> None:
    """Containers other than dataclasses are made anew for each recomputation."""
    fields = copy["nested.inputs"]._Fields
    _keep_containers(copy, lambda form: isinstance(form, fields))


@mutant("nested.inputs", "structure", "containers_that_the_function_identifies")
def makes_dataclasses_anew(copy: Copy) -> None:
    """Dataclasses are made anew for each recomputation."""
    fields = copy["nested.inputs"]._Fields
    _keep_containers(copy, lambda form: not isinstance(form, fields))


@mutant("nested.inputs", "structure", "containers_that_the_function_empties")
def hands_over_lists_that_were_changed(copy: Copy) -> None:
    """A container is taken for one that holds what it held, whatever it holds now."""
    copy.replace("nested.inputs", "_Container._consists_of", lambda self, value, children: True)


@mutant("nested.inputs", "structure", "containers_that_change_after_the_call")
def puts_back_what_was_changed_since(copy: Copy) -> None:
    """A container that was changed after the call, and is made anew, gets back what it held."""
    container, gone = copy["nested.inputs"]._Container, copy["nested.inputs"]._GONE

    def changed(whole: Any, value: Any, tensors: Any, made: Any, through: Any) -> Any:
        made_of_it = whole(value, tensors, made, through)
        if type(value) is container and value.itself is not gone and value.itself is not made_of_it:
            through.append((value, value.itself, [changed(whole, one, tensors, made, through) for one in value.children]))
        return made_of_it

    copy.call_instead("nested.inputs", "_whole", changed)


@mutant("nested.inputs", "structure", "containers_that_change_after_the_call")
def compares_keys_by_value(copy: Copy) -> None:
    """A dict of which a key was replaced by an equal one is taken for unchanged."""
    copy.replace("nested.inputs", "_same_form", lambda one, other: bool(one == other))


@mutant("nested.inputs", "structure", "containers_that_the_function_changes_around_regions")
def puts_back_what_is_still_kept(copy: Copy) -> None:
    """A container that was let go of during the recomputation is not put back."""
    gone = copy["nested.inputs"]._GONE
    copy.call_instead(
        "nested.inputs",
        "_Container.refill",
        lambda refill, self, value, children: self.itself is not gone and refill(self, value, children),
    )


@mutant("nested.inputs", "structure", "containers_that_the_function_changes_for_a_while")
def leaves_containers_as_the_stop_found_them(copy: Copy) -> None:
    """What a recomputation did to containers is not undone."""
    copy.replace("nested.inputs", "put_back", lambda through: None)


@mutant("nested.inputs", "structure", "containers_that_the_function_changes_for_a_while")
def puts_lists_back_alone(copy: Copy) -> None:
    """What a recomputation did to a dict or deque is not undone."""
    copy.call_instead(
        "nested.inputs",
        "_Container.refill",
        lambda refill, self, value, children: isinstance(value, dict | deque) or refill(self, value, children),
    )


@mutant("nested.inputs", "structure", "non_tensor_arguments")
def takes_an_int_for_a_position(copy: Copy) -> None:
    """An int in a container comes back as the tensor at that position."""

    def changed(whole: Any, value: Any, tensors: Any, *others: Any) -> Any:
        return tensors[value] if isinstance(value, int) else whole(value, tensors, *others)

    copy.call_instead("nested.inputs", "_whole", changed)


@mutant("nested.inputs", "structure", "non_tensor_arguments")
def keeps_tensors_alone(copy: Copy) -> None:
    """A recomputation gets None in place of what is no tensor."""
    restore(copy, lambda args, kwargs: (tuple(one if isinstance(one, torch.Tensor) else None for one in args), kwargs))


@mutant("nested.api", "structure", "non_tensor_outputs")
def drops_none_from_outputs(copy: Copy) -> None:
    """An output that is a tuple is returned without None."""
    return_as(copy, lambda output, _: tuple(o for o in output if o is not None) if type(output) is tuple else output)


@mutant("nested.inputs", "structure", "containers_that_the_function_empties")
def puts_containers_together_once(copy: Copy) -> None:
    """All recomputations of a region get the containers that were made for the first."""

    def changed(there: Any, self: Any) -> Any:
        call = self.known.get("call") or there(self)
        self.known["call"] = *call[:3], ()
        return call

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def puts_a_container_together_at_each_place(copy: Copy) -> None:
    """A container that is passed twice comes back as two."""
    copy.call_instead(
        "nested.inputs", "_whole", lambda whole, value, tensors, made, through: whole(value, tensors, {}, through)
    )


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def puts_a_dataclass_together_at_each_place(copy: Copy) -> None:
    """A dataclass that is passed twice comes back as two."""
    fields = copy["nested.inputs"]._Fields

    def changed(whole: Any, value: Any, tensors: Any, made: Any, through: Any) -> Any:
        if isinstance(getattr(value, "form", None), fields):
            made.pop(id(value), None)
        return whole(value, tensors, made, through)

    copy.call_instead("nested.inputs", "_whole", changed)


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def takes_a_repeated_container_apart_at_each_place(copy: Copy) -> None:
    """A container that is passed twice is taken for two."""
    copy.call_instead(
        "nested.inputs", "Inputs._take", lambda take, self, value: (self.known.pop(id(value), None), take(self, value))[1]
    )


@mutant("nested.inputs", "structure", "dataclasses_are_not_constructed_anew")
def constructs_a_dataclass_anew(copy: Copy) -> None:
    """A dataclass that is made anew goes through its constructor."""
    _put_records_together(copy, lambda form, fields: form.kind(fields["value"]))


@mutant("nested.inputs", "structure", "dataclasses_are_not_constructed_anew")
def knows_the_fields_of_a_dataclass_alone(copy: Copy) -> None:
    """A dataclass that is made anew loses attributes that are no fields."""
    part = copy["nested.inputs"]

    def changed(apart: Any, value: Any) -> Any:
        parts = apart(value)
        if parts is None or not isinstance(parts.form, part._Fields):
            return parts
        names = tuple(one.name for one in dataclasses.fields(value))
        return part._Parts([getattr(value, name) for name in names], part._Fields(type(value), names))

    copy.call_instead("nested.inputs", "_apart", changed)


@mutant("nested.inputs", "structure", "keyword_arguments", profile="default")
def swaps_keyword_arguments_each_time(copy: Copy) -> None:
    """Each recomputation gets the values of keyword arguments in the order opposite to the one before."""

    def changed(there: Any, self: Any) -> Any:
        self.kwargs = dict(zip(self.kwargs, reversed(self.kwargs.values()), strict=True))
        return there(self)

    copy.call_instead("nested.inputs", "Held.restore", changed)


@mutant("nested.inputs", "structure", "keyword_arguments_that_are_false")
def drops_keyword_arguments_that_are_false(copy: Copy) -> None:
    """A recomputation gets no keyword arguments that are false, such as None and 0."""
    restore(copy, lambda args, kwargs: (args, {n: v for n, v in kwargs.items() if isinstance(v, torch.Tensor) or v}))


@mutant("nested.recomputation", "structure", "unused_outputs")
def expects_backward_to_read_all_it_recomputes(copy: Copy) -> None:
    """A backward that did not unpack all that was recomputed for it fails."""

    def changed(there: Any, self: Any) -> None:
        if self:
            raise RuntimeError(f"{len(self)} recomputed tensors were never unpacked")
        there(self)

    copy.call_instead("nested.recomputation", "Values.__call__", changed)


@mutant("nested.api", "structure", "outputs_that_are_inputs")
def returns_inputs_detached(copy: Copy) -> None:
    """An argument that is one of several outputs is returned detached."""

    def change(output: Any, args: _Args) -> Any:
        if type(output) is not tuple:
            return output
        return tuple(o.detach() if any(o is a for a in args) else o for o in output)

    return_as(copy, change)


@mutant("nested.api", "structure", "outputs_that_are_views")
def returns_the_base_of_a_view(copy: Copy) -> None:
    """The base of a view that is one of several outputs is returned in its place."""

    def change(output: Any, args: _Args) -> Any:
        return tuple(o if o._base is None else o._base for o in output) if type(output) is tuple else output

    return_as(copy, change)


@mutant("nested.api", "structure", "an_output_returned_twice")
def returns_an_output_detached_the_second_time(copy: Copy) -> None:
    """An output that occurs twice is returned detached at its second place."""

    def change(output: Any, args: _Args) -> Any:
        if type(output) is not tuple:
            return output
        first = {id(o): i for i, o in reversed([*enumerate(output)])}
        return tuple(o if first[id(o)] == i else o.detach() for i, o in enumerate(output))

    return_as(copy, change)


@mutant("nested.inputs", "structure", "the_same_tensor_passed_twice")
def passes_a_repeated_argument_once(copy: Copy) -> None:
    """A recomputation gets an argument that is passed twice at its first place alone."""
    restore(copy, lambda args, kwargs: (tuple({id(one): one for one in args}.values()), kwargs))


@mutant("nested.api", "structure", "outputs_without_grad")
def lets_every_output_require_grad(copy: Copy) -> None:
    """Every output in floating point requires grad."""

    def change(output: Any, args: _Args) -> Any:
        for one in output if type(output) is tuple else [output]:
            one.requires_grad_(one.is_floating_point())
        return output

    return_as(copy, change)


@mutant("nested.region", "structure", "the_same_call_again")
def takes_the_inputs_of_a_functions_first_call(copy: Copy) -> None:
    """A function is recomputed with the arguments of its first call."""
    take_inputs(copy, lambda function, inputs: vars(function).setdefault("inputs", inputs))


@mutant("nested.api", "structure", "the_same_call_again")
def remembers_the_value_of_a_call(copy: Copy) -> None:
    """A call of the same function with the same arguments returns what the one before returned."""
    known: dict[Any, Any] = {}

    def changed(run: Any, function: Any, args: _Args, *others: Any) -> Any:
        if (function, *args) not in known:
            known[function, *args] = run(function, args, *others)
        return known[function, *args]

    copy.call_instead("nested.api", "_run", changed)


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation(copy: Copy) -> None:
    """Hooks that a recomputation registers stay."""
    copy.replace("nested.hook_registrations", "undone", lambda tensors, *, registering: nullcontext())


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def leaves_the_hooks_of_a_recomputation_that_fails(copy: Copy) -> None:
    """Hooks that a recomputation registers stay if it fails."""

    def changed(leave: Any, self: Any, kind: Any, *error: Any) -> None:
        if kind is not None:
            self.tensors, self.nodes = [], []
        leave(self, kind, *error)

    copy.call_instead("nested.hook_registrations", "_Registrations.__exit__", changed)


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_off_the_hooks_of_the_user_too(copy: Copy) -> None:
    """After a recomputation no hooks are left, whoever registered them."""
    copy.replace("nested.hook_registrations", "_restore", lambda hooks, before, mine: hooks.clear())


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def forgets_hooks_on_accumulation(copy: Copy) -> None:
    """Hooks on the accumulation of a gradient stay."""

    def changed(of_tensor: Any, tensor: torch.Tensor) -> Any:
        return [one for one in of_tensor(tensor) if one is not tensor._post_accumulate_grad_hooks]

    copy.call_instead("nested.hook_registrations", "_of_tensor", changed)


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def knows_hooks_of_the_first_argument_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on other tensors than the first argument stay."""
    copy.call_instead(
        "nested.hook_registrations", "_Registrations.__init__", lambda init, self, tensors: init(self, list(tensors)[:1])
    )


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_argument")
def takes_one_hook_off(copy: Copy) -> None:
    """Of the hooks that a recomputation registers on a tensor the first is taken off."""
    _register(copy, lambda hooks, before, mine: (before, [key for key in mine if key in hooks][:1]))


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def knows_hooks_of_positional_arguments_alone(copy: Copy) -> None:
    """Hooks that a recomputation registers on a keyword argument stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, through = there(self)
        return args, kwargs, [one for one in args if isinstance(one, torch.Tensor)], through

    copy.call_instead("nested.inputs", "Held.restore", changed)


@mutant("nested.inputs", "structure", "hooks_on_arguments_by_keyword_and_in_containers")
def leaves_hooks_on_what_containers_hold(copy: Copy) -> None:
    """Hooks that a recomputation registers on a tensor in a container stay."""

    def changed(there: Any, self: Any) -> Any:
        args, kwargs, _, through = there(self)
        return args, kwargs, [], through

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_replaces_on_its_argument")
def puts_hooks_back_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off is put back, also if it registered another one in its place."""
    copy.replace("nested.hook_registrations", "_kind", lambda hook: object())


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_replaces_on_its_argument")
def loses_hooks_that_were_replaced(copy: Copy) -> None:
    """A hook that the recomputation took off stays off, and what it registered in its place is taken off."""
    _register(copy, lambda hooks, before, mine: ({key: hook for key, hook in before.items() if key in hooks}, mine))


@mutant("nested.hook_registrations", "structure", "hooks_that_another_thread_registers_meanwhile")
def takes_off_what_another_thread_registered(copy: Copy) -> None:
    """Whatever hooks came during a recomputation are taken for its own."""
    _register(copy, lambda hooks, before, mine: (before, [key for key in hooks if key not in before]))


@mutant("nested.hook_registrations", "structure", "a_function_that_asks_for_modes")
def watches_hooks_in_a_mode(copy: Copy) -> None:
    """A recomputation of a function that registers hooks runs in a TorchFunctionMode."""

    @contextmanager
    def changed(undone: Any, tensors: Any, *, registering: bool) -> Iterator[None]:
        mode = torch.overrides.BaseTorchFunctionMode() if registering else nullcontext()
        with undone(tensors, registering=registering), mode:
            yield

    copy.call_instead("nested.hook_registrations", "undone", changed)


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_on_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers on the node of an argument stay."""
    copy.replace("nested.hook_registrations", "_of_node", lambda tensor: [])


@mutant("nested.hook_registrations", "structure", "hooks_that_a_function_registers_on_its_arguments_node")
def overlooks_hooks_before_nodes(copy: Copy) -> None:
    """Hooks that a recomputation registers to run before the node of an argument stay."""
    copy.call_instead("nested.hook_registrations", "_of_node", lambda of_node, tensor: of_node(tensor)[:1])


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def looks_for_repeated_containers_by_position_alone(copy: Copy) -> None:
    """A container that is passed by position and by keyword is taken for two."""

    def changed(init: Any, self: Any, args: Any, kwargs: Any) -> None:
        def by_position() -> Iterator[Any]:
            yield from args
            self.known.clear()

        init(self, by_position(), kwargs)

    copy.call_instead("nested.inputs", "Inputs.__init__", changed)
