"""What OffloadModel costs on CUDA, its copies overlapping with computation and waited for.

A model in as many slices as it has blocks trains in five ways: *plain*, all of it on the device; *overlap*, its parameters
in pinned memory of the host; *waited*, the same, and around every copy the host waits until the device has done all that it
was given, so nothing overlaps; *checkpointed*, as *overlap* with checkpointed activations; *pageable*, as *overlap* with
parameters in memory that is not pinned. A step is forward and backward, without an optimizer. Each way takes its turn in
every round, in an order drawn anew. A row whose gradients are not those of the first way that ran is void; what raises, as
*plain* does where a model does not fit, says so.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benches.compare.measurement import MEASURED, RAISES, VOID, Quartiles, agreement, device_seconds, quartiles
from benches.compare.report import size as shown_size
from benches.models.workloads import Workload, workload
from benches.published import store
from benches.rounds import interleaved
from conformance.provenance import measured_code
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from conformance.runs import device_check
from conformance.simulated_device.device import Moves
from impls.graph.streams import CopyStreams
from impls.offload import OffloadModel
from impls.offload.transfers import Route

ROUNDS = 15
CODE = ["benches.offload:measured"]
COPYING = (Route, "load"), (Route, "write"), (CopyStreams, "fetch"), (CopyStreams, "send")


@dataclass(frozen=True)
class Way:
    """A way to train the model. ``offloaded`` is False for plain alone."""

    name: str
    offloaded: bool = True
    pinned: bool = True
    waited: bool = False
    checkpointed: bool = False


WAYS = (
    Way("plain", offloaded=False),
    Way("overlap"),
    Way("waited", waited=True),
    Way("checkpointed", checkpointed=True),
    Way("pageable", pinned=False),
)


@dataclass(frozen=True)
class Row:
    """What a way costs.

    ``seconds`` and ``against`` are quartiles of a step's time and of its ratio to that of *waited* in the same round,
    ``samples`` is how many a second by the median. ``moved`` are bytes of a step to the device and from it. ``gradients``
    are "equal" to those of ``like`` to the last bit, or "close" where those are not the same each time.
    """

    name: str
    status: str
    detail: str = ""
    gradients: str = ""
    like: str = ""
    seconds: Quartiles | None = None
    against: Quartiles | None = None
    samples: float | None = None
    moved: tuple[int, int] | None = None


@contextlib.contextmanager
def waiting(device: str) -> Iterator[None]:
    """Inside, the host waits for all of the device before and after the copies of each call that makes any."""
    wait = torch.get_device_module(device).synchronize

    def alone(copying: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(copying)
        def waited(*args: Any, **kwargs: Any) -> Any:
            wait()
            made = copying(*args, **kwargs)
            wait()
            return made

        return waited

    with contextlib.ExitStack() as stack:
        for owner, name in COPYING:
            stack.enter_context(mock.patch.object(owner, name, alone(getattr(owner, name))))
        yield


class Training:
    """A model that is trained in one way, a copy of a workload that was made on the CPU."""

    def __init__(self, way: Way, made: Workload, device: str) -> None:
        blocks = [copy.deepcopy(block) for block in made.blocks if isinstance(block, nn.Module)]
        if len(blocks) < len(made.blocks):
            raise ValueError(f"workload is {made.name!r}; it must be one whose blocks are modules")
        self.way, self.device = way, device
        self.input, self.cotangent = made.input.detach().to(device).requires_grad_(), made.cotangent.to(device)
        if way.offloaded:
            options: dict[str, Any] = {"num_slices": len(blocks), "checkpoint_activation": way.checkpointed}
            self.model: nn.Module = OffloadModel(blocks, device, **options)  # which pins the parameters
            for parameter in () if way.pinned else self.model.parameters():
                parameter.data = parameter.data.clone()
        else:
            self.model = nn.Sequential(*blocks).to(device)

    @property
    def leaves(self) -> list[Tensor]:
        """What gets a gradient."""
        return [self.input, *self.model.parameters()]

    def step(self) -> None:
        """Forward and backward; gradients of before are gone."""
        for leaf in self.leaves:
            leaf.grad = None
        with waiting(self.device) if self.way.waited else contextlib.nullcontext():
            self.model(self.input).backward(self.cotangent)

    def gradients(self) -> list[Tensor]:
        """What a step gives each leaf, on the host, with random numbers that are the same each time."""
        torch.manual_seed(2)
        self.step()
        torch.get_device_module(self.device).synchronize()
        missing = [leaf for leaf in self.leaves if leaf.grad is None or not leaf.grad.any()]
        if missing:
            raise RuntimeError(f"{len(missing)} of {len(self.leaves)} gradients are missing or nothing but zeros")
        return [leaf.grad.detach().cpu().clone() for leaf in self.leaves if leaf.grad is not None]

    def moved(self) -> tuple[int, int]:
        """Bytes that a step moves to the device and from it."""
        with Moves() as moves:
            self.step()
        kind = torch.device(self.device).type
        return moves.totals[f"cpu→{kind}"], moves.totals[f"{kind}→cpu"]


def measured(
    kind: str, size: str, device: str, rounds: int, clock: Callable[[], float] = device_seconds, ways: Sequence[Way] = WAYS
) -> list[Row]:
    """A row for each way."""
    made = workload(kind, size, "cpu")
    rows: dict[str, Row] = {}
    there: dict[str, Training] = {}
    expected: list[Tensor] = []
    like, repeats = "", True
    for way in ways:
        try:
            one, found, again, moved = _tried(way, made, device)
        except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is one
            told = (str(error).strip() or "without a message").splitlines()[0]
            rows[way.name] = Row(way.name, RAISES, f"{type(error).__name__}: {told[:300]}")
            continue
        if not like:
            like, expected, repeats = way.name, found, agreement(again, found, True) == "equal"
        agreed = agreement(found, expected, repeats)
        if agreed == "differ":
            rows[way.name] = Row(way.name, VOID, f"gradients are not those of {like}", agreed, like)
            continue
        there[way.name] = one
        rows[way.name] = Row(way.name, MEASURED, gradients=agreed, like=like, moved=moved)
    _time(rows, there, rounds, clock)
    for name, one in there.items():
        if agreement(one.gradients(), expected, repeats) == "differ":
            rows[name] = Row(name, VOID, f"gradients are not those of {like} any more once it was timed", "differ", like)
    return [rows[way.name] for way in ways]


def _tried(way: Way, made: Workload, device: str) -> tuple[Training, list[Tensor], list[Tensor], tuple[int, int]]:
    """A way with the gradients of two steps, and what a step moves. What raises here leaves nothing on the device."""
    one = Training(way, made, device)
    return one, one.gradients(), one.gradients(), one.moved()


def _time(rows: dict[str, Row], there: Mapping[str, Training], rounds: int, clock: Callable[[], float]) -> None:
    if not there:
        return
    times = interleaved({name: one.step for name, one in there.items()}, rounds=rounds, calls=1, warm=2, clock=clock).seconds
    for name, seconds in times.items():
        waited = times.get("waited")
        rows[name] = replace(
            rows[name],
            seconds=quartiles(seconds),
            against=None if waited is None else quartiles([own / its for own, its in zip(seconds, waited, strict=True)]),
            samples=there[name].input.shape[0] / statistics.median(seconds),
        )


def table(rows: Sequence[Row]) -> Table:
    """The rows, as they are shown."""
    made = Table("way", "step, ms", "time / waited", "samples a second", "to the device", "from it", "gradients")
    for row in rows:
        if row.seconds is None or row.samples is None or row.moved is None:
            made.add_row(row.name, row.status, row.detail)
            continue
        ratio = "–" if row.against is None else "{1:.3f} ({0:.3f} to {2:.3f})".format(*row.against)
        made.add_row(
            row.name,
            f"{1e3 * row.seconds[1]:.2f}",
            ratio,
            f"{row.samples:.1f}",
            *map(shown_size, row.moved),
            f"{row.gradients}, as {row.like}",
        )
    return made


def require(device: str) -> None:
    """ValueError for what is not a CUDA device that torch can use here."""
    device_check.require_cuda(device, "elsewhere no copy overlaps with anything")


def run_bench(
    *,
    device: str = "cuda",
    workload: str = "fused-attention",
    size: str = "L",
    rounds: int = ROUNDS,
    publish: bool = False,
    root: Path = ROOT,
) -> bool:
    """Measure, print and store in ``results/runs``, or publish; whether no row is void.

    Raises InvalidOption for a device that cannot be used, ValueError for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    try:
        require(device)
    except ValueError as error:
        raise InvalidOption(f"--device: {error}") from error
    if publish:
        origin.require()
    rows = measured(workload, size, device, rounds)
    head = results_file.header(seed=0, profile="offload", device=device, suite=origin.suite)
    content: dict[str, Any] = {key: head[key] for key in ("versions", "machine", "suite", "date")}
    content |= {"device": device, "workload": workload, "size": size, "rounds": rounds}
    content["rows"] = [asdict(row) for row in rows]
    content["fingerprints"] = {"table": {"rows": measured_code.of_roots(origin.sources, CODE)}}
    kind = torch.device(device).type
    fault = origin.fault() if publish else ""
    name = f"offload-{kind}" if publish and not fault else f"runs/offload-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = root / "results" / f"{name}.json"
    store(path, json.loads(json.dumps(content)))
    console = Console()
    (console if console.is_terminal else Console(width=180)).print(table(rows), f"results: {path}", sep="\n")
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    return all(row.status != VOID for row in rows)
