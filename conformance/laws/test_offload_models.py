"""Offloaded models as modules: hooks, errors, saving, names, shared parameters, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs import model_parts
from conformance.programs.model_parts import LAYERS, NOISE, PICKLED, SMOOTH, STATE
from conformance.programs.offloaded_models import DIFFERENTIATED, SUMS, Drawn, as_expected, equals_plain, offloaded, written
from conformance.programs.scenarios.offload import gradients, models, refusals, uses
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.4, floor=3)
counted_law = functools.partial(offload_law, gradients=False)
HERE = st.just(False)
FEW, SLICES, INDICES = st.integers(1, 3), st.integers(1, 4), st.integers(0, 9)
NAMES = ("nested", "torch-nonreentrant")
ERRORS = st.sampled_from(("ValueError", "KeyboardInterrupt"))


@for_readers("advanced", "wrong gradient", "register_hook, gradient clipping, DDP")
@offload_law(offloaded(uses.hooks_on_parameters, index=INDICES, removed=st.booleans()))
def test_hooks_of_parameters_see_their_gradients(case: Case) -> None:
    """Hooks on parameters are called as often as under plain, with the same gradients, which they may change."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "register_forward_hook, feature extraction")
@offload_law(
    offloaded(uses.hooks_on_modules, SMOOTH, index=INDICES, kind=st.sampled_from(("pre", "forward", "backward"))),
)
def test_hooks_of_modules_have_their_effect(case: Case) -> None:
    """Hooks on the model's modules change inputs, outputs and gradients as they do in the plain model."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "register_full_backward_hook, optimizer in backward, gradient norm, LOMO")
@offload_law(offloaded(uses.hooks_that_use_gradients, SMOOTH, how=st.sampled_from(("reads", "steps", "asks")), away=HERE))
def test_hooks_of_modules_find_gradients(case: Case) -> None:
    """A module's full backward hook finds plain's gradients, to read them or for a step, also if another asks for some."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "saved_tensors_hooks, save_on_cpu")
@offload_law(
    offloaded(uses.hooks_around, (*LAYERS, *NOISE), kind=st.sampled_from(("save_on_cpu", "copies", "same"))),
)
def test_hooks_for_saved_tensors_around_a_model(case: Case) -> None:
    """With the user's own hooks for saved tensors around forward, gradients are the plain model's."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "exception, OOM, retry")
@offload_law(
    offloaded(
        uses.interrupted,
        index=INDICES,
        where=st.sampled_from(("forward", "again", "gradient")),
        error=ERRORS,
        away=HERE,
    )
)
def test_a_step_after_an_error_equals_plain(case: Case) -> None:
    """After an error in forward, in a recomputation or in backward, the next step is the plain model's."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "checkpoint")
@offload_law(offloaded(uses.region_around, always=NOISE, name=st.sampled_from(NAMES), passes=st.integers(1, 2)))
def test_a_checkpoint_around_a_model(case: Case) -> None:
    """A model inside a region of nested or of torch's checkpoint has the plain model's gradients."""
    equals_plain(case)


# A state_dict that is assigned has what modules shared apart.
SAVED = (*(piece for piece in LAYERS if piece is not model_parts.tied), model_parts.counting)
THROUGH = st.sampled_from(("state_dict", "assign", "deepcopy"))


@for_readers("everyday", "wrong state", "state_dict, load_state_dict, resume")
@offload_law(
    offloaded(uses.saved_and_loaded, SAVED, through=THROUGH, steps=FEW),
)
def test_training_goes_on_after_saving_and_loading(case: Case) -> None:
    """A model that is saved and loaded, or copied, with its optimizer in the middle of training goes on as plain's does."""
    equals_plain(case)


@for_readers("everyday", "wrong state", "named_parameters, train, eval, zero_grad, frozen")
@offload_law(offloaded(uses.names_and_flags, (*SMOOTH, *STATE), training=st.booleans()))
def test_a_model_is_what_it_was(case: Case) -> None:
    """Names of parameters and buffers, train, eval, requires_grad_, zero_grad and apply are the plain model's."""
    equals_plain(case)


@for_readers("advanced", "wrong state", "pickle, torch.save, deepcopy")
@offload_law(offloaded(uses.saved_and_loaded, PICKLED, through=st.just("pickle"), steps=FEW), effort=0.25, floor=3)
def test_training_goes_on_after_pickling(case: Case) -> None:
    """A model that is pickled in the middle of training, and its copy, go on as plain's do."""
    equals_plain(case)


CHANGES = st.sampled_from(("in place", "stepping", "loading", "other data", "another row"))


@for_readers("adversarial", "wrong gradient", "optimizer step, in place")
@offload_law(
    offloaded(uses.changed_between, always=(model_parts.tanh,), index=INDICES, how=CHANGES, away=HERE),
    effort=1,
    floor=1,
)
def test_a_parameter_that_changes_before_backward(case: Case) -> None:
    """Backward after a parameter changed raises where plain raises; with checkpointing, or other data, it may always refuse."""
    assert isinstance(case.program, Drawn)
    checkpoints = dict(case.program.options).get("checkpoint_activation", False)
    if checkpoints or dict(case.program.driver.arguments)["how"] in ("other data", "another row"):
        case.equals_plain_or_refuses()
    else:
        case.equals_plain()


@for_readers("adversarial", "wrong gradient", "in place")
@offload_law(offloaded(uses.changed_output, (model_parts.tanh,), away=HERE), floor=1)
def test_an_output_that_is_changed_in_place(case: Case) -> None:
    """Backward after an output was changed in place raises where plain raises, and is plain's where not."""
    case.equals_plain()


HOW = st.sampled_from(("scaled", "replaced"))


@for_readers("adversarial", "wrong gradient", "in place, buffer reuse")
@counted_law(offloaded(uses.changed_input, SMOOTH, how=HOW, away=HERE))
def test_an_input_that_changes_before_backward(case: Case) -> None:
    """Backward after the input was changed in place raises, or gives the gradients of the input that forward saw."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", "shared layer, weight tying")
@offload_law(written(models.twice, checkpoint=st.booleans(), steps=FEW, away=HERE), effort=0.25, floor=3)
def test_a_module_may_occur_twice_in_a_slice(case: Case) -> None:
    """A module that occurs several times in one slice gets the plain model's gradients."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "nn.Embedding(sparse=True), SparseAdam")
@offload_law(written(models.sparse, slices=FEW, checkpoint=st.booleans(), steps=FEW), effort=0.25, floor=3)
def test_sparse_gradients_stay_sparse(case: Case) -> None:
    """An embedding with sparse gradients gets the plain model's, of the same layout."""
    equals_plain(case)


FOLLOWED = st.sampled_from(("linear", "scaled", "encoder"))
VIEW: dict[str, st.SearchStrategy[Any]] = {"dims": st.sampled_from((3, 2)), "axis": st.integers(0, 1)}


@for_readers("everyday", "wrong gradient", "transpose, permute")
@offload_law(written(models.transposed, kind=FOLLOWED, slices=st.integers(1, 2), checkpoint=st.booleans(), away=HERE, **VIEW))
def test_inputs_that_are_transposed(case: Case) -> None:
    """Layers whose input is a transposed view, for which torch takes other operators, give the plain model's gradients."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "weight tying, shared weights, GPT")
@offload_law(written(models.shared, away=HERE, distance=st.integers(1, 3), slices=SLICES, checkpoint=st.booleans(), steps=FEW))
def test_a_shared_parameter_gets_one_gradient(case: Case) -> None:
    """A parameter that two modules share, of one slice or of two, gets the plain model's gradient."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "nn.ReLU(inplace=True), ResNet")
@offload_law(
    written(
        models.changed_in_place,
        before=FEW,
        slices=st.integers(1, 6),
        checkpoint=st.booleans(),
        first=st.booleans(),
        home=st.booleans(),
    )
)
def test_modules_may_change_their_input_in_place(case: Case) -> None:
    """An activation that changes its input in place computes what it does in the plain model, also first in its slice."""
    equals_plain(case)


REGIONS = st.sampled_from(("nested", "reentrant", "torch-nonreentrant", "torch-reentrant"))


@for_readers("advanced", "wrong gradient", "checkpoint")
@offload_law(written(models.inside, away=HERE, name=REGIONS, blocks=FEW, checkpoint=st.booleans(), slices=FEW))
def test_modules_may_checkpoint_themselves(case: Case) -> None:
    """A module that checkpoints a part of itself, with any implementation, has the plain model's gradients."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "GPT, LLM, transformer, attention, dropout, embedding")
@offload_law(
    written(
        models.attention,
        more=st.integers(0, 1),
        checkpoint=st.booleans(),
        slices=st.integers(1, 4),
        masked=st.booleans(),
    ),
    effort=0.25,
)
def test_a_language_model_trains_as_plain(case: Case) -> None:
    """Embedding, attention with dropout and a loss from outside train as they do in the plain model."""
    equals_plain(case)


WRONG = (
    "a module",
    "a subclass",
    "a function",
    "nothing",
    "functions",
    "a dict",
    "no modules",
    "an empty Sequential",
    "a parameter of its own",
    "a parameter of a list",
    "a buffer of its own",
    "a hook of its own",
    "a hook before its own",
    "a backward hook of its own",
    "a hook before backward",
    "a forward of an instance",
    "no shape yet",
    "no shape of buffers yet",
    "text for checkpointing",
    "True for slices",
    "a device that keeps no values",
    "no slices",
    "fewer slices",
    "half a slice",
    "text for slices",
    "no microbatches",
    "fewer microbatches",
    "half a microbatch",
    "microbatches alone",
    "one module twice",
    "one inside another",
    "a device that is none",
    "a number for a device",
    "an offload device that is none",
)


@for_readers("everyday", "poor error", "typo, unknown option")
@counted_law(written(refusals.built_wrongly, wrong=st.sampled_from(WRONG), away=HERE), effort=1.5)
def test_wrong_models_and_options_are_refused(case: Case) -> None:
    """An invalid model or option raises an error that names it, and nothing is moved."""
    as_expected(case)


HOOKED = ("state_dict_pre_hook", "state_dict_post_hook", "load_state_dict_pre_hook", "load_state_dict_post_hook")
OVERRIDDEN = ("train", "named_parameters", "requires_grad_", "state_dict", "get_extra_state", "train of an instance")
MORE = st.sampled_from((*OVERRIDDEN, *HOOKED, "extra_repr", "summary"))


@for_readers("advanced", "wrong state", "nn.Sequential subclass, train, get_extra_state, state_dict hooks")
@counted_law(
    written(refusals.built_with_more, what=MORE, kind=st.sampled_from(("Sequential", "ModuleList")), away=HERE), effort=1
)
def test_what_a_model_overrides_is_not_lost(case: Case) -> None:
    """A model with a method in place of torch's, or with hooks for its state_dict, is refused; one with other ones is not."""
    as_expected(case)


@for_readers("everyday", "wrong state", "eval, frozen, fine-tuning")
@counted_law(written(refusals.built_in_training, training=st.booleans(), graded=st.booleans(), there=st.booleans()))
def test_a_model_keeps_its_mode_and_gradients(case: Case) -> None:
    """A model that is offloaded in the middle of training keeps its mode, flags, buffers and gradients, on either device."""
    as_expected(case)


HOW_ALTERED = st.sampled_from(("", "replaced", "added"))
GATHERED = st.sampled_from(("list", "tuple", "ModuleList"))


@for_readers("advanced", "wrong state", "nn.Sequential, ModuleList")
@counted_law(written(refusals.altered, kind=GATHERED, how=HOW_ALTERED, checkpoint=st.booleans()))
def test_modules_come_in_any_sequence_and_may_be_replaced(case: Case) -> None:
    """Modules in a list, tuple or ModuleList are run, also one that replaces another; one that is added is run or refused."""
    as_expected(case)


CALLS = (
    *("too few rows", "no rows", "rows that differ", "an input without rows", "an output without rows"),
    *("outputs of other structures", "outputs of other numbers", "outputs of other types"),
)


@for_readers("everyday", "poor error", "microbatch, batch size")
@counted_law(written(refusals.called_wrongly, wrong=st.sampled_from(CALLS), slices=FEW))
def test_rows_that_cannot_be_split_are_refused(case: Case) -> None:
    """Too few rows for the microbatches, and inputs or outputs that cannot be split or joined by rows, raise an error."""
    as_expected(case)


MODULES = st.sampled_from(("BatchNorm1d", "BatchNorm2d", "LayerNorm"))


@for_readers("everyday", "poor error", "BatchNorm, microbatch")
@counted_law(
    written(
        refusals.warned,
        module=MODULES,
        training=st.booleans(),
        microbatches=st.integers(1, 2),
        tracking=st.booleans(),
        deep=st.booleans(),
        away=HERE,
    )
)
def test_statistics_of_a_microbatch_are_warned_of(case: Case) -> None:
    """A module that normalises over the whole batch warns when the batch is split, and only then."""
    as_expected(case)


CUT: dict[str, st.SearchStrategy[Any]] = {"slices": st.integers(1, 2), "checkpoint": st.booleans()}


UNDEFINED: dict[str, st.SearchStrategy[Any]] = {"before": st.integers(1, 2), "hooked": st.booleans(), "again": st.booleans()}


@for_readers("everyday", "wrong gradient", "unused parameter, frozen, weight decay, Adam")
@offload_law(written(gradients.undefined, lambda given: DIFFERENTIATED if given["again"] else SUMS, **UNDEFINED, **CUT))
def test_undefined_gradients_stay_undefined(case: Case) -> None:
    """A parameter that gets no gradient under plain gets none here, rather than zeros by which optimizers move it."""
    equals_plain(case)


SUMMED: dict[str, st.SearchStrategy[Any]] = {"wide": st.booleans(), "calls": st.integers(2, 4)}


@for_readers("everyday", "wrong gradient", "bfloat16, float32 gradients, grad_dtype, tied weights, mixed precision")
@offload_law(written(gradients.summed_in_another_dtype, SUMS, **SUMMED, **CUT))
def test_gradients_that_are_summed_in_another_dtype(case: Case) -> None:
    """Gradients of a weight with a grad_dtype of its own have that precision: plain's, or an error in forward."""
    case.equals_plain_or_refuses(in_forward=True)


KINDS_OF_CHANGE = st.sampled_from(("data", "detached", "part", "out", "several", "replaced", "data replaced", "grown"))


@for_readers("advanced", "wrong state", ".data, EMA")
@offload_law(written(gradients.through_data, forwards=st.integers(1, 3), how=KINDS_OF_CHANGE, **CUT), effort=0.6)
def test_buffers_may_change_where_no_version_tells(case: Case) -> None:
    """A buffer that forward changes through .data or an alias, or before it replaces it, is plain's, and so are gradients."""
    equals_plain(case)


@for_readers("advanced", "wrong state", "register_buffer, lazy")
@counted_law(written(gradients.new_buffer, empty=st.booleans(), away=HERE, **CUT))
def test_a_buffer_made_in_forward_is_not_made_twice(case: Case) -> None:
    """A buffer that forward registers is plain's, or refused where a recomputation would make it again."""
    as_expected(case)


@for_readers("advanced", "poor error", "torch.cond, flex_attention, higher-order operator")
@offload_law(written(models.higher_order, away=HERE, **CUT))
def test_modules_may_call_higher_order_operators(case: Case) -> None:
    """A module that calls a higher-order operator, such as torch.cond or flex_attention, gives plain's gradients."""
    equals_plain(case)
