"""Layers: functions and modules that models consist of, inside regions and as the functions of regions."""

from __future__ import annotations

import functools

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.strategies import CORE, programs
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="gradients")


@for_readers("everyday", "wrong gradient", "convolution, attention, normalization, pooling, sort, gather, scatter, einsum, CTC")
@law(programs(always=["layers"], sometimes={*CORE, "retain"}), floor=8, effort=1.5)
def test_functions_of_layers(case: Case) -> None:
    """Convolution, normalization, attention, pooling, sorting, gathering and losses inside a region give plain's gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "Conv1d, BatchNorm, GroupNorm, RNN, LSTM, GRU, MultiheadAttention, Embedding")
@law(programs(always=["layer-modules"], sometimes={*CORE, "retain"}), floor=8, effort=2.0)
def test_modules_that_are_layers(case: Case) -> None:
    """Convolutions, norms, recurrent layers, attention and embeddings get plain's gradients, called inside or as the function."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "F.dropout(self.training), nn.Dropout, TransformerEncoderLayer, LSTM dropout")
@law(programs(always=["training-layers"], sometimes={*CORE, "retain", "layers"}), needs=["rng"], floor=6, effort=1.5)
def test_layers_with_dropout(case: Case) -> None:
    """Modules that drop values in training drop the same ones in the recomputation."""
    case.equals_plain()
