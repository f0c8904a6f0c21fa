"""What a program leaves behind does not reach the next one."""

from __future__ import annotations

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
