"""Faults of the nested checkpoint in what is done around regions: changed outputs, second tries, contexts around forward."""

from __future__ import annotations

from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import Args, change_output, compare_versions_alone_if
from conformance.mutants.mutant import Copy, mutant


@mutant("nested.region", "errors", "outputs_that_are_changed_in_place")
def refuses_an_output_that_was_changed(copy: Copy) -> None:
    """Backward is refused once an output was changed in place, though no operator has saved it."""
    probe = copy["tensors.versions"].version_probe

    def keep(_: None, region: Any, output: Any) -> None:
        region.output = (probe(output), output._version) if isinstance(output, torch.Tensor) else None

    def look(region: Any, _: Any) -> None:
        if region.output and region.output[0]._version != region.output[1]:
            region.refuse("its output was changed in place")

    copy.call_after("nested.region", "Region.end_forward", keep)
    copy.call_before("nested.region", "Region.unpack", look)


@mutant("nested.api", "errors", "outputs_that_are_changed_in_place")
def returns_several_outputs_as_views(copy: Copy) -> None:
    """Several outputs come from one node as views, which autograd lets nobody change in place."""

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *outputs: Any) -> Any:
            return tuple(one.view_as(one) for one in outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients

    def change(output: Any, _: Args) -> Any:
        whole = type(output) is tuple and all(isinstance(one, torch.Tensor) for one in output)
        return Through.apply(*output) if whole else output

    change_output(copy, change)


@mutant("nested.region", "errors", "a_retry_after_an_error_in_backward")
def marks_a_region_until_its_backward_has_succeeded(copy: Copy) -> None:
    """What says that a region is being recomputed is taken off at the end of a backward, which one that fails never reaches."""

    def mark(region: Any, task: int, _: Any) -> None:
        if vars(region).get("task", task) != task:
            region.refuse("it is being recomputed for another backward")
        if task != -1:
            region.task = task
            torch.autograd.Variable._execution_engine.queue_callback(lambda: vars(region).pop("task", None))

    copy.call_before("nested.region", "Region.recompute", mark)


@mutant("nested.recomputation", "errors", "contexts_around_forward_alone")
def takes_other_kernels_tensors_for_forwards(copy: Copy) -> None:
    """Saved tensors of another shape are taken for forward's, as another kernel saves them."""
    compare_versions_alone_if(copy, lambda *_: True)
