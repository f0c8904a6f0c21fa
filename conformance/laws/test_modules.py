"""Callables and modules: what a region is made of reaches the implementation as it is, with its hooks and its weights."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.programs.scenarios.models import callables, weights
from conformance.programs.strategies import named
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers

BOTH = st.booleans()

# Counting calls wraps the callable, so most of these laws run their programs unwrapped.
_KINDS = ["lambda", "partial", "method", "static method", "callable object", "class", "module", "method of a module"]
_BUILTIN = ["builtin", "method of tensors", "method caller", "scripted", "traced module", "autograd function"]


@for_readers("everyday", "wrong gradient", "functools.partial, bound method, callable object, class, lambda")
@law(named(callables.passed, kind=st.sampled_from(_KINDS), nested=BOTH), floor=6, effort=1.5)
def test_callables_of_every_kind(case: Case) -> None:
    """A lambda, partial, method, callable object, class or module is called with what it is bound to, in both runs."""
    case.equals_plain_unwrapped()


@for_readers("everyday", "wrong gradient", "torch.tanh, TorchScript, torch.jit, autograd.Function.apply, operator")
@law(named(callables.passed, kind=st.sampled_from(_BUILTIN), nested=BOTH), floor=5, recomputes=False)
def test_callables_that_are_not_pythons(case: Case) -> None:
    """Builtins, methods of tensors, scripted and traced functions and the apply of a custom Function give plain's gradients."""
    case.equals_plain_unwrapped()


_HOOKS = ["forward pre-hook", "forward hook", "forward hook with kwargs", "tensor hook", "full backward hook",
          "full backward pre-hook"]  # fmt: skip
_hooked = named(
    callables.hooked, kind=st.sampled_from(_HOOKS), where=st.sampled_from(["function", "child", "inside"]), nested=BOTH
)


@for_readers("everyday", "wrong gradient", "register_forward_hook, register_full_backward_hook, LoRA, adapter")
@law(_hooked, floor=6, effort=2)
def test_hooks_on_modules_have_their_effect(case: Case) -> None:
    """Hooks that change a module's arguments, result or gradients do so in each run, on a region's function or inside it."""
    case.equals_plain_unwrapped()


_EVERYWHERE = st.sampled_from(["forward pre-hook", "forward hook", "full backward hook"])


@for_readers("advanced", "wrong gradient", "register_module_forward_hook, profiler, global hook")
@law(named(callables.hooked_everywhere, kind=_EVERYWHERE, nested=BOTH), floor=3)
def test_hooks_on_all_modules_have_their_effect(case: Case) -> None:
    """Hooks that are registered for all modules change the module that is a region's function as they do under plain."""
    case.equals_plain_unwrapped()


_ONCE = {"kind": st.sampled_from(["forward pre-hook", "forward hook"]), "where": st.sampled_from(["module", "child"])}


@for_readers("advanced", "wrong gradient", "register_forward_hook, handle.remove, one-shot hook, initialization")
@law(named(callables.hooked_once, **_ONCE, nested=BOTH), floor=4, gradients=False, recomputes=False,
     about={"hook", "hooks"})  # fmt: skip
def test_hooks_that_remove_themselves(case: Case) -> None:
    """A hook that changes a module's arguments or result and removes itself makes no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()


_COMPUTED = ["parametrization", "parametrized weight norm", "weight norm", "spectral norm in eval"]
_parametrized = named(
    weights.parametrized, Sums(1024), kind=st.sampled_from(_COMPUTED), inside=BOTH, steps=st.integers(1, 2), nested=BOTH
)


@for_readers("everyday", "wrong gradient", "parametrize, weight_norm, spectral_norm, torch.nn.utils.parametrizations")
@law(_parametrized, floor=6)
def test_weights_that_a_module_computes(case: Case) -> None:
    """A weight that a module computes at each call, by a parametrization or a norm, passes plain's gradients on."""
    case.equals_plain_unwrapped()


_CALLED = {"weight": st.sampled_from(["passed", "computed inside", "computed outside"]), "copied": BOTH, "nested": BOTH}


@for_readers("advanced", "wrong gradient", "functional_call, hypernetwork, torch.func, ensemble")
@law(named(weights.called_inside, **_CALLED), floor=5)
def test_a_functional_call_inside_a_region(case: Case) -> None:
    """A function that calls a module with a weight that it is passed, or computes, gives plain's gradients to all of them."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "MAML, fast weights, meta learning, functional_call, create_graph")
@law(named(weights.fast_weights, inner=st.integers(1, 2), nested=BOTH), needs=["higher-order", "subset-requests"], floor=2)
def test_fast_weights(case: Case) -> None:
    """A region that is called with weights that its own gradients have changed gives the first weights plain's gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "deepcopy, pickle, decorator, exponential moving average, EMA")
@law(
    named(callables.decorated_and_copied, way=st.sampled_from(["deepcopy", "pickle"]), steps=st.integers(1, 2)),
    needs=["decorator"],
    floor=2,
    recomputes=False,
    about=["preserve_rng_state"],
)
def test_a_copied_module_is_checkpointed_as_well(case: Case) -> None:
    """If a module's forward was replaced by its checkpointed one, so is a copy's, with the weights of the copy."""
    case.wrapped = False
    case.as_expected()


@for_readers("advanced", "poor error", "LazyLinear, LazyModule, UninitializedParameter")
@law(named(weights.lazy, nested=BOTH, steps=st.integers(1, 2)), floor=2)
def test_a_lazy_module_is_initialised_by_its_first_call(case: Case) -> None:
    """A module whose weights get their shapes in its first call, inside a region, gives plain's gradients."""
    case.equals_plain()


_GIVEN = st.sampled_from(["assigned", "loaded", "other dtype", "replaced", "pruned"])


@for_readers("adversarial", "wrong gradient", "load_state_dict, assign=True, module.to, half, prune, swap")
@law(named(weights.given_others, how=_GIVEN, inside=BOTH, nested=BOTH), floor=6, gradients=False, recomputes=False,
     about=REQUIRES_GRAD | {"replace", "replaced"})  # fmt: skip
def test_modules_that_are_given_other_weights(case: Case) -> None:
    """A module loaded, cast, pruned or replaced between forward and backward makes no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()
