"""What nested says and offers beyond what every checkpoint must do."""

from __future__ import annotations

import abc
import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import impls.native
import impls.nested
from impls.native.region import require_extension
from impls.nested import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    noop_context_fn,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
    user_hooks,
)


def _counting() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]:
    reached: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        reached.append("end")
        return y + 1

    return function, reached


@pytest.mark.parametrize(("override", "argument", "runs"), [(False, True, 2), (True, False, 1)])
def test_the_early_stop_override_wins_over_the_argument(override: bool, argument: bool, runs: int) -> None:
    function, reached = _counting()
    with set_checkpoint_early_stop(override):
        y = checkpoint(function, torch.ones(2, requires_grad=True), early_stop=argument)
    y.sum().backward()
    assert len(reached) == runs


def test_the_early_stop_override_counts_where_forward_ran() -> None:
    function, reached = _counting()
    y = checkpoint(function, torch.ones(2, requires_grad=True))
    with set_checkpoint_early_stop(False):
        y.sum().backward()
    assert len(reached) == 1


def _shrinking(saved: int) -> Callable[[torch.Tensor], torch.Tensor]:
    calls: list[None] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x.sin().cos() if len(calls) == 1 else x[:saved].sin().cos()

    return function


def test_an_error_names_region_position_and_both_tensors() -> None:
    y = checkpoint(_shrinking(1), torch.ones(2, requires_grad=True))
    with pytest.raises(CheckpointError, match=r"_shrinking.*saved tensor 0 was torch.float32 \[2\].*came back as .*\[1\]"):
        y.sum().backward()


def test_debug_lists_the_operators_of_both_runs() -> None:
    y = checkpoint(_shrinking(1), torch.ones(2, requires_grad=True), debug=True)
    with pytest.raises(CheckpointError) as caught:
        y.sum().backward()
    forward, recomputation = str(caught.value).split("Operators in recomputation")
    assert "aten.cos" in forward
    assert "aten.slice" in recomputation


def _sections(error: CheckpointError) -> list[str]:
    return [part.partition(":\n")[2].strip("\n") for part in str(error).split("Operators in ")[1:]]


@pytest.mark.parametrize(
    ("override", "argument", "listed"), [(True, False, True), (False, True, False), (None, True, True), (None, False, False)]
)
def test_the_debug_override_wins_over_the_argument(override: bool | None, argument: bool, listed: bool) -> None:
    with set_checkpoint_debug_enabled(override):
        y = checkpoint(_shrinking(1), torch.ones(2, requires_grad=True), debug=argument)
    with pytest.raises(CheckpointError) as caught:
        y.sum().backward()
    assert ("Operators in recomputation" in str(caught.value)) is listed


def test_the_debug_override_ends_with_its_context() -> None:
    with pytest.raises(ZeroDivisionError), set_checkpoint_debug_enabled(True):
        raise ZeroDivisionError
    y = checkpoint(_shrinking(1), torch.ones(2, requires_grad=True))
    with pytest.raises(CheckpointError) as caught:
        y.sum().backward()
    assert "Operators" not in str(caught.value)


def test_debug_lists_the_same_operators_of_a_faithful_function() -> None:
    sizes = [2, 1]
    function = lambda x: x.cos()[: sizes.pop(0)].tanh()  # noqa: E731 - of another shape, and that is all
    y = checkpoint(function, torch.ones(2, requires_grad=True), debug=True)
    with pytest.raises(CheckpointError) as caught:
        y.sum().backward()
    assert _sections(caught.value) == ["  aten.cos.default\n  aten.slice.Tensor\n  aten.tanh.default"] * 2


def test_a_version_error_names_both_versions() -> None:
    weight = torch.ones(2, requires_grad=True)
    y = checkpoint(lambda x: x * weight, torch.ones(2, requires_grad=True))
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(CheckpointError, match="version 1, expected version 0"):
        y.sum().backward()


def test_use_reentrant_is_taken_when_it_is_false() -> None:
    x = torch.ones(2, requires_grad=True)
    assert checkpoint(torch.sin, x, use_reentrant=False).equal(x.sin())
    with pytest.raises(ValueError, match="use_reentrant is True"):
        checkpoint(torch.sin, x, use_reentrant=True)


def test_a_second_input_of_a_sequence_is_not_taken_for_use_reentrant() -> None:
    with pytest.raises(TypeError, match="use_reentrant is of type Tensor"):
        checkpoint_sequential([torch.sin, torch.cos], 2, torch.ones(2), torch.zeros(()))  # type: ignore[arg-type]


def test_a_selective_policy_keeps_what_it_names() -> None:
    ran: list[str] = []

    def policy(context: object, operator: object, *_: object, **__: object) -> CheckpointPolicy:
        ran.append(str(operator))
        keep = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    x = torch.randn(3, 3, requires_grad=True)
    y = checkpoint(lambda h: (h @ h).sin(), x, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    y.sum().backward()
    assert x.grad is not None
    expected = torch.autograd.grad((x @ x).sin().sum(), x)[0]
    assert x.grad.equal(expected)
    assert "aten.mm.default" in ran


def test_the_default_contexts_do_nothing() -> None:
    forward, recomputation = noop_context_fn()
    with forward, recomputation:
        assert torch.is_grad_enabled()


def test_two_hundred_regions_nest() -> None:
    def region(depth: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: checkpoint(region(depth - 1), x.sin()) if depth else x.cos()

    y = checkpoint(region(200), torch.ones(2, requires_grad=True))
    assert y.requires_grad


def test_sequential_equals_the_chain() -> None:
    functions = [torch.sin, torch.cos, torch.tanh, torch.exp]
    x = torch.randn(3, requires_grad=True)
    y = checkpoint_sequential(functions, 2, x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(x.sin().cos().tanh().exp().sum(), x)
    assert gradient.equal(expected)


def test_a_bare_object_is_handed_on_as_it_is() -> None:
    sentinel = object()
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda h, mark: h.sin() if mark is sentinel else h.cos(), x, sentinel).sum().backward()
    assert x.grad is not None
    assert x.grad.equal(x.detach().cos())


POLICIES = {
    "CheckpointPolicy",
    "GraphExecGroup",
    "SAC_IGNORED_OPS",
    "SelectiveCheckpointContext",
    "create_selective_checkpoint_contexts",
}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_names_of_torch_are_torchs_own(name: str) -> None:
    assert getattr(impls.nested, name) is getattr(torch.utils.checkpoint, name)


def test_options_that_do_not_exist_make_no_decorator() -> None:
    with pytest.raises(ValueError, match="scale: no option of checkpoint"):
        checkpoint(early_stop=False, scale=3)
    with pytest.raises(ValueError, match="determinism_check is 'sometimes'"):
        checkpoint(determinism_check="sometimes")


def _function(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp()


class _WithMethod:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()


def test_what_is_decorated_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    decorated, method = checkpoint()(_function), checkpoint()(_WithMethod.method)
    assert pickle.loads(pickle.dumps(checkpoint()(abs)))._function is abs
    monkeypatch.setitem(globals(), "_function", decorated)
    monkeypatch.setattr(_WithMethod, "method", method)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(method)) is method
    assert copy.deepcopy(decorated) is decorated
    bound, x = pickle.loads(pickle.dumps(_WithMethod().method)), torch.ones(2)
    assert bound._function.__func__ is method._function
    assert torch.equal(bound(x), decorated(x))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(checkpoint()(lambda x: x))


def test_methods_that_are_decorated_are_equal_as_methods_are() -> None:
    one, other = _WithMethod(), _WithMethod()
    assert checkpoint()(one.method) == checkpoint()(one.method)
    assert hash(checkpoint()(one.method)) == hash(checkpoint()(one.method))
    assert checkpoint()(one.method) != checkpoint()(other.method)
    assert checkpoint()(one.method) != checkpoint(early_stop=False)(one.method)
    assert checkpoint()(one.method) != one.method
    assert checkpoint()(_function) != checkpoint()(_function)

    class Model:
        @checkpoint()  # type: ignore[untyped-decorator]
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = Model()
    assert {model.scale, model.scale, Model.scale} == {model.scale, Model.scale}


def test_what_is_decorated_has_the_attributes_of_its_function() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x

    vars(scaled)["factor"] = 3
    once = checkpoint()(scaled)
    assert (once.factor, checkpoint(early_stop=False)(once).factor) == (3, 3)
    assert "training" not in vars(checkpoint()(torch.nn.Linear(1, 1)))

    class Base(abc.ABC):
        @checkpoint()  # type: ignore[untyped-decorator]
        @abc.abstractmethod
        def block(self, x: torch.Tensor) -> torch.Tensor: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_a_decorator_takes_what_is_callable() -> None:
    decorator = checkpoint(use_reentrant=False)
    with pytest.raises(TypeError, match="function is 3; it must be callable"):
        decorator(3)


@pytest.mark.parametrize("wanted", [None, False])
def test_hooks_that_are_not_respected_need_no_release(wanted: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_hooks, "POLICIES_ASK_FOR_HOOKS", False)
    x = torch.ones(2, requires_grad=True)
    assert checkpoint(torch.sin, x, respect_saved_tensors_hooks=wanted).equal(x.sin())


def test_hooks_that_a_release_cannot_respect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_hooks, "POLICIES_ASK_FOR_HOOKS", False)
    with pytest.raises(NotImplementedError, match=r"respect_saved_tensors_hooks is True; .* It takes torch 2\.14 or later"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), respect_saved_tensors_hooks=True)


def test_hooks_are_respected_or_not() -> None:
    with pytest.raises(TypeError, match="respect_saved_tensors_hooks is 'yes'; it must be True, False or None"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), respect_saved_tensors_hooks="yes")  # type: ignore[arg-type]


def _outer_gradient(
    call: Callable[..., torch.Tensor], cache: list[torch.Tensor], ends: bool, first: bool = False
) -> torch.Tensor:
    def outer(x: torch.Tensor) -> torch.Tensor:
        h = x.cos()
        y = call(lambda given, h: h.exp(), cache, h) if first else call(lambda h, given: h.exp(), h, cache)
        return y if ends else y.sin() * h

    x = torch.ones(2, requires_grad=True)
    y = call(outer, x)
    cache.append(torch.zeros(2))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return gradient


@pytest.mark.parametrize(("ends", "first"), [(False, False), (False, True), (True, True)])
def test_a_container_of_an_inner_region_that_has_grown_is_refused(ends: bool, first: bool) -> None:
    with pytest.raises(CheckpointError, match=r"with 2 tensors in its arguments, now with 3\."):
        _outer_gradient(checkpoint, [torch.ones(2)], ends, first)


def test_a_container_of_an_inner_region_may_grow_if_nothing_is_saved_after_it() -> None:
    gradient = _outer_gradient(checkpoint, [torch.ones(2)], ends=True)
    assert torch.equal(gradient, _outer_gradient(lambda function, *args: function(*args), [torch.ones(2)], ends=True))


def test_attributes_of_a_tensor_count_among_the_arguments_of_an_inner_region() -> None:
    w, x = torch.ones(2), torch.ones(2, requires_grad=True)
    y = checkpoint(lambda x: checkpoint(lambda h, w: h.exp(), x.cos(), w).sin(), x)
    w.memo = torch.zeros(2)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"with 2 tensors in its arguments, now with 3\."):
        y.sum().backward()


def _require_native() -> None:
    try:
        require_extension()
    except impls.native.NativeUnavailableError as error:
        pytest.skip(str(error))


class _Block(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _Block.calls += 1
        return x.sin().exp()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@pytest.mark.parametrize("decorator", [checkpoint, impls.native.checkpoint])
def test_a_copy_of_a_module_whose_forward_was_replaced_checkpoints_as_well(copied: Any, decorator: Any) -> None:
    module = _Block()
    module.forward = decorator()(module.forward)  # type: ignore[method-assign]
    again = copied(module)
    assert again.forward._function.__self__ is again
    if decorator is not checkpoint:
        _require_native()
    _Block.calls = 0
    again(torch.ones(2, requires_grad=True)).sum().backward()
    assert _Block.calls == 2


@pytest.mark.parametrize("returned", [None, nullcontext(), (nullcontext(),) * 3, (nullcontext(), 3)])
@pytest.mark.parametrize("checkpoint", [checkpoint, impls.native.checkpoint])
def test_context_fn_must_return_two_contexts(returned: Any, checkpoint: Any) -> None:
    if checkpoint is impls.native.checkpoint:
        _require_native()
    with pytest.raises(TypeError, match=r"context_fn returned .*; it must return two context managers"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), context_fn=lambda: returned)


@pytest.mark.parametrize("name", ["preserve_rng_state", "debug", "early_stop"])
def test_flags_are_no_strings(name: str) -> None:
    options: dict[str, Any] = {name: "False"}
    with pytest.raises(TypeError, match=f"{name} is 'False'; it must be True or False"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), **options)


@pytest.mark.parametrize("checkpoint", [checkpoint, impls.native.checkpoint])
def test_a_region_inside_functionalize_gives_its_weight_plains_gradient(checkpoint: Any) -> None:
    if checkpoint is impls.native.checkpoint:
        _require_native()
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    expected = torch.autograd.grad((x @ w).tanh().sum(), w)[0]
    torch.func.functionalize(lambda x: checkpoint(lambda x: (x @ w).tanh(), x))(x).sum().backward()
    assert w.grad is not None
    assert torch.equal(torch._from_functional_tensor(w.grad), expected)


@pytest.mark.parametrize("checkpoint", [checkpoint, impls.native.checkpoint])
def test_a_region_in_a_region_inside_functionalize_is_no_crash(checkpoint: Any) -> None:
    if checkpoint is impls.native.checkpoint:
        _require_native()
    w = torch.randn(3, requires_grad=True)
    y = torch.func.functionalize(lambda x: checkpoint(lambda x: checkpoint(torch.cos, x.sin() * w), x))(torch.randn(3))
    with pytest.raises(impls.nested.CheckpointError, match="recomputation differs from forward"):
        y.sum().backward()
