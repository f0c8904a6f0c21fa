"""What a program leaves behind does not reach the next one."""

from __future__ import annotations

import gc
import random
import warnings
from typing import Any

import torch

from conformance.judging.process_state import isolated


def test_nothing_is_compiled_when_a_program_begins() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    doubled = torch.compile(lambda value: 2 * value, backend=backend)
    for _ in range(2):
        with isolated("cpu"):
            doubled(torch.ones(2))
            doubled(torch.ones(2))
    assert len(graphs) == 2


def test_settings_of_the_process_are_put_back() -> None:
    before = random.getstate(), list(warnings.filters), gc.get_threshold(), torch.get_float32_matmul_precision()
    with isolated("cpu"):
        random.seed(0)
        warnings.simplefilter("ignore")
        gc.set_threshold(0)
        torch.set_float32_matmul_precision("high")
    assert (random.getstate(), list(warnings.filters), gc.get_threshold(), torch.get_float32_matmul_precision()) == before
