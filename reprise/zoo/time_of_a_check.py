"""What a check takes, beside a training step of the same model: a Llama of 12 layers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from reprise.model_check.checking import DEFAULT, check

SIZES = {
    "num_hidden_layers": 12,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
}
SEQUENCES, TOKENS = 4, 256
ROUNDS, STEPS = 3, 3
LIMIT = 15.0  # steps: what the design allows

Loss = Callable[[torch.nn.Module], torch.Tensor]


def _build(*, checkpointed: bool = True) -> tuple[torch.nn.Module, Loss]:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SIZES)).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    ids = torch.randint(3, SIZES["vocab_size"], (SEQUENCES, TOKENS))
    return model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss


def measured() -> dict[str, Any]:
    """How many steps, checkpointed and plain, take as long as a check of the default implementations; medians of all rounds.

    Both kinds of step are timed before each check and after the last one.
    """
    ratios: dict[str, list[float]] = {"checkpointed": [], "plain": []}
    steps = {name: [_seconds_of_a_step(name)] for name in ratios}
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        report = check(_build, impl=DEFAULT)
        seconds = time.perf_counter() - begun
        if not report.agrees:
            raise ValueError(f"the check of a Llama of {SIZES['num_hidden_layers']} layers was to agree: {report}")
        for name, values in ratios.items():
            steps[name].append(_seconds_of_a_step(name))
            values.append(seconds / statistics.mean(steps[name][-2:]))
    model = f"Llama of {SIZES['num_hidden_layers']} layers, width {SIZES['hidden_size']}, {SEQUENCES} × {TOKENS} tokens"
    return {"model": model, "implementations": [*DEFAULT], **{name: statistics.median(of) for name, of in ratios.items()}}


def _seconds_of_a_step(kind: str) -> float:
    model, loss = _build(checkpointed=kind == "checkpointed")
    seconds = []
    for _ in range(STEPS + 1):
        begun = time.perf_counter()
        model.zero_grad()
        loss(model).backward()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])  # the first one allocates
