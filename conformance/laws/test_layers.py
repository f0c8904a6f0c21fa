"""Layers: functions and modules that models consist of, inside regions and as the functions of regions."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from hypothesis.strategies import SearchStrategy

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.generator.layers import FUNCTIONS, MODULES, Layer
from conformance.programs.generator.operators import Operator
from conformance.programs.program import Program
from conformance.programs.strategies import CORE, programs
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="gradients")


def _each(feature: str, layers: Iterable[Operator | Layer], *more: str) -> tuple[SearchStrategy[Program], ...]:
    """Programs with each of the layers, none more often than another."""
    return tuple(programs(always=[feature], sometimes={*CORE, "retain", *more}, layer=one) for one in layers)


@for_readers("everyday", "wrong gradient", "convolution, attention, normalization, pooling, sort, gather, scatter, einsum, CTC")
@law(_each("layers", FUNCTIONS), floor=8, effort=1.75)
def test_functions_of_layers(case: Case) -> None:
    """Convolution, normalization, attention, pooling, sorting, gathering and losses inside a region give plain's gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "Conv1d, BatchNorm, GroupNorm, RNN, LSTM, GRU, MultiheadAttention, Embedding")
@law(_each("layer-modules", MODULES["layer-modules"]), floor=8, effort=1.7)
def test_modules_that_are_layers(case: Case) -> None:
    """Convolutions, norms, recurrent layers, attention and embeddings get plain's gradients, inside or as the function."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "F.dropout(self.training), nn.Dropout, TransformerEncoderLayer, LSTM dropout")
@law(_each("training-layers", MODULES["training-layers"], "layers"), needs=["rng"], floor=6)
def test_layers_with_dropout(case: Case) -> None:
    """Modules that drop values in training drop the same ones in the recomputation."""
    case.equals_plain()
