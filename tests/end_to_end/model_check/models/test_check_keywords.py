"""reprise check: a module that is a region gets its own keywords, also those that checkpoints have, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reprise.model_check.checking import check
from reprise.model_check.regions import OPTIONS_DEFAULTS


class Scaled(nn.Module):
    """Multiplies by the value of a keyword of this name."""

    def __init__(self, keyword: str) -> None:
        super().__init__()
        self.keyword, self.layer = keyword, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, **keywords: float) -> torch.Tensor:
        return (self.layer(x) * keywords[self.keyword]).sin()


class Model(nn.Module):
    """Calls such a module with that keyword."""

    def __init__(self, keyword: str) -> None:
        super().__init__()
        self.first, self.scaled = nn.Linear(8, 8), Scaled(keyword)

    def forward(self, x: torch.Tensor) -> Any:
        return self.scaled(self.first(x), **{self.scaled.keyword: 2.0})


@pytest.mark.parametrize("keyword", [*OPTIONS_DEFAULTS, "function", "args", "kwargs", "log", "name", "forward"])
def test_a_keyword_that_is_also_an_option_of_checkpoint_gets_to_the_module(keyword: str) -> None:
    report = check(lambda: (Model(keyword), torch.randn(4, 8)), regions="scaled", steps=1)
    assert [one.verdict for one in report.results] == ["agrees", "agrees"]
    assert [one.recomputations for one in report.results] == [1, 1]
