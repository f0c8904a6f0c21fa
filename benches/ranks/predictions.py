"""What the model predicts for decoders of 7 and 70 billion weights on up to 1,024 devices: all of it is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

import impls
from benches.ranks.decoder import LARGE, Around, Shape, plainly
from benches.ranks.model import Prediction, Setting, sharded, staged
from benches.ranks.shapes import Parts, parts

DEVICES = 8, 64, 256, 1024
SHARES = 8  # of a block under tensor parallelism
STAGES = 8, 16
EACH = 4  # microbatches of a pipeline for each of its stages
SETTING = Setting(torch.bfloat16)
TECHNIQUES: Mapping[str, Around] = MappingProxyType(
    {"none": plainly, "selective": impls.get("torch-selective").checkpoint, "full": impls.get("torch-nonreentrant").checkpoint}
)
ASSUMPTIONS = (
    "Computed from shapes alone, nothing of it measured. Decoders in the shape of Llama 2, one sequence of 4,096 tokens a "
    "microbatch; blocks compute in bfloat16, weights, reduced gradients and Adam's two states are float32. Recomputation: "
    "none, selective (results of matrix products are kept), full (each block is a region). FSDP2: a unit for each block and "
    "one for the rest, units resharded after forward. TP × FSDP2: each block in 8 shares without sequence parallelism, "
    "embedding and head whole. 1F1B: stages of as many blocks each and 4 microbatches for each stage, weights of a stage "
    "whole on its device with a copy in bfloat16, replicas that average gradients; the largest number of any stage. Sent: "
    "bytes that a device sends in a step by ring algorithms, (n - 1) / n of a gathered or reduced buffer, twice that of an "
    "all-reduce. Not in the peak: workspaces of kernels and backends, fragments of an allocator, the optimizer's "
    "temporaries. What two and four ranks check is the same model in float32 at their size, each parallelism among them; "
    "replicas of a pipeline they do not."
)


Predict = Callable[[Parts], list[Prediction]]


@dataclass(frozen=True)
class Row:
    """Peak bytes and bytes sent a device, by technique; and how many sequences all devices take in a step."""

    model: str
    parallelism: str
    devices: int
    sequences: int
    peaks: Mapping[str, int]
    sent: Mapping[str, int]


def rows(models: Mapping[str, Shape] = LARGE) -> Iterator[Row]:
    """All predictions."""
    for model, shape in models.items():
        costs = {
            shares: {name: parts(shape, around, SETTING.dtype, shares) for name, around in TECHNIQUES.items()}
            for shares in (1, SHARES)
        }
        for devices in DEVICES:
            for parallelism, sequences, shares, predict in _ways(shape, devices):
                found = {name: predict(one) for name, one in costs[shares].items()}
                peaks = {name: max(one.peak for one in those) for name, those in found.items()}
                sent = {name: max(one.traffic.sent for one in those) for name, those in found.items()}
                yield Row(model, parallelism, devices, sequences, peaks, sent)


def _ways(shape: Shape, devices: int) -> Iterator[tuple[str, int, int, Predict]]:
    """Parallelisms on so many devices: name, sequences in a step, shares of a block, and the predictions of its ranks."""
    yield "FSDP2", devices, 1, lambda costs: [sharded(shape, costs, devices, SETTING)]
    groups = devices // SHARES
    yield f"TP {SHARES} × FSDP2", groups, SHARES, lambda costs: [sharded(shape, costs, groups, SETTING, SHARES)]
    for stages in STAGES:
        if stages <= devices:
            yield f"1F1B, {stages} stages", EACH * devices, 1, functools.partial(_pipeline, shape, stages, devices // stages)


def _pipeline(shape: Shape, stages: int, replicas: int, costs: Parts) -> list[Prediction]:
    return [staged(shape, costs, stage, stages, EACH * stages, SETTING, replicas) for stage in range(stages)]
