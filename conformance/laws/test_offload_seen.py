"""Offloaded models whose modules look at more than values: flags, classes, attributes, hooks, shared memory."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.offloaded_models import equals_plain, plain_runs, written
from conformance.programs.scenarios.offload import visible_attributes
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.4, floor=3)
HERE, BOTH = st.just(False), st.booleans()
CUT: dict[str, st.SearchStrategy[Any]] = {"slices": st.integers(1, 2), "checkpoint": BOTH}


@for_readers("adversarial", "wrong gradient", "BatchNorm, dropout, eval")
@offload_law(written(visible_attributes.flags, kind=st.sampled_from(("asking", "dropout", "norm")), training=BOTH, **CUT))
def test_modules_train_when_they_run_again_as_they_did(case: Case) -> None:
    """When train() or eval() is called between forward and backward, gradients are plain's, and flags stay as they were set."""
    equals_plain(case)


AGAIN = {**CUT, "checkpoint": st.just(True)}
SWITCHED = st.sampled_from(("a mode", "a mode for good", "an attribute", "a hook"))


@for_readers("advanced", "wrong gradient", "BatchNorm, eval, temporary forward hook, MC dropout")
@offload_law(written(visible_attributes.set_and_set_back, what=SWITCHED, trained=BOTH, away=HERE, **AGAIN), effort=1)
def test_what_forward_sets_and_sets_back_is_set_back(case: Case) -> None:
    """What forward sets on modules, for a while or for good, is as in plain after backward: modes, an attribute, a hook."""
    equals_plain(case)


LOOKS = st.sampled_from(("class", "class of a buffer", "attribute", "attribute of a buffer"))


@for_readers("advanced", "wrong state", "nn.Parameter, attributes")
@offload_law(written(visible_attributes.parameters, looks=LOOKS, frozen=BOTH, **CUT))
def test_a_parameter_looks_like_one(case: Case) -> None:
    """In forward, and again in backward, a parameter is an nn.Parameter and has the attributes that it was given."""
    equals_plain(case)


WHAT = st.sampled_from(("a part", "apart", "a weight", "read alone"))


@for_readers("adversarial", "wrong state", "shared memory, view")
@offload_law(written(visible_attributes.memory, what=WHAT, away=HERE, **CUT), about={"memory"})
def test_memory_that_is_shared_is_changed_for_all(case: Case) -> None:
    """When forward changes a buffer that shares memory with another or a weight, all is plain's, or it is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


SHARED = st.sampled_from(("one for both", "a view", "other data", "both new"))


@for_readers("adversarial", "wrong state", "register_buffer, alias, previous state")
@offload_law(written(visible_attributes.passed_on, what=SHARED, away=HERE, **CUT))
def test_a_buffer_that_forward_gives_another(case: Case) -> None:
    """Where forward makes two buffers share memory, later changes are of both, as in plain, or forward refuses it."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


@for_readers("advanced", "poor error", "register_buffer, previous state, memory bank")
@offload_law(written(visible_attributes.passed_on, what=st.just("exchanged"), away=HERE, **CUT))
def test_a_buffer_that_takes_over_from_another(case: Case) -> None:
    """A buffer that gets what another was, which gets a new value, is plain's step by step."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "register_hook")
@offload_law(written(visible_attributes.hooked_inside, stays=BOTH, **CUT))
def test_a_hook_that_forward_registers_stays_or_is_refused(case: Case) -> None:
    """A hook that forward registers on its weight acts in this step and the next, as in plain, or forward refuses it."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


@for_readers("adversarial", "wrong state", "nn.Parameter subclass, version counter")
@offload_law(written(visible_attributes.own_parameters, looks=st.sampled_from(("class", "version")), away=HERE, **CUT))
def test_a_parameter_has_its_class_and_version(case: Case) -> None:
    """In forward a parameter is of the class that was derived for it, and has another version once it was changed."""
    equals_plain(case)


KINDS = st.sampled_from(("forward_pre", "forward", "full_backward"))


@for_readers("advanced", "wrong state", "register_module_forward_hook")
@offload_law(written(visible_attributes.hooks_on_all_modules, kind=KINDS, checkpoint=BOTH))
def test_hooks_of_all_modules_see_those_of_the_model(case: Case) -> None:
    """Hooks that are registered for all modules are called for those of the plain model, and for no others."""
    equals_plain(case)


@for_readers("advanced", "poor error", "detect_anomaly, NaN")
@offload_law(written(visible_attributes.anomalies, away=st.just(True), **CUT))
def test_anomaly_detection_finds_none(case: Case) -> None:
    """Where anomalies are detected, gradients that are still on their way to the host are not taken for nan."""
    equals_plain(case)


BY = st.sampled_from(("by the caller", "by forward"))


@for_readers("advanced", "wrong state", "register_buffer, memory bank, codebook, VQ-VAE, in place")
@offload_law(written(visible_attributes.returned_buffers, changed=BY, whole=BOTH, **CUT))
def test_a_buffer_that_a_module_returns_is_the_buffer(case: Case) -> None:
    """What the caller changes in a buffer that a module returns reaches the module, and what forward changes is seen in it."""
    equals_plain(case)


KINDS_KEPT = st.sampled_from(("loss", "largest", "rows"))
SPLIT: dict[str, st.SearchStrategy[Any]] = {"rows": st.integers(3, 5), "microbatches": st.integers(2, 3)}


@for_readers("everyday", "wrong gradient", "auxiliary loss, MoE, load balancing, microbatch")
@offload_law(written(visible_attributes.kept_of_microbatches, kind=KINDS_KEPT, slices=st.integers(1, 2), **SPLIT))
def test_what_a_module_keeps_is_of_the_whole_batch(case: Case) -> None:
    """With microbatches, a loss or count that a module keeps in an attribute is that of the whole batch, as are gradients."""
    equals_plain(case)


FLAGS = ("unfrozen", "frozen by a reference", "unfrozen by a reference")
SETTINGS = st.sampled_from((*FLAGS, "an attribute", "converted"))
WHOLE_OR_SPLIT: dict[str, st.SearchStrategy[Any]] = {"rows": st.integers(3, 5), "microbatches": st.integers(1, 2)}


@for_readers("everyday", "wrong gradient", "requires_grad_, unfreeze, fine-tuning, double, dtype, attributes, microbatch")
@offload_law(written(visible_attributes.settings_inside, what=SETTINGS, slices=st.integers(1, 2), **WHOLE_OR_SPLIT), effort=1)
def test_what_forward_sets_on_a_weight_stays_or_is_refused(case: Case) -> None:
    """A weight that forward freezes, unfreezes, converts, or gives an attribute is then as in plain, or forward refuses it."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


@for_readers("advanced", "wrong gradient", "enable_grad, no_grad, microbatch")
@offload_law(written(visible_attributes.gradients_enabled_inside, **CUT, **WHOLE_OR_SPLIT))
def test_a_module_that_enables_gradients_has_them(case: Case) -> None:
    """Modules that enable gradients under no_grad get plain's, and so do inputs, also from microbatches."""
    equals_plain(case)


@for_readers("advanced", "poor error", "is_grads_batched, Jacobian, vmap")
@offload_law(written(visible_attributes.gradients_at_once, count=st.integers(1, 3), **CUT))
def test_gradients_of_models_that_are_asked_for_at_once(case: Case) -> None:
    """torch.autograd.grad with is_grads_batched=True gives plain's gradients of parameters."""
    equals_plain(case)


@for_readers("everyday", "poor error", "torch.compile")
@offload_law(written(visible_attributes.compiled_model, rows=st.integers(2, 4), **CUT), effort=0.1, floor=1)
def test_a_step_that_is_compiled_around_a_model(case: Case) -> None:
    """A compiled step that calls the model gives plain's values and gradients, also at another shape."""
    equals_plain(case)


OF = st.sampled_from(("a weight", "an input", "data"))


@for_readers("advanced", "wrong gradient", "RReLU, noise, uninitialised memory")
@offload_law(written(visible_attributes.written_late, of=OF, away=BOTH, **AGAIN), effort=1)
def test_noise_that_a_model_draws_once_it_is_saved(case: Case) -> None:
    """Noise that rrelu draws into memory that is saved already is plain's in backward, for an input as for a weight."""
    equals_plain(case)
