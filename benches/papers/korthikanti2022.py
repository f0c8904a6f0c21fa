"""Korthikanti et al. 2022: the bytes of activations that a transformer layer keeps, by technique."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from benches.compare_measuring import device_seconds
from benches.papers.layer_times import Layer, timed
from benches.papers.live import Live
from benches.papers.paper import Curve, Figure, Paper, Row, exact, trend, unverified
from benches.papers.saved_bytes import saved_bytes
from benches.papers.transformer_layer import Shape, Technique, layer, paper_bytes, split, weights

SMALL, GPT3 = Shape(s=32, b=2, h=64, a=4), Shape(s=2048, b=1, h=12288, a=96)
OF_22B = Shape(s=2048, b=4, h=6144, a=64)  # as reported: 48 layers, 8 ranks, a micro batch of 4
TIMES = {"none": "19.6 ms", "full": "27.2 ms (+39 %)", "selective": "20.9 ms (+7 %)"}
SAYS = {"none": (180224, 2868903936), "selective": (139264, 855638016), "full": (8192, 50331648)}
FORMULAS = {"none": "sbh (34 + 5as/h)", "selective": "34 sbh", "full": "2 sbh"}
SPLIT = {
    ("none", False): "sbh (10 + 24/t + 5as/(ht))",
    ("none", True): "sbh (34/t + 5as/(ht))",
    ("selective", False): "sbh (10 + 24/t)",
    ("selective", True): "34 sbh / t",
}


@dataclass(frozen=True)
class Run:
    """One forward and backward: bytes saved a rank, floating point operations in forward and in all, input gradients."""

    activations: int
    statistics: int
    forward: int
    total: int
    gradients: tuple[torch.Tensor, ...]


def run(shape: Shape, technique: Technique, *, device: str = "") -> Run:
    """Run the layer in bfloat16, where no device is named on the CPU when it is small, else on the meta device.

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


def rows() -> Iterator[Row]:
    """Bytes a layer by technique, and what selective recomputation saves and runs again."""
    plain = run(SMALL, Technique())
    for name, (small, large) in SAYS.items():
        one = run(SMALL, Technique(recompute=name))
        if not all(torch.equal(a, b) and a.any() for a, b in zip(one.gradients, plain.gradients, strict=True)):
            raise RuntimeError(f"gradients with recomputation {name!r} are not those without")
        read = "" if name == "none" else "; formula unread in the original, value computed before"
        note = f"executed; {one.statistics} bytes of layer norm statistics, which the paper neglects, not counted{read}"
        yield exact(f"{name}: {FORMULAS[name]}, (s, b, h, a) = (32, 2, 64, 4)", says=small, measured=one.activations, note=note)
        meta = run(GPT3, Technique(recompute=name))
        note = f"meta device; {meta.statistics} bytes of statistics not counted{read}"
        yield exact(f"{name}: GPT-3 layer, (2048, 1, 12288, 96)", says=large, measured=meta.activations, note=note)
    none, selective = run(GPT3, Technique()), run(GPT3, Technique(recompute="selective", early_stop=False))
    share = 100 * (none.activations - selective.activations) / none.activations
    yield exact("GPT-3: selective recomputation saves 70.2 % of the bytes", says="70.2 %", measured=f"{share:.1f} %")
    early = run(GPT3, Technique(recompute="selective"))
    again, stopped = (100 * (one.total - none.total) / none.forward for one in (selective, early))
    note = (
        f"{stopped:.2f} % with early stop: autograd saves the second product's inputs before it runs, and the region ends there"
    )
    yield exact("GPT-3: it runs 2.70 % of the forward operations again", says="2.70 %", measured=f"{again:.2f} %", note=note)


def more() -> Iterator[Row]:
    """What the techniques save together, the formulas for several ranks, and the times that were reported."""
    none, selective = run(GPT3, Technique()), run(GPT3, Technique(recompute="selective", early_stop=False))
    before = run(GPT3, Technique(ranks=8)).activations
    after = run(GPT3, Technique(ranks=8, sequence=True, recompute="selective")).activations
    yield trend(
        "sequence parallelism and selective recomputation: 5 times less memory",
        says="5 ×",
        measured=f"{before / after:.2f} ×",
        holds=before / after >= 5,
        note="GPT-3 layer, 8 ranks, beside tensor parallelism alone",
    )
    full = run(GPT3, Technique(recompute="full", early_stop=False))
    gone = 100 * (1 - (selective.total - none.total) / (full.total - none.total))
    yield trend(
        "over 90 % of recomputation's overhead disappears",
        says="> 90 %",
        measured=f"{gone:.1f} %",
        holds=gone > 90,
        note="in floating point operations; the paper's figure is of time",
    )
    yield from _split()
    yield from _of_22b()


def _of_22b() -> Iterator[Row]:
    """Bytes of a layer of the 22B model, and its time where there is CUDA: of the whole layer on one device, not of a rank."""
    measured = _seconds() if torch.cuda.is_available() else {}
    for name, says in TIMES.items():
        technique = Technique(recompute=name)
        yield unverified(
            f"22B model, bytes of a layer, recomputation {name}: {FORMULAS[name]}, (2048, 4, 6144, 64)",
            says=paper_bytes(OF_22B, technique),
            measured=run(OF_22B, technique).activations,
            note="meta device; the formula's value for the shape as it was reported",
        )
        timed = f"{1000 * measured[name]:.1f} ms ({measured[name] / measured['none'] - 1:+.0%})" if measured else "not measured"
        note = "the whole layer on one device; the paper's is a rank of 8" if measured else "needs CUDA, and the paper's GPUs"
        yield unverified(f"22B model, time of a layer, recomputation {name}", says=says, measured=timed, note=note)


def _seconds() -> dict[str, float]:
    """Median times of forward and backward of the layer on CUDA, in bfloat16, interleaved round by round."""
    layers = {name: Layer(OF_22B, Technique(recompute=name), dtype=torch.bfloat16, device="cuda") for name in TIMES}
    laps = timed(layers, 20, device_seconds)
    return {name: statistics.median(lap.combined for lap in those) for name, those in laps.items()}


def _split() -> Iterator[Row]:
    """Formulas for several ranks: nobody here has read them in the original."""
    shapes, counts = (SMALL, SMALL, GPT3), (2, 4, 8)
    for (recompute, sequence), formula in SPLIT.items():
        techniques = [Technique(ranks=t, sequence=sequence, recompute=recompute) for t in counts]
        says = tuple(map(paper_bytes, shapes, techniques))
        measured = tuple(run(shape, one).activations for shape, one in zip(shapes, techniques, strict=True))
        kind = "tensor and sequence parallel" if sequence else "tensor parallel"
        note = f"bytes a rank, {'equal to' if says == measured else 'NOT equal to'} the formula as it was reported"
        yield unverified(
            f"{kind}, {recompute}: {formula}; small with t = 2, 4, GPT-3 with t = 8", says=says, measured=measured, note=note
        )


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
    measured = tuple(run(GPT3, one).activations / 2**20 for one in techniques.values())
    curves = Curve("formulas (those for several ranks as reported)", x, said, "paper"), Curve("measured", x, measured)
    title = "GPT-3 layer on 8 ranks: activations kept for backward"
    yield Figure("korthikanti2022-bytes", title, "technique", "MiB per layer and rank", curves, categories=tuple(techniques))


PAPER = Paper(
    "korthikanti2022",
    "Reducing activation recomputation in large transformer models",
    "Korthikanti et al. 2022, arXiv 2205.05198",
    "Bytes of distinct storages that saved-tensor hooks see in forward, apart from parameters and layer norm statistics, and "
    "the same from the storages that are alive after forward; recomputation by `impls.nested`. Small layers run on the CPU "
    "with gradients equal to the last bit; the GPT-3 layer runs forward and backward on the meta device.",
    rows,
    more,
    figures,
)
