"""Faults of the nested checkpoint that laws about containers among the arguments must catch."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from conformance.mutants.mutant import Copy, mutant


def _put_records_together(copy: Copy, change: Callable[[Any, dict[str, Any]], Any]) -> None:
    """A dataclass that is made anew is ``change(form, fields)``, where the fields are by name."""

    def changed(together: Any, children: Any, form: Any) -> Any:
        if isinstance(form, copy["tensors.containers"].Fields):
            return change(form, dict(zip(form.names, children, strict=True)))
        return together(children, form)

    copy.call_instead("tensors.containers", "unflatten", changed)


def _keep_containers(copy: Copy, where: Callable[[Any], bool]) -> None:
    """A container is passed on unchanged only if ``where`` is true of its form."""
    copy.call_instead(
        "tensors.containers",
        "Container.original_with",
        lambda there, self, children: there(self, children) if where(self.form) else copy["tensors.containers"].GONE,
    )


@mutant("tensors.containers", "structure", "dataclasses_are_not_constructed_anew")
def rebuilds_a_dataclass_as_a_dict(copy: Copy) -> None:
    """A recomputation gets a dict in place of a dataclass that is made anew."""
    _put_records_together(copy, lambda form, fields: fields)


@mutant("tensors.containers", "structure", "containers_as_arguments")
def rebuilds_lists_the_other_way_round(copy: Copy) -> None:
    """A list or tuple that is made anew is in the opposite order."""
    copy.call_instead(
        "tensors.containers",
        "unflatten",
        lambda together, children, form: together(children[::-1] if isinstance(form, type) else children, form),
    )


@mutant("tensors.containers", "structure", "objects_without_tensors")
def rebuilds_dataclasses_that_hold_no_tensor(copy: Copy) -> None:
    """A dataclass is made anew for each recomputation, also if it holds no tensor."""
    fields = copy["tensors.containers"].Fields
    _keep_containers(copy, lambda form: not isinstance(form, fields))


@mutant("tensors.containers", "structure", "containers_that_the_function_identifies")
def makes_lists_anew(copy: Copy) -> None:
    """Containers other than dataclasses are made anew for each recomputation."""
    fields = copy["tensors.containers"].Fields
    _keep_containers(copy, lambda form: isinstance(form, fields))


@mutant("tensors.containers", "structure", "containers_that_the_function_identifies")
def makes_dataclasses_anew(copy: Copy) -> None:
    """Dataclasses are made anew for each recomputation."""
    fields = copy["tensors.containers"].Fields
    _keep_containers(copy, lambda form: not isinstance(form, fields))


@mutant("tensors.containers", "structure", "objects_that_clean_up_at_their_end")
def copies_what_cleans_up(copy: Copy) -> None:
    """A dataclass with a ``__del__`` is a container, and its copy cleans up at its own end."""
    copy.replace("tensors.containers", "_adds_attributes", lambda base: "__new__" not in vars(base))


@mutant("tensors.containers", "structure", "containers_that_the_function_empties")
def hands_over_lists_that_were_changed(copy: Copy) -> None:
    """A container is treated as if it held what it held at the call, whatever it holds now."""
    copy.replace("tensors.containers", "Container._consists_of", lambda self, value, children: True)


@mutant("nested.inputs", "structure", "containers_that_change_after_the_call")
def puts_back_what_was_changed_since(copy: Copy) -> None:
    """A container that was changed after the call, and is made anew, gets its old contents back."""
    gone, rebuild = copy["tensors.containers"].GONE, copy["nested.inputs"]._rebuild

    def restore(there: Any, self: Any) -> Any:
        before = [(one, one.original) for one in self.containers]
        args, kwargs, tensors, reused, filled = there(self)
        left = [
            (one, value, [rebuild(child, tensors, {}, []) for child in one.children])
            for one, value in before
            if one.original is gone and one.other_name is None
        ]
        return args, kwargs, tensors, [*reused, *left], filled

    copy.call_instead("nested.inputs", "Inputs.restore", restore)


@mutant("tensors.containers", "structure", "containers_that_change_after_the_call")
def compares_keys_by_value(copy: Copy) -> None:
    """Keys of a dict are compared with ==, which is an error where they are tensors."""
    copy.replace("tensors.containers", "_same_form", lambda one, other: bool(one == other))


@mutant("nested.kept_containers", "structure", "containers_that_the_function_changes_around_regions")
def leaves_what_was_passed_to_regions_inside(copy: Copy) -> None:
    """Containers stay as the early stop found them, if the run has passed containers to regions inside."""
    earlier = copy["nested.kept_containers"].earlier_calls

    def leave(there: Any, self: Any, *error: Any) -> None:
        if earlier.added != self.added:
            self.reused = ()
        there(self, *error)

    copy.call_instead("nested.kept_containers", "ContainersOfRun.__exit__", leave)


@mutant("nested.inputs", "structure", "containers_that_the_function_empties")
def fills_no_containers(copy: Copy) -> None:
    """For the recomputation, a container that the function has changed does not get back what it held at the call."""
    copy.replace("nested.inputs", "states_to_fill", lambda filled: [])


@mutant("tensors.other_names", "structure", "containers_that_the_function_reads_by_another_name")
def looks_for_no_other_names(copy: Copy) -> None:
    """A container that the function has changed is made anew, also if the function finds it by another name."""
    copy.replace("tensors.other_names", "find_other_name", lambda roots, wanted: None)


@mutant("tensors.other_names", "structure", "containers_that_the_function_reads_by_another_name")
def looks_for_no_names_in_closures(copy: Copy) -> None:
    """A container that the function has changed is made anew, also if it is in a closure."""
    copy.replace("tensors.other_names", "_function_leads_to", lambda function: iter(()))


@mutant("nested.recomputation", "structure", "containers_that_an_inner_region_alone_is_passed")
def compares_no_counts_of_inner_arguments(copy: Copy) -> None:
    """An inner region may be passed more tensors than in forward, which takes the places of others."""
    copy.replace("nested.recomputation", "Recomputation.compare_places", lambda self, start, before, now: None)


@mutant("nested.recomputation", "structure", "containers_that_an_inner_region_alone_is_passed")
def stops_before_inner_arguments_are_counted(copy: Copy) -> None:
    """A recomputation ends as soon as it has as many tensors as it needs, also amid the arguments of an inner region."""
    copy.set_before("nested.recomputation", "Recomputation.stop", put_off=lambda self: None)


@mutant("nested.kept_containers", "structure", "containers_that_the_function_changes_for_a_while")
def leaves_containers_as_the_stop_found_them(copy: Copy) -> None:
    """What a recomputation did to containers is not undone."""
    copy.replace("nested.kept_containers", "ContainersOfRun.__exit__", lambda self, *_: None)


@mutant("nested.inputs", "structure", "containers_that_a_function_changes_around_another_region")
def looks_at_containers_of_a_function_that_runs(copy: Copy) -> None:
    """A container that its function has changed for a while is let go of if another region is called meanwhile."""

    def drop(there: Any, self: Any) -> Any:
        passed, self.passed = self.passed, []
        try:
            return there(self)
        finally:
            self.passed = passed

    copy.call_instead("nested.inputs", "Inputs.drop_changed_containers", drop)


@mutant("nested.inputs", "structure", "containers_that_the_function_identifies_and_changes")
def looks_at_no_containers_before_a_run(copy: Copy) -> None:
    """A container that was changed after the last call of a region is made anew, whatever it holds."""

    def restore(there: Any, self: Any) -> Any:
        self.passed = [None]
        try:
            return there(self)
        finally:
            self.passed = []

    copy.call_instead("nested.inputs", "Inputs.restore", restore)


@mutant("tensors.containers", "structure", "containers_whose_keys_are_tensors")
def compares_keys_as_pytree_does(copy: Copy) -> None:
    """Keys of an OrderedDict and a defaultdict are compared as pytree compares what it notes of them."""
    copy.call_instead("tensors.containers", "_same_form", lambda there, one, other: bool(one == other))


@mutant("tensors.containers", "structure", "containers_that_the_function_changes_for_a_while")
def puts_lists_back_alone(copy: Copy) -> None:
    """What a recomputation did to a dict or deque is not undone."""
    copy.call_instead(
        "tensors.containers",
        "Container.refill",
        lambda refill, self, value, children: isinstance(value, dict | deque) or refill(self, value, children),
    )


@mutant("nested.inputs", "structure", "containers_that_the_function_empties")
def puts_containers_together_once(copy: Copy) -> None:
    """All recomputations of a region get the containers that were made for the first."""

    def changed(there: Any, self: Any) -> Any:
        call = self.captured.get("call") or there(self)
        self.captured["call"] = *call[:3], (), ()
        return call

    copy.call_instead("nested.inputs", "Inputs.restore", changed)


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def puts_a_container_together_at_each_place(copy: Copy) -> None:
    """A container that is passed twice comes back as two."""
    copy.call_instead(
        "nested.inputs", "_rebuild", lambda whole, value, tensors, made, through: whole(value, tensors, {}, through)
    )


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def puts_a_dataclass_together_at_each_place(copy: Copy) -> None:
    """A dataclass that is passed twice comes back as two."""
    fields = copy["tensors.containers"].Fields

    def changed(value: Any, tensors: Any, made: Any, through: Any) -> None:
        if isinstance(getattr(value, "form", None), fields):
            made.pop(id(value), None)

    copy.call_before("nested.inputs", "_rebuild", changed)


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def takes_a_repeated_container_apart_at_each_place(copy: Copy) -> None:
    """A container that is passed twice is taken for two."""
    copy.call_before("nested.inputs", "Inputs._capture", lambda self, value: self.captured.pop(id(value), None))


@mutant("tensors.containers", "structure", "dataclasses_are_not_constructed_anew")
def constructs_a_dataclass_anew(copy: Copy) -> None:
    """A dataclass that is made anew goes through its constructor."""
    _put_records_together(copy, lambda form, fields: form.kind(fields["value"]))


@mutant("tensors.containers", "structure", "dataclasses_are_not_constructed_anew")
def knows_the_fields_of_a_dataclass_alone(copy: Copy) -> None:
    """A dataclass that is made anew loses attributes that are no fields."""
    part = copy["tensors.containers"]

    def changed(apart: Any, value: Any) -> Any:
        parts = apart(value)
        if parts is None or not isinstance(parts.form, part.Fields):
            return parts
        names = tuple(one.name for one in dataclasses.fields(value))
        return part.Parts([getattr(value, name) for name in names], part.Fields(type(value), names))

    copy.call_instead("tensors.containers", "flatten_once", changed)


@mutant("nested.inputs", "structure", "a_container_passed_twice")
def looks_for_repeated_containers_by_position_alone(copy: Copy) -> None:
    """A container that is passed by position and by keyword is taken for two."""

    def changed(init: Any, self: Any, args: Any, kwargs: Any, *rest: Any) -> None:
        def by_position() -> Iterator[Any]:
            yield from args
            self.captured.clear()

        init(self, by_position(), kwargs, *rest)

    copy.call_instead("nested.inputs", "Inputs.__init__", changed)


@mutant("nested.inputs", "structure", "containers_that_the_function_identifies")
def makes_containers_of_inner_regions_anew(copy: Copy) -> None:
    """A container that an inner region is passed is made anew, also if the region around it keeps it."""
    copy.replace("nested.inputs", "Inputs.keeps_container", lambda self, value: False)


@mutant("tensors.containers", "structure", "containers_that_the_function_identifies_and_changes")
def makes_changed_containers_anew(copy: Copy) -> None:
    """A container that the function has put a number into is made anew."""
    copy.replace("tensors.containers", "Container.keep_itself", lambda self, value, atoms, others: False)


@mutant("nested.inputs", "structure", "containers_that_the_function_identifies_and_changes")
def forgets_containers_that_change_for_a_while(copy: Copy) -> None:
    """A container that holds something else while another region is called is made anew, whatever it holds later."""

    def changed(drop: Any, self: Any) -> bool:
        before = self.changed
        left = drop(self)
        for one in self.changed:
            if all(one is not each for each in before):
                one.other_name = None  # nothing leads to it any more
        return left

    copy.call_instead("nested.inputs", "Inputs.drop_changed_containers", changed)


@mutant("tensors.containers", "lifetimes", "what_a_function_puts_into_its_arguments_is_freed")
def keeps_containers_that_hold_results(copy: Copy) -> None:
    """A container that the function has put a result into is kept, and holds the graph that holds it."""

    def changed(self: Any, value: Any, atoms: Any, others: Any) -> bool:
        self.other_name = copy["tensors.other_names"].Itself(value)
        return True

    copy.replace("tensors.containers", "Container.keep_itself", changed)


@mutant("nested.inputs", "lifetimes", "containers_that_nested_regions_empty")
def lends_what_was_put_into_a_container_since(copy: Copy) -> None:
    """A region inside keeps all tensors of a container that the region around was passed, whatever it holds by now."""

    def changed(self: Any, value: Any) -> bool:
        return any(one.original is value for one in self.containers)

    copy.replace("nested.inputs", "Inputs.keeps_container", changed)


@mutant("tensors.containers", "structure", "what_is_beside_tensors_in_an_argument")
def leaves_out_attributes_beside_items(copy: Copy) -> None:
    """An OrderedDict or named tuple that is made anew has no attributes."""
    copy.call_instead(
        "tensors.containers", "_with_items", lambda there, children, form: there(children, form._replace(names=()))
    )


@mutant("tensors.containers", "structure", "what_is_beside_tensors_in_an_argument")
def takes_registered_objects_apart_as_pytree_does(copy: Copy) -> None:
    """Objects of a registered class have only what its functions say."""
    copy.replace("tensors.containers", "_has_it_all", lambda value, fields: False)


@mutant("nested.inputs", "structure", "parts_that_a_class_makes_as_it_is_taken_apart")
def lets_parts_go_as_they_are_captured(copy: Copy) -> None:
    """What an object consists of may be freed, and its identity used again, before the next object is looked at."""

    def capture(there: Any, self: Any, value: Any) -> Any:
        captured = there(self, value)
        self.taken_apart.clear()
        return captured

    copy.call_instead("nested.inputs", "Inputs._capture", capture)


@mutant("tensors.other_names", "structure", "containers_near_a_function_are_not_iterated")
def iterates_what_it_searches(copy: Copy) -> None:
    """A search for another name iterates containers by the methods of their own classes."""

    def leads_to(there: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, list | deque | dict):
            deque(value.items() if isinstance(value, dict) else value, maxlen=0)
        return there(value)

    copy.call_instead("tensors.other_names", "_leads_to", leads_to)
