"""reprise check: what goes wrong with a region that returns tuples of tuples, such as an LSTM, is named."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.checking import check
from reprise.model_check.explanations.recording import Recording
from reprise.model_check.report import Result


class Recurrent(nn.Module):
    """An LSTM as a region; the loss reads its output and both of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        out, (h, c) = checkpoint(self.layer, self.first(x), use_reentrant=False)
        return self.last(out) + h.sum() + c.sum()


def result_of(impl: str) -> Result:
    (result,) = check(lambda: (Recurrent(), torch.randn(4, 3, 8)), impl=impl, steps=1, explain=True).results
    return result


def test_outputs_inside_a_tuple_that_lose_their_gradient_are_warned_of() -> None:
    result = result_of("torch-reentrant")
    (warned,) = result.warnings
    assert (result.verdict, warned.kind) == ("diverges", "outputs")
    assert [one.partition(" (")[0] for one in warned.places] == ["output[1][0], output[1][1] of layer"]


def test_an_operator_that_grad_mode_changes_is_told_with_the_mode() -> None:
    """PyTorch's LSTM on the CPU takes another kernel without grad mode."""
    differing = [line for line in result_of("torch-reentrant").explanation.lines if "gives another value" in line]
    assert [line.partition(", without ")[2] for line in differing] == ["grad mode in forward and with grad mode again"]


def test_nested_outputs_of_a_right_implementation_are_not_warned_of() -> None:
    assert (result_of("nested").verdict, result_of("nested").warnings) == ("agrees", ())


def test_the_workspace_of_an_operator_is_no_value() -> None:
    """An LSTM's operator returns its output, two states, and a workspace that is not all written."""
    layer, x = nn.LSTM(8, 8), torch.randn(3, 4, 8)
    with Recording(layer) as recording:
        layer(x)
    (operator,) = [one for one in recording.runs[(), 0] if "rnn_layer" in one.name]
    assert len(operator.made) == 3 + len(operator.read)
