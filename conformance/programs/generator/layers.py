"""Layers that drawn programs have: functions that take a square matrix to one of its shape, and modules that do."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.programs.generator.operators import Operator
from conformance.programs.sums import Order

_F = "torch.nn.functional"
_TWICE = ("complex", "create-graph")  # what torch cannot differentiate twice
_REVERSED = "torch.arange(len({0}), device=device).flip(0).expand_as({0})"


def _layer(template: str, *lacking: str, terms: int = 24, per_row: int = 2) -> Operator:
    """A function of layers; its sums are in the same order on the CPU. Kernels add atomically elsewhere."""
    return Operator(template, terms, per_row, Order.SAME_ON_CPU, lacking=frozenset(lacking))


# Texts of functions of a square matrix {0}, and of another one {1}. Each gives a matrix of that shape.
FUNCTIONS = (
    _layer(f"{_F}.conv1d({{0}}[None], {{1}}[:, :, None].expand(-1, -1, 3), padding=1)[0]"),
    _layer(f"{_F}.conv2d({_F}.pad({{0}}, (1, 0, 1, 0))[None, None], {{1}}[None, None, :2, :2])[0, 0]"),
    _layer(f"{_F}.batch_norm({{0}}, None, None, {{1}}[0], {{1}}[1], training=True)", "complex"),
    _layer(f"{_F}.layer_norm({{0}}, {{0}}.shape[1:], {{1}}[0], {{1}}[1])", "complex"),
    _layer(f"{_F}.group_norm({{0}}[None], 1)[0]", "complex"),
    _layer(f"{_F}.embedding(torch.arange(len({{0}}), device=device) % 2, {{0}})", "complex"),
    _layer(f"{_F}.scaled_dot_product_attention({{0}}[None, None], {{1}}[None, None], {{0}}[None, None])[0, 0]", *_TWICE),
    _layer(f"{_F}.max_pool1d({{0}}[None], 2, 1, 1)[0, :, 1:]", "complex"),
    _layer(f"{_F}.max_pool2d({{0}}[None, None], 3, 1, 1)[0, 0]", "complex"),
    _layer(f"{_F}.avg_pool2d({{0}}[None, None], 3, 1, 1)[0, 0]", "complex"),
    _layer("{0}.cumsum(0)"),
    _layer("{0}.cumprod(1)"),
    _layer("{0}.sort(1)[0]", "complex"),
    _layer("{0}.topk(len({0}), 0)[0]", "complex"),
    _layer(f"{{0}}.gather(1, {_REVERSED})"),
    _layer(f"{{0}}.scatter_add(0, {_REVERSED} // 2, {{1}})"),
    _layer("{0}.index_put((torch.arange(2, device=device) // 2,), {1}[:2], accumulate=True)"),
    _layer("torch.einsum('ij,kj->ik', {0}, {1})"),
    _layer(f"{_F}.interpolate({{0}}[None, None], scale_factor=2, mode='bilinear')[0, 0, ::2, 1::2]", "complex"),
    _layer(f"{{0}} * {_F}.cross_entropy({{0}}, torch.arange(len({{0}}), device=device))", "complex", terms=33, per_row=9),
    _layer(
        f"{{0}} * {_F}.ctc_loss({{0}}.log_softmax(1)[:, None], torch.ones(1, 1, dtype=torch.long, device=device), (2,), (1,))",
        *_TWICE,
        "bfloat16",
        "float16",
        terms=45,
        per_row=7,
    ),
)


@dataclass(frozen=True)
class Layer:
    """A module, as texts: {0} is the width and {1} the dtype and device; ``call`` calls {0} on a square matrix {1}.

    - ``terms``: the roundings of one call, see ``programs.program.Op``.
    - ``in_region``: whether it may be the function of a region: it takes the matrix, and returns no containers in a tuple.
    - ``lacking``: the features with which it cannot be drawn.
    """

    text: str
    terms: int
    call: str = "{0}{1})"
    in_region: bool = True
    lacking: frozenset[str] = frozenset()


_REAL = frozenset({"complex"})
_SEQUENCE = "{0}{1})[0]"
MODULES: dict[str, tuple[Layer, ...]] = {  # by the feature that has them; what draws random numbers is apart
    "layer-modules": (
        Layer("torch.nn.Conv1d({0}, {0}, 3, padding=1, {1})", 30),
        Layer("torch.nn.GroupNorm(1, {0}, {1})", 30, lacking=_REAL),
        Layer("torch.nn.BatchNorm1d({0}, {1})", 30, lacking=_REAL),
        Layer("torch.nn.BatchNorm1d({0}, {1}).eval()", 30, lacking=_REAL),
        Layer("torch.nn.RNN({0}, {0}, {1})", 60, _SEQUENCE),
        Layer("torch.nn.GRU({0}, {0}, {1})", 300, _SEQUENCE),
        Layer("torch.nn.LSTM({0}, {0}, num_layers=2, {1})", 600, _SEQUENCE, in_region=False),
        Layer("torch.nn.MultiheadAttention({0}, 1, {1})", 60, "{0}{1}, {1}, {1})[0]", lacking=_REAL),
        Layer("torch.nn.Embedding({0}, {0}, {1})", 30, "{1} * {0}torch.arange(len({1}), device=device))", False, _REAL),
        Layer("torch.nn.Sequential(torch.nn.AvgPool1d(3, 1, 1), torch.nn.Linear({0}, {0}, {1}))", 60, lacking=_REAL),
    ),
    "training-layers": (
        Layer("Feedforward({0}, {1})", 60, lacking=_REAL),
        Layer("torch.nn.Sequential(torch.nn.Linear({0}, {0}, {1}), torch.nn.Dropout(0.5))", 30, lacking=_REAL),
        Layer("torch.nn.TransformerEncoderLayer({0}, 1, 4, 0.5, {1})", 140, lacking=_REAL),
        Layer("torch.nn.LSTM({0}, {0}, num_layers=2, dropout=0.5, {1})", 600, _SEQUENCE, False, _REAL),
    ),
}
