"""Faults of the nested checkpoint that laws of the family errors must catch, except those about tensors from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import compare_versions_alone_if
from conformance.mutants.mutant import Copy, mutant
from impls.torch_private import POLICIES_ASK_FOR_HOOKS


def _forgive_if(copy: Copy, forgiven: Callable[[Any, Any], bool]) -> None:
    """Overlook what is wrong with a recomputation, where ``forgiven`` says so of it and of what it recomputed."""

    def run(values: Any, self: Any, *_: Any) -> None:
        if forgiven(self, values):
            self.mismatch = None

    copy.call_after("nested.recomputation", "Recomputation.run", run)


def _compare_no(copy: Copy, alike: Callable[[Any, Any], bool]) -> None:
    """Of the shape and dtype of saved tensors, compare what ``alike(now, then)`` compares of their looks."""

    def alone(run: Any, index: int, tensor: torch.Tensor) -> bool:
        now, then = copy["nested.recomputation"].tensor_metadata(tensor), run.slots[index][2]
        return alike(now, then) and now[2] == then[2] and now[4:] == then[4:]

    compare_versions_alone_if(copy, alone)


# What can go wrong where PyTorch's policies ask for hooks, which they do from torch 2.14 on.
if POLICIES_ASK_FOR_HOOKS:

    @mutant("nested.user_hooks", "errors", "a_policy_takes_no_hooks_for_the_users")
    def shows_a_policy_its_own_hooks(copy: Copy) -> None:
        """The hooks of a region do not have the mark by which a policy knows them."""
        copy.replace("nested.user_hooks", "_MarkedPackHook._checkpoint_internal", False)

    @mutant("nested.user_hooks", "errors", "hooks_get_what_a_policy_keeps_if_asked_to")
    def hides_the_users_hooks_from_a_policy(copy: Copy) -> None:
        """A policy that asks for the user's hooks is told that there are none."""
        copy.replace("nested.user_hooks", "_MarkedPackHook._user_hooks", None)


@mutant("nested.recomputation", "errors", "missing_tensors_are_reported_in_any_case")
def brings_what_it_has_when_tensors_are_missing(copy: Copy) -> None:
    """Without the determinism check, a recomputation that saves too few tensors is fine as long as it saves some."""
    _forgive_if(copy, lambda run, values: bool(values) and not run.stopped and not run.check)


@mutant("nested.recomputation", "errors", "other_saved_tensors_are_reported")
def compares_no_metadata(copy: Copy) -> None:
    """Of saved tensors, nothing but the version is compared."""
    compare_versions_alone_if(copy, lambda *_: True)


@mutant("nested.recomputation", "errors", "other_saved_tensors_are_reported")
def compares_no_dtypes(copy: Copy) -> None:
    """A saved tensor may come back with another dtype."""
    _compare_no(copy, lambda now, then: now[0] == then[0])


@mutant("nested.recomputation", "errors", "other_saved_tensors_are_reported", profile="default")
def compares_ranks_instead_of_shapes(copy: Copy) -> None:
    """A saved tensor may come back with another shape that has as many dimensions."""
    _compare_no(copy, lambda now, then: len(now[0]) == len(then[0]) and now[1] == then[1])


@mutant("nested.recomputation", "errors", "more_saved_tensors_are_reported")
def allows_one_tensor_more_or_less(copy: Copy) -> None:
    """A recomputation may save one tensor more or fewer than forward, if it has what is needed."""
    _forgive_if(copy, lambda run, _: not run.stopped and run.count > run.last and abs(run.count - run.slot_count) == 1)


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def ignores_a_mismatch(copy: Copy) -> None:
    """What is wrong with a recomputation is found, and not reported."""
    _forgive_if(copy, lambda *_: True)


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def says_nothing_when_it_refuses(copy: Copy) -> None:
    """The error has no message."""
    copy.raise_instead("nested.region", "Region.refuse", copy["nested.region"].CheckpointError)


@mutant("nested.region", "errors", "changed_outputs")
def names_nothing_when_it_refuses(copy: Copy) -> None:
    """The message says neither which region is meant nor what is wrong."""
    error = copy["nested.region"].CheckpointError
    copy.raise_instead("nested.region", "Region.refuse", lambda: error("something about this region is not as it should be"))


@mutant("nested.region", "errors", "missing_tensors_are_reported_in_any_case")
def speaks_of_shapes_when_it_refuses(copy: Copy) -> None:
    """The error is of the kind that an operator raises for shapes that do not fit."""
    message = "The size of tensor a (3) must match the size of tensor b (2)"
    copy.raise_instead("nested.region", "Region.refuse", lambda: RuntimeError(message))


@mutant("nested.api", "errors", "wrong_arguments_are_refused")
def does_not_name_an_option(copy: Copy) -> None:
    """The error about a wrong determinism_check does not say which option is wrong."""

    def validate(function: Any, options: Any, kwargs: Any) -> None:
        check = options[2]
        if check not in ("default", "none"):
            raise ValueError(f"{check!r} is not accepted; it must be 'default' or 'none'")

    copy.call_before("nested.api", "_validate", validate)


@mutant("nested.api", "errors", "wrong_arguments_are_refused")
def takes_any_determinism_check(copy: Copy) -> None:
    """The value of determinism_check is not validated."""
    copy.change_arguments(
        "nested.api", "_validate", lambda given: given.update(options=(*given["options"][:2], "default", *given["options"][3:]))
    )


@mutant("nested.api", "errors", "a_flag_is_true_or_false")
def takes_what_is_not_empty_for_true(copy: Copy) -> None:
    """A flag that is no truth value counts as one."""
    copy.change_arguments(
        "nested.api", "_validate", lambda given: given.update(options=(bool(given["options"][0]), *given["options"][1:]))
    )


@mutant("nested.api", "errors", "a_context_fn_that_returns_no_two_contexts_is_refused")
def enters_what_context_fn_returns(copy: Copy) -> None:
    """What context_fn returns is not looked at before it is unpacked."""

    def make(there: Any, context_fn: Any) -> Any:
        forward, recomputation = context_fn()
        return forward, recomputation

    copy.call_instead("nested.api", "make_contexts", make)


@mutant("nested.api", "errors", "the_determinism_check_can_be_switched_off")
def checks_even_if_told_not_to(copy: Copy) -> None:
    """The determinism check is always on."""
    copy.change_arguments("nested.api", "_run", lambda given: given.update(determinism_check="default"))


@mutant("nested.api", "errors", "a_context_that_swallows_is_refused")
def swallows_what_its_context_swallows(copy: Copy) -> None:
    """A region whose forward context swallowed an exception counts as complete, and returns None."""
    copy.set_before("nested.region", "Region.end_forward", complete=lambda _: True)


@mutant("nested.api", "errors", "a_context_that_swallows_is_refused")
def swallows_where_grad_mode_is_off(copy: Copy) -> None:
    """A region that is called with grad mode off returns None if its forward context swallowed an exception."""

    def run(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    copy.replace("nested.api", "run_without_graph", run)


@mutant("nested.recomputation", "errors", "selective_checkpointing")
def enters_no_context_when_it_recomputes(copy: Copy) -> None:
    """The recomputation context of context_fn is not entered."""
    nothing = copy["nested.recomputation"].NO_CONTEXT
    copy.change_arguments("nested.recomputation", "Recomputation.run", lambda given: given.update(context=nothing))


@mutant("nested.api", "errors", "contexts_are_entered_once_for_each_run")
def enters_no_context_in_forward(copy: Copy) -> None:
    """The forward context of context_fn is not entered."""

    def change(given: dict[str, Any]) -> None:
        contexts = given["context_fn"]
        given["context_fn"] = lambda: (copy["nested.api"].NO_CONTEXT, contexts()[1])

    copy.change_arguments("nested.api", "_run", change)


@mutant("nested.recomputation", "errors", "a_function_runs_inside_of_its_context")
def shows_the_stop_to_its_context(copy: Copy) -> None:
    """What ends a recomputation early passes through the context of context_fn."""
    stop = copy["nested.recomputation"].StopRecomputation

    @contextmanager
    def shown(run: Any, context: AbstractContextManager[Any]) -> Iterator[None]:
        try:
            with context:
                yield
                if run.stopped:
                    raise stop
        except stop:
            pass

    def change(given: dict[str, Any]) -> None:
        given["context"] = shown(given["self"], given["context"])

    copy.change_arguments("nested.recomputation", "Recomputation.run", change)


@mutant("nested.api", "errors", "a_function_runs_inside_of_its_context")
def enters_no_context_without_grad(copy: Copy) -> None:
    """Where there is nothing to differentiate, the forward context of context_fn is not entered."""

    def change(given: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            given["context_fn"] = copy["nested.api"].noop_context_fn

    copy.change_arguments("nested.api", "_run", change)


@mutant("nested.recomputation", "errors", "except_exception_does_not_catch_the_stop")
def stop_is_a_runtime_error(copy: Copy) -> None:
    """What ends a recomputation early is a RuntimeError."""
    copy.replace("nested.recomputation", "StopRecomputation", type("Stop", (RuntimeError,), {}))


@mutant("nested.recomputation", "errors", "swallowing_the_stop_changes_no_gradient")
def forgets_a_stop_that_was_swallowed(copy: Copy) -> None:
    """A recomputation does not remember that it was to end."""

    def stop(there: Any, self: Any, mismatch: str | None = None) -> None:
        try:
            there(self, mismatch)
        finally:
            self.stopped = False

    copy.call_instead("nested.recomputation", "Recomputation.stop", stop)


@mutant("nested.region", "errors", "context_managers_without_finally")
def stops_early_inside_in_any_case(copy: Copy) -> None:
    """A region inside another one stops early even if told not to."""
    copy.set_before(
        "nested.region", "Region.end_forward", early_stop=lambda self: self.early_stop or self.enclosing is not None
    )


@mutant("nested.region", "errors", "other_saved_tensors_are_reported")
def forgives_a_mismatch_the_second_time(copy: Copy) -> None:
    """A region refuses once, and goes on with what it has when it is asked again."""

    def refuse(there: Any, self: Any, *args: Any) -> None:
        if "told" not in vars(self):
            self.told = True
            there(self, *args)

    copy.call_instead("nested.region", "Region.refuse", refuse)


@mutant("nested.recomputation", "errors", "context_managers_inside_are_left")
def stops_again_in_what_is_being_left(copy: Copy) -> None:
    """What ends a recomputation early is raised once more for each tensor that is saved afterwards."""
    copy.set_before("nested.recomputation", "Recomputation.stop", stopped=lambda _: False)


def _let_interpreters_rename_the_stop(copy: Copy) -> None:
    """Raise an exception that an interpreter makes of the one that ends a recomputation."""

    def collect(there: Any, self: Any, function: Callable[[], Any]) -> None:
        raised: list[Exception] = []

        def noting() -> None:
            try:
                function()
            except Exception as error:
                raised.append(error)
                raise

        there(self, noting)
        if raised:
            raise raised[0]

    copy.call_instead("nested.recomputation", "Recomputation._collect", collect)


@mutant("nested.recomputation", "errors", "scripted_functions")
def lets_interpreters_rename_the_stop(copy: Copy) -> None:
    """An exception that an interpreter makes of the one that ends a recomputation is raised."""
    _let_interpreters_rename_the_stop(copy)


@mutant("nested.recomputation", "errors", "functions_that_are_scripted_inside")
def lets_interpreters_inside_rename_the_stop(copy: Copy) -> None:
    """An exception that an interpreter which is made in the region makes of the one that ends it early is raised."""
    _let_interpreters_rename_the_stop(copy)


@mutant("nested.region", "errors", "debug_lists_the_operators_of_both_runs")
def lists_the_operators_of_forward_alone(copy: Copy) -> None:
    """With debug=True the error does not list what the recomputation ran."""
    copy.call_instead("nested.region", "Region.refuse", lambda there, self, reason, *_: there(self, reason))


@mutant("nested.recomputation", "errors", "debug_lists_what_the_function_called_alone")
def lists_what_detaches_saved_tensors(copy: Copy) -> None:
    """With debug=True the error lists an operator of the checkpoint's own for each tensor that is recomputed."""
    copy.call_before("nested.recomputation", "Recomputation.pack", lambda _, tensor: tensor.detach())
