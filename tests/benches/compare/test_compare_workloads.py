"""The workloads of the comparison: their sizes, their work, and which there are."""

from __future__ import annotations

import pytest
import torch

from benches.compare import meters
from benches.compare.contenders import checkpointing
from benches.compare.measurement import Subject, measure, step_of
from benches.models.workloads import FAKE, sweeps, workload
from impls import get


def test_large_layers_have_the_work_of_gpt_2_at_2048_in_bfloat16() -> None:
    one = workload("fused-attention", "L", FAKE)
    (batch, length, width), layers = one.input.shape, len(one.blocks)
    assert (layers, length, width, one.input.dtype) == (12, 2048, 2048, torch.bfloat16)
    assert {leaf.dtype for leaf in one.leaves} == {torch.bfloat16}
    products, attention = 24 * batch * length * width**2, 4 * batch * length**2 * width
    subject = Subject(one, FAKE)
    assert subject.work.flops == layers * (3 * products + 3.5 * attention)  # flash attention multiplies once more in backward
    row = measure(subject, checkpointing("nested", "ours", get("nested").checkpoint), None)
    assert row.ideal is not None
    assert row.repeated is not None
    assert row.repeated.flops == row.ideal.flops
    assert row.ledger is not None
    assert row.ledger.kept == layers * one.input.numel() * 2  # of each region what it was given, and the output


def test_resnet50_has_its_stages_and_the_rest_grows_in_depth_alone() -> None:
    one = workload("resnet50", "L", FAKE)
    assert [block.middle.in_channels for block in one.blocks] == [64] * 3 + [128] * 4 + [256] * 6 + [512] * 3  # type: ignore[attr-defined]
    assert tuple(one.cotangent.shape) == (64, 2048, 7, 7)
    small = [workload("small-layers", size, FAKE) for size in ("S", "L")]
    assert small[0].input.shape == small[1].input.shape
    assert [len(each.blocks) for each in small] == [6, 96]


def test_workloads_of_the_curves_grow() -> None:
    saved = [one for one in sweeps() if one.name.startswith("saved-")]
    assert [meters.saved_tensors(step_of(one, one.blocks[0])) for one in saved] == [1, 10, 100, 1000]
    assert all(one.timed for one in saved)
    layers = [one for one in sweeps() if one.name.startswith("depth-")]
    assert [len(one.blocks) for one in layers] == [one.x for one in layers] == [2, 4, 8, 16, 32]
    assert not any(one.timed for one in layers)


@pytest.mark.parametrize(
    ("arguments", "told"), [(("no",), "workload is 'no'"), (("lstm", "XXL"), "size is"), (("lstm", "XL"), "device is 'cpu'")]
)
def test_workloads_that_do_not_exist_are_refused(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        workload(*arguments)
