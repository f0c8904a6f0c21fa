"""Ambient state: what a function can see besides its arguments is the same in forward and in recomputation."""

from __future__ import annotations

from typing import cast

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import INFERENCE, REQUIRES_GRAD
from conformance.judging.verdicts import Diverges, Measured, difference
from conformance.programs.notes import Note, Role, read
from conformance.programs.program import Named
from conformance.programs.scenarios.models import settings
from conformance.programs.scenarios.regions import frozen_leaves, modules
from conformance.programs.scenarios.state import ambient
from conformance.programs.scenarios.threads import process_modes
from conformance.programs.strategies import named
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers

MODE = st.sampled_from(["as is", "grad", "no_grad"])


@for_readers("advanced", "wrong gradient", "no_grad, enable_grad")
@law(named(ambient.grad_mode, outer_mode=MODE, backward_mode=MODE, nested=st.booleans()))
def test_grad_mode_is_forwards(case: Case) -> None:
    """A function sees grad mode on in both runs, whatever is in force around forward and around backward."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "inference_mode")
@law(named(ambient.grad_mode, outer_mode=MODE, backward_mode=st.just("inference"), nested=st.booleans()), about=INFERENCE)
def test_backward_in_inference_mode(case: Case) -> None:
    """Backward that is called in inference mode gives plain's gradients, and functions are not in inference mode."""
    case.equals_plain()


@for_readers("everyday", "more work than needed", "evaluation, validation, inference, generate")
@law(
    named(
        ambient.without_grad,
        mode=st.sampled_from(["no_grad", "inference_mode"]),
        nested=st.booleans(),
        flag=st.booleans(),
    ),
    gradients=False,
    recomputes=False,
)
def test_nothing_to_differentiate_costs_one_call(case: Case) -> None:
    """Under no_grad and inference mode a region calls its function once and returns plain's value."""
    seen = case.equals_plain()
    if seen.calls != case.plain.calls:
        told = f"the functions are called {dict(case.plain.calls)} times under plain, {dict(seen.calls)} here"
        raise Diverges(told, Measured("calls", tuple(case.plain.calls.items())))


@for_readers("advanced", "wrong gradient", "requires_grad, is_leaf, nn.Parameter, LoRA, frozen")
@law(named(ambient.arguments, leaf=st.booleans(), nested=st.booleans(), view=st.booleans()))
def test_arguments_look_the_same(case: Case) -> None:
    """Type, dtype, requires_grad, is_leaf and layout of arguments, and which of them are one object, are forward's."""
    case.equals_plain()


KIND = st.sampled_from(["parameter", "leaf", "intermediate", "subclass"])


@for_readers("adversarial", "wrong gradient", "tensor subclass, custom attribute")
@law(named(ambient.attributes, kind=KIND, tensor=st.booleans(), nested=st.booleans()), needs=["closure-gradients"])
def test_attributes_of_arguments_are_there(case: Case) -> None:
    """A Python attribute of an argument, a tensor or not, is there in the recomputation too, and outputs keep theirs."""
    case.equals_plain()


_CALLED = {"forward": st.booleans(), "backward": st.booleans()}  # whether operators of subclasses are called there


@for_readers("adversarial", "wrong gradient", "tensor subclass, __torch_function__")
@law(named(ambient.operators_of_subclasses, **_CALLED, nested=st.booleans(), passes=st.integers(1, 2)))
def test_operators_of_subclasses_are_forwards(case: Case) -> None:
    """A subclass's own operators are called in a recomputation as in forward, also if backward, as its method, calls none."""
    case.equals_plain()


PLACE = st.sampled_from([None, "cpu", "meta"])


AROUND = st.sampled_from([None, "cpu", "meta", "mode"])  # a device context around that of forward, or a mode inside of it


@for_readers("advanced", "wrong state", "torch.device, factory functions")
@law(named(ambient.device_context, nested=st.just(True), around=AROUND, forward=PLACE, backward=PLACE, default=st.booleans()))
def test_device_context_is_forwards(case: Case) -> None:
    """Factories without device= use forward's default device in both runs, and backward leaves its own in force."""
    case.equals_plain()


PASSES = st.integers(1, 4)
DTYPE = st.sampled_from(["float32", "float64", "bfloat16"])


_DEFAULTS = {"before": st.booleans(), "forward": DTYPE, "backward": DTYPE, "passes": PASSES, "nested": st.booleans()}


@for_readers("advanced", "wrong state", "set_default_dtype, float64")
@law(named(ambient.default_dtype, **_DEFAULTS))
def test_default_dtype_is_forwards(case: Case) -> None:
    """A recomputation runs under the default dtype of its own forward, and backward leaves its own in force."""
    case.equals_plain()


FLAG = st.sampled_from(["off", "on", "warn"])


@for_readers("advanced", "wrong state", "use_deterministic_algorithms, reproducibility")
@law(named(ambient.deterministic, forward=FLAG, backward=FLAG, passes=PASSES, nested=st.booleans()))
def test_deterministic_flags_are_forwards(case: Case) -> None:
    """A function sees forward's determinism flags in both runs, and backward leaves its own in force."""
    case.equals_plain()


MODE_OF_ALL, FIRST_TWO = st.sampled_from(["default dtype", "determinism"]), st.integers(0, 1)
_SET = {"mode": MODE_OF_ALL, "backward": FIRST_TWO, "nested": st.booleans()}


# On an accelerator one thread runs the backwards of all.
@for_readers("adversarial", "wrong state", "threads, set_default_dtype")
@law(named(process_modes.set_meanwhile, forward=FIRST_TWO, **_SET), effort=0.4, floor=3, devices=["cpu"])
def test_modes_that_another_thread_sets_stay(case: Case) -> None:
    """A default dtype or determinism that another thread sets during a recomputation stays, and none changes needlessly."""
    case.equals_plain()


_THEN = st.sampled_from(["sets it back", "leaves it", "fails when it runs again"])


@for_readers("adversarial", "wrong state", "set_default_dtype, use_deterministic_algorithms")
@law(named(process_modes.set_inside, then=_THEN, **_SET))
def test_modes_that_a_function_sets(case: Case) -> None:
    """A function may set default dtype or determinism, for itself or for good, and backward leaves its own in force."""
    case.equals_plain()


_SWITCHES = {"what": st.sampled_from(["eval", "frozen"]), "saves_later": st.booleans(), "nested": st.booleans()}


@for_readers("advanced", "wrong state", "eval, train, frozen, GAN, teacher")
@law(named(modules.switched, **_SWITCHES), floor=4)
def test_what_a_function_switches_back_on_a_module(case: Case) -> None:
    """A function may put a module into eval mode, or freeze it, and back: backward leaves it as forward did."""
    case.equals_plain()


_HOOKED = {"of_all": st.booleans(), "saves_later": st.booleans(), "nested": st.booleans()}


@for_readers("adversarial", "wrong state", "register_forward_hook, always_call, early stop")
@law(named(modules.always_called, **_HOOKED), floor=4)
def test_module_hooks_that_are_always_called(case: Case) -> None:
    """A forward hook with always_call=True is called each time that its module is, also if a recomputation ends in there."""
    case.equals_plain()


@for_readers(
    "advanced", "wrong gradient", "always_call, set_default_dtype, PGD, adversarial, relaxation, autograd.grad, early stop"
)
@law(
    named(
        modules.relaxed,
        Sums(terms=256),
        by=st.sampled_from(["a hook", "a mode"]),
        change=st.sampled_from([".data", "no_grad"]),
        steps=st.integers(1, 3),
        nested=st.booleans(),
    ),
    needs=["higher-order"],
    floor=4,
    about=REQUIRES_GRAD,
)
def test_what_a_function_changes_where_it_runs_on(case: Case) -> None:
    """What a function changes in place after it was saved is as in forward, also where a recomputation does not stop early."""
    case.equals_plain()


_AS_IT_IS = {"by": st.sampled_from(["a hook", "a mode"]), "what": st.sampled_from(["attribute", "class", "strides"])}


@for_readers(
    "advanced", "wrong gradient", "always_call, FSDP, custom Function, save_for_backward, subclass, strides, early stop"
)
@law(named(modules.saved_as_it_is, **_AS_IT_IS, nested=st.booleans()), floor=4)
def test_what_is_saved_where_a_recomputation_runs_on(case: Case) -> None:
    """A saved tensor has its attributes, class and strides, also where a recomputation does not stop early."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "eval, fine-tuning, frozen, BatchNorm")
@law(named(modules.module, training=st.just(False), rate=st.sampled_from([0.1, 0.5]), anomaly=st.just(False)), floor=2)
def test_a_module_in_eval_gives_gradients(case: Case) -> None:
    """A module in eval mode that is called with grad enabled is recomputed like any other function."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "detect_anomaly, NaN, debugging")
@law(
    named(modules.module, training=st.booleans(), rate=st.sampled_from([0.0, 0.1]), anomaly=st.just(True)),
    needs=["rng"],
    floor=2,
)
def test_anomaly_mode_changes_nothing(case: Case) -> None:
    """Under anomaly mode a region gives the same values and gradients."""
    case.equals_plain()


# A layer and whether forward is in training. Batch norm from train to eval is left out: without a check of shapes its
# backward reads behind the end of an empty tensor. So are layers that save tensors of the same kind in both modes.
FLIPS = st.sampled_from([("dropout", True), ("dropout", False), ("norm", False)])


@for_readers("adversarial", "wrong gradient", "BatchNorm, dropout, eval")
@law(named(modules.flipped, flip=FLIPS, after=st.integers(0, 3)))
def test_train_and_eval_flipped_before_backward(case: Case) -> None:
    """A module with dropout or batch norm that train() or eval() flips before backward gives no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "inference tensors, frozen, feature extraction")
@law(
    named(frozen_leaves.inference, first=st.booleans(), passes=st.integers(1, 2), nested=st.booleans()),
    floor=3,
    about=INFERENCE,
)
def test_arguments_made_in_inference_mode(case: Case) -> None:
    """An inference tensor may be an argument, is an inference tensor in the recomputation, too, and changes no gradient."""
    case.equals_plain()


_FLAGS = {name: st.booleans() for name in ("unfreeze", "passed", "drop", "nested")}
_BODY = st.sampled_from(["product", "sine", "alone", "beside"])


@for_readers("adversarial", "wrong gradient", "LoRA, frozen, requires_grad_, GAN")
@law(named(frozen_leaves.frozen, body=_BODY, **_FLAGS), floor=4, recomputes=False)
def test_leaves_frozen_or_unfrozen_before_backward(case: Case) -> None:
    """A leaf that is frozen or unfrozen between forward and backward gives no wrong gradient, to itself or to others."""
    case.equals_plain_or_refuses()


STATE = st.sampled_from(["batch norm", "average", "spectral norm"])


def _updated_twice(case: Case) -> None:
    """Buffers are what two runs of the module in each step leave, and without them in forward all else is plain's."""
    in_forward = dict(cast(Named, case.program).arguments)["kind"] == "spectral norm"
    for label, value in case.seen.notes.items():
        note = read(label)
        if note.words[:1] == ("buffers",) and note.role is Role.VALUE:
            expected = case.seen.notes[Note(Role.COST, ("buffers", "of", "two", "runs", note.words[-1])).label]
        elif in_forward or note.role is Role.COST:
            continue
        else:
            expected = case.plain.notes[label]
        if found := difference(expected, value, label, terms=case.terms, scale=case.scale):
            raise Diverges(found.told("expected"))


@for_readers("everyday", "wrong state", "BatchNorm, running statistics, num_batches_tracked, SyncBatchNorm, EMA")
@law(named(modules.stateful, Sums(terms=1024), kind=STATE, steps=st.integers(1, 3)), floor=3,
     effects={"updated twice": _updated_twice})  # fmt: skip
def test_a_module_updates_its_buffers_once(case: Case) -> None:
    """Statistics and other buffers that a module updates in forward are, after backward, what plain leaves."""
    case.equals_plain()


AMBIENT, ERROR = (
    st.sampled_from(["autocast", "no_grad", "device", "none"]),
    st.sampled_from(["RuntimeError", "KeyboardInterrupt"]),
)


@for_readers("advanced", "wrong state", "exception, OOM, retry")
@law(named(ambient.error, ambient=AMBIENT, error=ERROR, nested=st.booleans()))
def test_an_error_leaves_modes_as_they_were(case: Case) -> None:
    """After an error in a recomputation the modes around backward are in force again, and a retry is right."""
    case.equals_plain()


@for_readers("everyday", "wrong state", "matmul precision, set_num_threads, warnings, random, numpy, global hook")
@law(named(settings.looked_at, noise=st.booleans(), fails=st.booleans(), nested=st.booleans()), floor=4)
def test_settings_of_the_process_are_left_alone(case: Case) -> None:
    """Threads, precision, warnings, hooks and random numbers are what they were, after forward, backward and an error."""
    case.equals_plain()
