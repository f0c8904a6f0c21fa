"""What the stages of a chain take from torch's allocator while they run, workspaces of kernels included.

A dispatch mode sees only tensors, but the kernels of convolutions need as much memory again for workspaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.profiler import record_function

from benches.compare.meters import allocated, most, recorded, within
from benches.papers.models.stages import End
from impls.schedules import Chain, Plan, Stage, checkpoint_sequential

END = 4  # bytes of the scalar that a chain ends in, which is none of its stages'


def with_workspaces(chain: Chain, functions: nn.Sequential, example: torch.Tensor) -> tuple[Stage, ...]:
    """Measured stages with the extras that the allocator shows when each stage runs alone on the CPU.

    Every stage must map one tensor that requires grad to another, and draw no random numbers. Gradients of parameters
    are not made.
    """

    def alone() -> None:
        value = example
        for index, function in enumerate(functions):
            with record_function(f"keeping {index}"):
                end = End.apply(function(value))
            with record_function(f"backward {index}"):
                torch.autograd.grad(end, value)
            dropping = torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: torch.empty(0))
            with dropping, record_function(f"passing {index}"):
                output = function(value)
            value = output.detach().requires_grad_()

    alone()  # what kernels set up once is not measured
    spans, memory = recorded(alone)
    peaks = {name: most(within(memory, span)) for name, span in spans.items()}
    return tuple(
        replace(
            stage,
            keeping_extra=max(0, peaks[f"keeping {index}"] - END - stage.saved),
            passing_extra=max(0, peaks[f"passing {index}"] - stage.output),
            backward_extra=max(0, peaks[f"backward {index}"] - stage.gradient),
        )
        for index, stage in enumerate(chain)
    )


def executed(functions: nn.Sequential, plan: Plan, example: torch.Tensor) -> int:
    """The allocator's peak for a plan when nobody holds the output, and gradients of weights are not made.

    States of random generators are not stored.
    """

    def step(over: Callable[[], object]) -> None:
        end = End.apply(checkpoint_sequential(functions, plan, example, preserve_rng_state=False))
        over()
        torch.autograd.grad(end, example)

    return allocated(step, "cpu").peak - END
