"""Time, peak bytes and bytes sent of two or four ranks, plain and checkpointed, beside what a model predicts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import impls
from benches.compare.measurement import quartiles
from benches.published import store
from benches.ranks import predictions, report
from benches.ranks.decoder import TINY, Shape
from benches.ranks.model import MASTER, Prediction, Setting, sharded, staged
from benches.ranks.shapes import parts
from benches.ranks.steps import FSDP, PIPELINE, SHARES, TENSOR, Work, around, source
from conformance.distributed.answer import Task, WorldEnded
from conformance.distributed.world import World
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.ranked_runs.command import ends_when_asked
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT

DEFAULT = "nested", "torch-nonreentrant", "torch-selective"
SECONDS = 600.0  # in which ranks must have measured one thing
CODE = "benches.ranks.command:measured", "benches.ranks.steps:measured"


@dataclass(frozen=True)
class Choice:
    """What is measured: the number of ranks, implementations beside plain, rounds of timing, and the decoder."""

    ranks: int
    implementations: Sequence[str] = ()
    rounds: int = 15
    shape: Shape = TINY
    microbatches: int = 4

    def __post_init__(self) -> None:
        if self.ranks not in report.RANKS:
            raise InvalidOption(f"--ranks is {self.ranks}; with compare, accepted are {' and '.join(map(str, report.RANKS))}")
        for name in self.names:
            try:
                impls.find(name, "checkpoint")
            except ValueError as error:
                raise InvalidOption(f"--impl: {error}") from error

    @property
    def names(self) -> list[str]:
        """Plain first, each once."""
        return [*dict.fromkeys(["plain", *(self.implementations or DEFAULT)])]

    @property
    def parallelisms(self) -> list[str]:
        """Those of so many ranks; a mesh of two dimensions takes four."""
        return [FSDP, PIPELINE, *([TENSOR] if self.ranks == max(report.RANKS) else [])]

    @property
    def bound(self) -> int:
        """How far a peak may be from its prediction.

        The model runs each part alone: where one hands over to the next, autograd may hold one gradient more or less of the
        size that goes between them. And while a region is recomputed, it holds a state of random numbers.
        """
        return MASTER * torch.Size(self.shape.boundary).numel() + torch.get_rng_state().nbytes


def predicted(choice: Choice, parallelism: str, name: str) -> list[Prediction]:
    """What the model predicts for each rank, from shapes alone."""
    shares = SHARES if parallelism == TENSOR else 1
    setting = Setting(state=0 if name == "plain" else torch.get_rng_state().nbytes)
    costs = parts(choice.shape, around(name), shares=shares)
    if parallelism == PIPELINE:
        stages = range(choice.ranks)
        return [staged(choice.shape, costs, stage, choice.ranks, choice.microbatches, setting) for stage in stages]
    return [sharded(choice.shape, costs, choice.ranks // shares, setting, shares)] * choice.ranks


def measured(choice: Choice) -> list[dict[str, Any]]:
    """A row for each parallelism and implementation. Raises ValueError for what an implementation raises on a rank."""
    rows: list[dict[str, Any]] = []
    with ends_when_asked(), World(choice.ranks, seconds=SECONDS) as world:
        for parallelism in choice.parallelisms:
            seconds = _answers(world, choice, parallelism, choice.names, choice.rounds)[0]
            expected: list[str] = []
            for name in choice.names:
                found = _answers(world, choice, parallelism, [name])
                digests = [one["gradients"] for one in found]
                expected = expected or digests
                ratios = [one / plain for one, plain in zip(seconds[name], seconds["plain"], strict=True)]
                of_model = predicted(choice, parallelism, name)
                rows.append({
                    "parallelism": parallelism,
                    "implementation": name,
                    "times": quartiles(ratios),
                    **{key: [one[key] for one in found] for key in ("peak", "sent", "collectives")},
                    "predicted_peak": [one.peak for one in of_model],
                    "predicted_sent": [one.traffic.sent for one in of_model],
                    "predicted_collectives": [one.traffic.rows for one in of_model],
                    "gradients": "equal" if digests == expected and all(digests) else "differ",
                })  # fmt: skip
    return rows


def _answers(world: World, choice: Choice, parallelism: str, names: Sequence[str], rounds: int = 0) -> list[Any]:
    """What all ranks measure."""
    task = Task(source(Work(parallelism, choice.shape, choice.microbatches, names, rounds)), "")
    try:
        answers = world.run(task)
    except (WorldEnded, RuntimeError) as error:
        raise ValueError(f"{parallelism}, {', '.join(names)}: {error}") from error
    for answer in answers:
        if (raised := answer.observation.error) is not None:
            told = (str(raised).strip() or "without a message").splitlines()[0]
            raise ValueError(f"{parallelism}, {', '.join(names)}: rank {answer.rank} raised {type(raised).__name__}: {told}")
    return [json.loads(answer.observation.notes["measured"]) for answer in answers]


def compare(choice: Choice, *, path: Path | None = None, publish: bool = False, root: Path = ROOT) -> bool:
    """Measure, print and store at ``path`` or in ``results/runs``; whether all is as predicted and gradients are plain's.

    To ``publish`` is to write ``results/ranks-N.json`` and its section of docs/distributed.md. Raises ValueError for a checkout
    from which nothing may be published, and for a measurement that may not be.
    """
    origin, section = measured_code.begin(), report.section(choice.ranks)
    if publish:
        section.require_markers(root)
        origin.require()
    head = results_file.header(seed=0, profile="ranks", device="cpu", suite=origin.suite)
    content = json.loads(json.dumps({
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "ranks": choice.ranks,
        "rounds": choice.rounds,
        "shape": asdict(choice.shape),
        "microbatches": choice.microbatches,
        "bound": choice.bound,
        "rows": measured(choice),
        "predictions": [asdict(row) for row in predictions.rows()],
        "fingerprints": {"table": {"rows": _fingerprint(origin.sources, choice.names)}},
    }))  # fmt: skip
    console = Console()
    console = console if console.is_terminal else Console(width=200)  # a log has no width of its own
    report.show(content, console)
    found = [*report.faults(content), *filter(None, [origin.fault() if publish else ""])]
    run = Path("results") / "runs" / f"ranks-{choice.ranks}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path = path or root / (section.results if publish and not found else run)
    store(path, content)
    if publish and not found:
        section.write(root, content)
    for line in found:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"results: {path}", markup=False, highlight=False, soft_wrap=True)
    return not found


def _fingerprint(sources: Sources, names: Sequence[str]) -> dict[str, Any]:
    modules = [impls.module_of(name) for name in names if name in (*impls.names(), *impls.COMPILED, *impls.PEERS)]
    return measured_code.of_roots(sources, [*CODE, *modules])
