"""Offloaded models: what is computed with parameters that are elsewhere is what the plain model computes, to the last bit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs import model_parts
from conformance.programs.model_parts import HERE_ALONE, INPLACE_STATE, LAYERS, NOISE, ROWWISE, SMOOTH, STATE, UNTIED
from conformance.programs.offloaded_models import DIFFERENTIATED, SPLIT, Drawn, as_expected, equals_plain, offloaded, written
from conformance.programs.scenarios.offload import models, uses
from conformance.programs.scenarios.offload import training as offload
from conformance.programs.scenarios.threads import offloaded_recomputations
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", recomputes=False, effort=0.4, floor=3)
counted_law = functools.partial(offload_law, gradients=False)
HERE, FLOAT = st.just(False), ("torch.float32",)
OPTIMIZERS = st.sampled_from(("SGD", "Adam"))
FEW, INDICES = st.integers(1, 3), st.integers(0, 9)
ORDERS = st.lists(st.integers(0, 2), min_size=2, max_size=4).map(tuple)


def training(made: Sequence[model_parts.Piece] = LAYERS, *, accumulate: int = 1, **options: Any) -> st.SearchStrategy[Drawn]:
    """Some steps of an optimizer."""
    chosen = st.just(accumulate)
    return offloaded(offload.train, made, optimizer=OPTIMIZERS, steps=FEW, accumulate=chosen, none=st.booleans(), **options)


@for_readers("everyday", "wrong gradient", "optimizer, Adam, training loop")
@offload_law(training(integers=True, rows=st.integers(1, 5)), effort=1)
def test_parameters_are_updated_as_plain_updates_them(case: Case) -> None:
    """Over several steps of an optimizer, outputs, gradients and parameters equal the plain model's."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "dropout, seed")
@offload_law(training((*LAYERS, *NOISE), always=NOISE))
def test_dropout_draws_what_plain_draws(case: Case) -> None:
    """Masks of dropout are the plain model's, and random numbers drawn after forward and after backward too."""
    equals_plain(case)


@for_readers("everyday", "wrong state", "BatchNorm, running statistics, spectral_norm, EMA")
@offload_law(training((*LAYERS, *STATE), always=(model_parts.counting, model_parts.batch_norm)))
def test_buffers_advance_once_a_step(case: Case) -> None:
    """Statistics, counters, power iterations and weights that forward changes itself are the plain model's, step by step."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "gradient accumulation")
@offload_law(training((*LAYERS, *NOISE), accumulate=3))
def test_gradients_accumulate_over_batches(case: Case) -> None:
    """Gradients of several batches add up to the plain model's before the optimizer takes them."""
    equals_plain(case)


HOMES = st.sampled_from(("place", "second(device)"))


@for_readers("advanced", "wrong gradient", "CPU offload, GPU")
@offload_law(training([piece for piece in LAYERS if piece not in HERE_ALONE], home=HOMES))
def test_the_offload_device_may_be_another(case: Case) -> None:
    """With parameters on the device that computes, or on one that is not the CPU, training is the plain model's."""
    equals_plain(case)


PURE = (*LAYERS, *NOISE, model_parts.batch_norm, model_parts.counting)  # what does not change weights
ONCE = tuple(piece for piece in PURE if piece is not model_parts.tied)  # a weight that is used twice is summed in another order


@for_readers("advanced", "wrong gradient", "siamese, contrastive, several losses")
@offload_law(offloaded(offload.one_loss, ONCE, threads=st.integers(0, 1)))
def test_a_loss_of_several_forwards(case: Case) -> None:
    """A loss that adds up two forwards, and a backward on another thread than forward, give the plain model's gradients."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "gradient accumulation, pipeline, retain_graph")
@offload_law(offloaded(offload.several_forwards, PURE, order=ORDERS, retain=st.booleans()))
def test_several_forwards_before_their_backwards(case: Case) -> None:
    """Backwards of several forwards, in any order and more than once over a retained graph, are the plain model's."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "GAN, distillation")
@offload_law(offloaded(uses.two_models, order=st.lists(st.integers(0, 1), min_size=2, max_size=6).map(tuple)))
def test_two_models_at_once(case: Case) -> None:
    """Two models whose forwards and backwards alternate do not affect each other."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "threads")
@offload_law(offloaded(uses.two_threads, SMOOTH, always=(model_parts.slow,), shared=st.booleans(), rounds=FEW))
def test_two_threads_do_not_meet(case: Case) -> None:
    """Two threads that use one model, or each its own, get the plain model's gradients."""
    equals_plain(case)


OTHER = {"other": st.sampled_from(("nested", "reentrant")), "first": st.booleans(), "seconds": st.sampled_from((0.2, 5))}


# On an accelerator one thread runs the backwards of all.
@for_readers("advanced", "wrong gradient", "dropout, threads, checkpoint")
@offload_law(written(offloaded_recomputations.beside, away=HERE, slices=st.integers(1, 2), **OTHER), floor=2, devices=["cpu"])
def test_a_model_draws_its_own_beside_a_region(case: Case) -> None:
    """A checkpointed model draws its own numbers in backward while another thread recomputes a region, and so does that."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "saliency, adversarial examples")
@offload_law(offloaded(offload.input_gradients, (*LAYERS, *NOISE), leaf=st.booleans()))
def test_inputs_get_their_gradients(case: Case) -> None:
    """An input that requires grad, a leaf or not, gets the plain model's gradient, and is not changed."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "autograd.grad, partial backward")
@offload_law(
    offloaded(
        offload.requests,
        integers=True,
        chosen=st.lists(INDICES, min_size=1, max_size=2, unique=True).map(tuple),
        kind=st.sampled_from(("grad", "input", "backward")),
    )
)
def test_some_gradients_can_be_asked_for(case: Case) -> None:
    """Gradients of some parameters, or of the input alone, and then of all over the same graph, are the plain model's."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "double backward, create_graph, gradient penalty")
@offload_law(
    offloaded(offload.differentiated_twice, SMOOTH, penalty=st.booleans(), dtypes=("torch.float64",), sums=DIFFERENTIATED),
)
def test_gradients_can_be_differentiated(case: Case) -> None:
    """With create_graph=True the gradients of gradients are the plain model's; on two devices up to the order of sums."""
    equals_plain(case)


QUIET = (*LAYERS, *NOISE, *INPLACE_STATE)  # what assigns to a buffer leaves one there that is for inference alone
HOW = st.sampled_from(("no_grad", "inference_mode", "enable_grad"))


@for_readers("everyday", "wrong gradient", "eval, validation, inference, no_grad")
@offload_law(
    offloaded(offload.without_gradients, (*LAYERS, *INPLACE_STATE), always=NOISE, away=HERE, how=HOW, training=st.booleans())
)
def test_evaluation_equals_plain(case: Case) -> None:
    """Under no_grad, inference_mode and eval() outputs are the plain model's, and a step after it too."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "AMP, mixed precision, bfloat16")
@offload_law(offloaded(offload.under_autocast, (*UNTIED, *NOISE), dtypes=FLOAT, cache=st.booleans(), away=HERE))
def test_autocast_equals_plain(case: Case) -> None:
    """Forward under autocast to bfloat16, and backward outside, are the plain model's."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "AMP, mixed precision, weight tying")
@offload_law(
    offloaded(
        offload.under_autocast, (model_parts.tied,), always=(model_parts.tied,), dtypes=FLOAT, cache=st.just(True), away=HERE
    )
)
def test_autocast_casts_a_weight_once(case: Case) -> None:
    """Under autocast a weight that is used twice gets the gradient that it gets where it is cast once for both."""
    equals_plain(case)


@for_readers("everyday", "wrong gradient", "gradient accumulation, microbatch")
@offload_law(
    offloaded(
        uses.closer,
        ROWWISE,
        microbatches=st.integers(2, 3),
        dtypes=("torch.float64",),
        steps=FEW,
        rows=st.integers(1, 7),
    )
)
def test_microbatches_sum_up_to_the_whole(case: Case) -> None:
    """With microbatches, even or not, outputs and gradients are the whole batch's up to the order of sums."""
    equals_plain(case)


WIDE = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)


@for_readers("everyday", "wrong gradient", "gradient accumulation, microbatch")
@counted_law(
    written(models.parts, SPLIT, rows=st.integers(2, 7), widths=WIDE, slices=st.integers(1, 2), steps=st.integers(1, 2))
)
def test_two_microbatches_are_the_plain_model_on_each(case: Case) -> None:
    """With two microbatches outputs and gradients are those of the plain model on each part of the rows."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", "dropout, microbatch")
@counted_law(
    written(
        models.masks,
        rows=st.integers(1, 5),
        slices=st.integers(1, 4),
        microbatches=FEW,
        layers=FEW,
        again=st.booleans(),
    )
)
def test_each_microbatch_replays_its_own_mask(case: Case) -> None:
    """In every slice and microbatch, the mask of dropout in backward is the one that forward's output shows."""
    as_expected(case)
