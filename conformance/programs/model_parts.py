"""Pieces of models: each is drawn for an input width, and gives the texts of modules and their output width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
Piece = Callable[[Draw, int], tuple[tuple[str, ...], int]]
WIDTHS = st.integers(1, 4)


def linear(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """Has parameters."""
    after = draw(WIDTHS)
    return (f"torch.nn.Linear({width}, {after}{draw(st.sampled_from(('', '', ', bias=False')))})",), after


def tanh(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """Saves its output."""
    return ("torch.nn.Tanh()",), width


def _activation(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (draw(st.sampled_from(("torch.nn.GELU()", "torch.nn.ReLU()", "torch.nn.Identity()"))),), width


def _inplace(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    made, after = linear(draw, width)
    return (f"torch.nn.Sequential({made[0]}, torch.nn.ReLU(inplace=True))",), after


def _layer_norm(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (f"torch.nn.LayerNorm({width})",), width


def _convolution(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (f"torch.nn.Unflatten(1, (1, {width}))", "torch.nn.Conv1d(1, 2, 1)", "torch.nn.Flatten()"), 2 * width


def _lstm(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    after = draw(WIDTHS)
    recurrent = f"torch.nn.LSTM({width}, {after}, batch_first=True)"
    return (f"torch.nn.Unflatten(1, (1, {width}))", recurrent, "First()", "torch.nn.Flatten()"), after


def tied(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """A parameter that two modules share."""
    return (f"Tied({width})",), width


def _apart(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return ("Apart()", "Joined()"), width


def _frozen(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    after = draw(WIDTHS)
    return (f"torch.nn.Linear({width}, {after}).requires_grad_(False)",), after


def _weight_norm(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    after = draw(WIDTHS)
    return (f"torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear({width}, {after}))",), after


def _dropout(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (f"torch.nn.Dropout({draw(st.sampled_from((0.5, 0.25)))})",), width


def batch_norm(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """Statistics of the batch."""
    return (f"torch.nn.BatchNorm1d({width})",), width


def _spectral_norm(draw: Draw, width: int) -> tuple[tuple[str, ...], int]:
    after = draw(WIDTHS)
    return (f"torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear({width}, {after}))",), after


def counting(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """Buffers that forward changes in place."""
    return (f"Counting({width})",), width


def _assigning(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (f"Assigning({width})",), width


def _clamped(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    return (f"Clamped({width})",), width


def slow(_: Draw, width: int) -> tuple[tuple[str, ...], int]:
    """Takes its time."""
    return ("Slow()",), width


UNTIED: tuple[Piece, ...] = (linear, tanh, _layer_norm, _apart, _frozen, _weight_norm)
SMOOTH: tuple[Piece, ...] = (*UNTIED, tied)
LAYERS: tuple[Piece, ...] = (*SMOOTH, _activation, _inplace, _convolution, _lstm)
NOISE: tuple[Piece, ...] = (_dropout,)
INPLACE_STATE: tuple[Piece, ...] = (batch_norm, _spectral_norm, counting, _clamped)
STATE: tuple[Piece, ...] = (*INPLACE_STATE, _assigning)
# A simulated device has no kernels for one, and plain's move to it takes what the other shares apart.
HERE_ALONE = (_lstm, tied)
PICKLED: tuple[Piece, ...] = (linear, tanh, _layer_norm, _activation, _convolution, _frozen)
# Where rows are told apart and a rounding is not magnified: what is right for a part of the rows is right for all.
ROWWISE: tuple[Piece, ...] = (linear, tanh, _activation, _inplace, _convolution, _lstm, tied, _apart, _frozen)
