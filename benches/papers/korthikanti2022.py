"""Korthikanti et al. 2022: the bytes of activations that a transformer layer keeps, by technique."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from benches.compare.measurement import device_seconds
from benches.papers.meters.layer_times import Layer, timed
from benches.papers.meters.live import Live
from benches.papers.meters.saved_bytes import saved_bytes
from benches.papers.models.transformer_layer import Shape, Technique, layer, paper_bytes, split, weights
from benches.papers.paper import Claim, Curve, Figure, Found, Paper, Said, exact, shown, trend

SMALL, GPT3 = Shape(s=32, b=2, h=64, a=4), Shape(s=2048, b=1, h=12288, a=96)
OF_22B = Shape(s=2048, b=4, h=6144, a=64)  # table 3: 48 layers, 8 ranks, a micro batch of 4
TIMES = {"none": "19.6 ms", "full": "27.2 ms, +39 %", "selective": "20.9 ms, +7 %"}
EXPECTED = {"none": (180224, 2868903936), "selective": (139264, 855638016), "full": (8192, 50331648)}
TABLE = "table 2"
PLACES = {"none": "equation 1, table 2", "selective": "table 2, t = 1", "full": TABLE}
FORMULAS = {"none": "sbh (34 + 5as/h)", "selective": "34 sbh", "full": "2 sbh"}
SPLIT = {
    ("none", False): "sbh (10 + 24/t + 5as/(ht))",
    ("none", True): "sbh (34/t + 5as/(ht))",
    ("selective", False): "sbh (10 + 24/t)",
    ("selective", True): "34 sbh / t",
}


NEGLECTED = "{} bytes of layer norm statistics, which the paper neglects (section 4), not counted"


@dataclass(frozen=True)
class Run:
    """One forward and backward: bytes saved a rank, floating point operations in forward and in all, input gradients."""

    activations: int
    statistics: int
    forward: int
    total: int
    gradients: tuple[torch.Tensor, ...]


def run(shape: Shape, technique: Technique, *, device: str = "") -> Run:
    """Run the layer in bfloat16; without ``device``, a small one on the CPU, and others on the meta device.

    Raises RuntimeError when what hooks saw, beside input and output, is not what is alive after forward.
    """
    device = device or ("cpu" if shape == SMALL else "meta")
    torch.manual_seed(0)
    ranks = split(weights(shape, dtype=torch.bfloat16, device=device), technique.ranks)
    whole = torch.randn(shape.s, shape.b, shape.h, dtype=torch.bfloat16, device=device)
    parts = whole.chunk(technique.ranks) if technique.sequence else [whole] * technique.ranks
    inputs = [part.clone().requires_grad_() for part in parts]
    parameters = [tensor for rank in ranks for tensor in rank.tensors()]
    live, flops = Live(), FlopCounterMode(display=False)
    with flops, live:
        saved, outputs = saved_bytes(
            lambda: layer(inputs, ranks, shape, technique), parameters=parameters, rows=inputs[0].numel() // shape.h
        )
        alive, forward = live.alive, flops.get_total_flops()
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    counted = saved.activations + saved.statistics - _bytes(inputs) + _bytes(outputs)
    if alive != counted:
        raise RuntimeError(f"{technique} of {shape}: {alive} bytes are alive after forward, hooks account for {counted}")
    gradients = tuple(one.grad for one in inputs if one.grad is not None)
    activations, statistics = (total // technique.ranks for total in (saved.activations, saved.statistics))
    return Run(activations, statistics, forward, flops.get_total_flops(), gradients)


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@functools.cache
def counted(shape: Shape, technique: Technique) -> Run:
    """``run``, once for each."""
    return run(shape, technique)


def claims() -> Iterator[Claim]:
    """Bytes a layer by technique and by ranks, and what selective recomputation saves and runs again."""
    for name, (small, large) in EXPECTED.items():
        says = Said(FORMULAS[name], PLACES[name])
        yield exact(
            f"{name}: bytes of a layer, (s, b, h, a) = (32, 2, 64, 4)",
            says=says,
            expected=small,
            measure=functools.partial(_executed, name),
        )
        yield exact(
            f"{name}: bytes of a GPT-3 layer, (2048, 1, 12288, 96)",
            says=says,
            expected=large,
            measure=functools.partial(_bytes_saved, GPT3, Technique(recompute=name)),
        )
    yield exact(
        "GPT-3: part of the bytes that selective recomputation saves",
        says=Said("70 %", "section 5"),
        expected="70.2 %",
        measure=_saved,
        note="80 of the formula's 114",
    )
    yield exact(
        "GPT-3: part of the forward's operations that it runs again",
        says=Said("2.7 %", "section 5"),
        expected="2.70 %",
        measure=_again,
    )
    yield from _split()
    for name in TIMES:
        yield exact(
            f"{name}: bytes of a layer of the 22B model, (2048, 4, 6144, 64)",
            says=Said(FORMULAS[name], f"{PLACES[name]}; the shape: table 3"),
            expected=paper_bytes(OF_22B, Technique(recompute=name)),
            measure=functools.partial(_bytes_saved, OF_22B, Technique(recompute=name)),
        )


def _executed(name: str) -> Found:
    """Bytes of the small layer. Raises RuntimeError if its gradients are not those without recomputation, or zeros."""
    one, plain = (counted(SMALL, Technique(recompute=which)) for which in (name, "none"))
    if not all(torch.equal(a, b) and a.any() for a, b in zip(one.gradients, plain.gradients, strict=True)):
        raise RuntimeError(f"gradients with recomputation {name!r} are not those without")
    return Found(one.activations, f"executed; {NEGLECTED.format(one.statistics)}")


def _bytes_saved(shape: Shape, technique: Technique) -> Found:
    meta = counted(shape, technique)
    return Found(meta.activations, f"meta device; {NEGLECTED.format(meta.statistics)}")


def _saved() -> str:
    none, selective = (counted(GPT3, Technique(recompute=name)).activations for name in ("none", "selective"))
    return f"{100 * (none - selective) / none:.1f} %"


def _again() -> Found:
    none = counted(GPT3, Technique())
    runs = (counted(GPT3, Technique(recompute="selective", early_stop=stop)) for stop in (False, True))
    again, stopped = (100 * (one.total - none.total) / none.forward for one in runs)
    return Found(
        f"{again:.2f} %",
        f"{stopped:.2f} % with early stop: autograd saves the second product's inputs before it runs, where the region ends",
    )


def _split() -> Iterator[Claim]:
    shapes, counts = (SMALL, SMALL, GPT3), (2, 4, 8)
    for (recompute, sequence), formula in SPLIT.items():
        techniques = [Technique(ranks=t, sequence=sequence, recompute=recompute) for t in counts]
        kind = "tensor and sequence parallel" if sequence else "tensor parallel"
        yield exact(
            f"{kind}, {recompute}: bytes a rank; small with t = 2, 4, GPT-3 with t = 8",
            says=Said(formula, TABLE),
            expected=tuple(map(paper_bytes, shapes, techniques)),
            measure=functools.partial(_ranks, shapes, techniques),
        )


def _ranks(shapes: Sequence[Shape], techniques: Sequence[Technique]) -> tuple[int, ...]:
    return tuple(counted(shape, one).activations for shape, one in zip(shapes, techniques, strict=True))


def more() -> Iterator[Claim]:
    """What the techniques save together, and times."""
    yield trend(
        "sequence parallelism and selective recomputation: 5 times less memory",
        says=Said("5 ×", "abstract; about 5 × in figure 7"),
        expected="5.41 ×, by table 2",
        measure=_together,
        note="GPT-3 layer, 8 ranks, beside tensor parallelism alone",
    )
    yield trend(
        "over 90 % of recomputation's overhead disappears",
        says=Said("over 90 % of the execution time", "abstract"),
        measure=_gone,
        note="in floating point operations, not time",
    )
    for name, says in TIMES.items():
        yield shown(
            f"{name}: time of a layer of the 22B model, forward and backward",
            says=Said(says, "table 4"),
            measure=functools.partial(_time, name),
            note="" if torch.cuda.is_available() else "needs CUDA",
        )


def _together() -> Found:
    before = counted(GPT3, Technique(ranks=8)).activations
    after = counted(GPT3, Technique(ranks=8, sequence=True, recompute="selective")).activations
    return Found(f"{before / after:.2f} ×", holds=before / after >= 5, figures=(5, before / after))


def _gone() -> Found:
    none, full, selective = (
        counted(GPT3, Technique(recompute=name, early_stop=False)).total for name in ("none", "full", "selective")
    )
    gone = 100 * (1 - (selective - none) / (full - none))
    return Found(f"{gone:.1f} %", holds=gone > 90)


def _time(name: str) -> Found:
    """The time where there is CUDA: of the whole layer on one device, not of a rank."""
    if not torch.cuda.is_available():
        return Found("not measured")
    seconds = _seconds()
    told = f"{1000 * seconds[name]:.1f} ms, {seconds[name] / seconds['none'] - 1:+.0%}"
    return Found(told, "the whole layer on one device; the paper's is a rank of 8 on A100s")


@functools.cache
def _seconds() -> dict[str, float]:
    """Median times of forward and backward of the layer on CUDA, in bfloat16, interleaved round by round."""
    layers = {name: Layer(OF_22B, Technique(recompute=name), dtype=torch.bfloat16, device="cuda") for name in TIMES}
    laps = timed(layers, 20, device_seconds)
    return {name: statistics.median(lap.combined for lap in those) for name, those in laps.items()}


def figures() -> Iterator[Figure]:
    """Bytes of a GPT-3 layer by technique on 8 ranks."""
    techniques = {
        "tensor\nparallel": Technique(ranks=8),
        "+ sequence\nparallel": Technique(ranks=8, sequence=True),
        "+ selective": Technique(ranks=8, recompute="selective"),
        "+ both": Technique(ranks=8, sequence=True, recompute="selective"),
        "full\nrecomputation": Technique(ranks=8, recompute="full"),
    }
    x = tuple(map(float, range(len(techniques))))
    said = tuple(paper_bytes(GPT3, one) / 2**20 for one in techniques.values())
    meta = tuple(counted(GPT3, one).activations / 2**20 for one in techniques.values())
    curves = Curve("formulas of table 2", x, said, "formula"), Curve("counted on the meta device", x, meta, "measured")
    title = "GPT-3 layer on 8 ranks: activations kept for backward"
    yield Figure("korthikanti2022-bytes", title, "technique", "MiB per layer and rank", curves, categories=tuple(techniques))


PAPER = Paper(
    "korthikanti2022",
    "Reducing activation recomputation in large transformer models",
    "Korthikanti et al. 2022, arXiv 2205.05198",
    "Bytes of distinct storages that saved-tensor hooks see in forward, apart from parameters and layer norm statistics, and "
    "the same from the storages that are alive after forward; recomputation by `impls.nested`. Small layers run on the CPU "
    "with gradients equal to the last bit; the layers of GPT-3 and of the 22B model on the meta device.",
    claims,
    more,
    figures,
)
