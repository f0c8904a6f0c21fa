"""Faults in the copies of parameters that a slice computes with, and in how gradients come back from them."""

from __future__ import annotations

from typing import Any

from conformance.mutants.faults.offload.seams import change_gradients
from conformance.mutants.mutant import Copy, mutant


@mutant("offload.loaded_copies", "offload-models", "hooks_of_parameters_see_their_gradients")
def attaches_to_an_alias_of_a_parameter(copy: Copy) -> None:
    """Gradients arrive at an alias of the parameter."""
    arrive = copy["offload.loaded_copies"]._Arrive
    real = arrive.apply
    arrive.apply = staticmethod(lambda parameter, mail: real(parameter.detach().requires_grad_(), mail))


@mutant("offload.loaded_copies", "offload-models", "sparse_gradients_stay_sparse")
def makes_gradients_dense(copy: Copy) -> None:
    """Sparse gradients are made dense."""
    change_gradients(copy, lambda grad: grad.to_dense() if grad.is_sparse else grad)


@mutant("offload.loaded_copies", "offload-models", "sparse_gradients_stay_sparse", profile="default")
def sends_sparse_gradients_as_others(copy: Copy) -> None:
    """Sparse gradients are sent as dense ones are, which is an error."""
    attachment = copy["offload.loaded_copies"]

    def backward(there: Any, ctx: Any, *grads: Any) -> Any:
        if ctx.mail is None or grads[0] is None or ctx.copy_streams is None:
            return there(ctx, *grads)
        return attachment._Send.apply(grads[0], ctx.copy_streams, ctx.mail), None, None, None

    copy.call_instead("offload.loaded_copies", "_Attach.backward", backward)


@mutant("offload.loaded_copies", "offload-models", "a_shared_parameter_gets_one_gradient")
def attaches_to_each_parameter_once(copy: Copy) -> None:
    """Only the first copy of a parameter sends it a gradient."""

    def attach(there: Any, values: Any, parameter: Any, route: Any, delivery: Any) -> Any:
        seen = vars(route).setdefault("seen", set())
        if id(parameter) in seen:
            return values.detach()
        seen.add(id(parameter))
        return there(values, parameter, route, delivery)

    copy.call_instead("offload.loaded_copies", "attach", attach)


@mutant("offload.loaded_copies", "offload-models", "undefined_gradients_stay_undefined")
def gives_zeros_for_no_gradient(copy: Copy) -> None:
    """A parameter that has no gradient gets one of zeros."""
    copy.call_after("offload.loaded_copies", "_Attach.forward", lambda _, ctx, *__: ctx.set_materialize_grads(True))


@mutant("offload.loaded_copies", "offload-models", "undefined_gradients_stay_undefined", profile="default")
def gives_zeros_for_no_second_gradient(copy: Copy) -> None:
    """A gradient that has no gradient gets one of zeros."""
    copy.call_after("offload.loaded_copies", "_Send.forward", lambda _, ctx, *__: ctx.set_materialize_grads(True))


@mutant("offload.slice_run", "offload-models", "gradients_that_are_summed_in_another_dtype")
def sums_gradients_in_the_dtype_of_the_parameter(copy: Copy) -> None:
    """A parameter's own grad_dtype is not looked at, and its gradients are summed in its dtype."""
    run = copy["offload.slice_run"]

    def attach_anyway(self: Any, name: str, values: Any) -> None:
        self.copies[name] = run.attach(values, self.use.tensors[name], self.route, self.delivery)

    copy.replace("offload.slice_run", "SliceRun.attach", attach_anyway)
