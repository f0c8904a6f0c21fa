"""What goes into an offloaded model, from one of its slices to the next, and out of it."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.offloaded_models import as_expected, equals_plain, written
from conformance.programs.scenarios.offload import models
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.4, floor=3)
counted_law = functools.partial(offload_law, gradients=False)
HERE, FEW = st.just(False), st.integers(1, 3)
OTHERS = st.lists(st.sampled_from(("float", "long", "same", "number", "inference")), max_size=3).map(tuple)
MICROBATCHES = st.integers(0, 3)  # none: activations are not checkpointed


@for_readers("everyday", "wrong gradient", "kwargs, token ids, attention_mask")
@counted_law(
    written(
        models.many_inputs,
        others=OTHERS,
        keyword=st.booleans(),
        table=st.booleans(),
        microbatches=MICROBATCHES,
        grad=st.booleans(),
        home=st.booleans(),
    )
)
def test_the_first_module_gets_every_input(case: Case) -> None:
    """Several inputs, by position and by name, in containers, integers and numbers reach the first module, split by rows."""
    as_expected(case)


BOXES = st.sampled_from(("list", "dict", "tensor"))


@for_readers("adversarial", "wrong gradient", "list, dict, alias")
@offload_law(
    written(models.repeated, kind=BOXES, first=st.booleans(), microbatches=MICROBATCHES, slices=st.integers(1, 2), away=HERE),
    effort=0.25,
)
def test_a_container_that_is_there_twice_is_one(case: Case) -> None:
    """A list, dict or tensor that a slice gets twice, and changes in one place, is changed in the other, in each run."""
    equals_plain(case)


HANDED = st.sampled_from(("a tensor", "a parameter", "a leaf", "a subclass"))


@for_readers("adversarial", "wrong gradient", "tensor subclass, torch.Size")
@offload_law(written(models.handed_on, kind=HANDED, microbatches=MICROBATCHES, modules=FEW, slices=FEW, away=HERE), effort=0.25)
def test_attributes_and_sizes_are_handed_on(case: Case) -> None:
    """A slice reads class, attributes and is_leaf of what it is given, and a torch.Size, as in plain, and again in backward."""
    equals_plain(case)


CUT: dict[str, st.SearchStrategy[Any]] = {"slices": st.integers(1, 2), "checkpoint": st.booleans()}
LENGTHS = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


@for_readers("everyday", "poor error", "PackedSequence, pack_padded_sequence, RNN, LSTM")
@offload_law(written(models.packed, lengths=LENGTHS, **CUT))
def test_a_packed_sequence_goes_through_a_model(case: Case) -> None:
    """A PackedSequence, whose batch_sizes are on the CPU, goes through slices as in plain, and gradients are plain's."""
    equals_plain(case)


KINDS = ("tuple", "list", "dict", "namedtuple", "the same twice", "a view", "nothing but numbers", "one column")


@for_readers("everyday", "wrong gradient", "ModelOutput, dict, tuple")
@offload_law(written(models.outputs, kind=st.sampled_from(KINDS), microbatches=FEW, checkpoint=st.booleans()))
def test_outputs_have_their_structure(case: Case) -> None:
    """Containers, shapes, and which outputs require grad are the plain model's, also when microbatches are joined."""
    equals_plain(case)
