"""Laws about a device with streams, generators and an allocator of its own: with regions it does what it does with plain.

On a CPU these laws are not collected. Those of ``SIMULATED`` are tried on the simulated device by the self-tests, with a
mutant each; there copies alone can be late, since an operator runs as soon as it is issued, and a random delay delays
nothing. So what they say of operators on two streams, and all that takes CUDA graphs, a device's start or several devices, is
shown on CUDA alone. Programs use only kernels that repeat their results to the last bit: element-wise ones, dropout, products
of small matrices.
"""

from __future__ import annotations

import functools
from typing import cast

from hypothesis import strategies as st

from conformance.isolation.fresh_process import in_a_fresh_process
from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import CAPTURE
from conformance.judging.verdicts import Diverges, Refuses
from conformance.programs.offloaded_models import Written, equals_plain, written
from conformance.programs.program import Named
from conformance.programs.scenarios.devices import devices, offload, streams
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers
from impls.schedules import Keep, Plan, Region, interpret, unit_chain

CUDA, SIMULATED = ("cuda",), ("cuda", "sim")
BLOCK = 512  # bytes, to which the caching allocator rounds what it gives out
BOTH, REGIONS = st.booleans(), st.integers(1, 3)
NAMES = st.sampled_from(["off", "bfloat16", "float16"])
FIRST, SEEDS = st.integers(0, 19), st.sampled_from([1, 20])  # delays: one seed or twenty
device_law = functools.partial(law, devices=SIMULATED, effort=0.25, floor=2)
cuda_law = functools.partial(law, devices=CUDA, effort=0.2, floor=2)
fresh_law = functools.partial(law, devices=CUDA, effort=0.1, floor=1)  # each case starts two processes


@for_readers("everyday", "wrong state", "CUDA, Philox, dropout, seed")
@device_law(named(devices.offsets, draws=REGIONS, regions=REGIONS, nested=BOTH), needs=["rng"])
def test_offsets_of_generators_are_plains(case: Case) -> None:
    """State and Philox offset of the device's generator are plain's after forward and after each backward."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "multi-GPU, model parallel, dropout")
@cuda_law(named(devices.several, regions=REGIONS, nested=BOTH), needs=["explicit-generators"], at_least=2)
def test_generators_of_several_devices_are_replayed(case: Case) -> None:
    """Where there are several devices, an explicit generator of each and its default one are replayed and end as plain's."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "AMP, mixed precision, CUDA")
@device_law(
    named(devices.autocasts, on_device=NAMES, on_host=NAMES, backward=NAMES, nested=BOTH), needs=["autocast"], effort=0.5
)
def test_autocast_of_device_and_host(case: Case) -> None:
    """Under autocast of the device and of the CPU, each with its dtype, a recomputation has both as forward had them."""
    case.equals_plain()


@for_readers("advanced", "wrong state", "CUDA initialisation, fork, DataLoader")
@fresh_law(named(devices.not_started, regions=REGIONS, nested=BOTH), needs=["rng"])
def test_the_device_is_not_started_by_a_region_on_the_cpu(case: Case) -> None:
    """In a process of its own, forward and backward of regions on the CPU do not initialise the device."""
    in_a_fresh_process(case)
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "CUDA initialisation, dropout")
@fresh_law(named(devices.started_inside, before=BOTH, nested=BOTH), needs=["rng"], gradients=False, recomputes=False)
def test_a_device_that_is_started_inside(case: Case) -> None:
    """A region in which a device is first initialised is refused, or recomputed with forward's random numbers."""
    try:
        in_a_fresh_process(case)
    except Refuses:
        return
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "CUDA stream")
@device_law(named(streams.on_side_streams, first=FIRST, seeds=SEEDS, back=BOTH, nested=BOTH), needs=["rng"])
def test_side_streams_under_delays(case: Case) -> None:
    """Forward and backward on side streams, whatever is delayed there, give plain's values, and functions see their stream."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "CUDA stream")
@device_law(named(streams.on_two_streams, first=FIRST, seeds=SEEDS, last=st.sampled_from(["here", "there"])))
def test_a_function_on_two_streams_under_delays(case: Case) -> None:
    """A function that computes on its caller's stream and on one of its own gives plain's gradients, whatever is delayed."""
    case.equals_plain()


HOW, FEW = st.sampled_from(["graph", "callables"]), st.integers(1, 2)


@for_readers("advanced", "wrong gradient", "CUDA graph, capture")
@cuda_law(named(devices.captured, how=HOW, regions=FEW), needs=["rng-option"], about=CAPTURE,
          preserve_rng_state=False)  # fmt: skip
def test_a_captured_graph_replays_regions(case: Case) -> None:
    """A CUDA graph with forward and backward of regions, random numbers not preserved, replays plain's values or is refused."""
    _equal_or_refused(case)


@for_readers("advanced", "wrong gradient", "CUDA graph, dropout")
@cuda_law(named(devices.captured, how=HOW, regions=FEW), gradients=False, recomputes=False, about=CAPTURE)
def test_capturing_a_region_is_right_or_refused(case: Case) -> None:
    """A CUDA graph of regions that preserve random numbers replays plain's values, or capturing it is refused."""
    _equal_or_refused(case)


def _equal_or_refused(case: Case) -> None:
    if case.plain.error is not None:
        raise RuntimeError(f"plain cannot be captured:\n{case.program.source}") from case.plain.error
    try:
        case.equals_plain()
    except Refuses:
        return


@for_readers("everyday", "more work than needed", "synchronize, CUDA, GPU utilisation")
@device_law(named(devices.unsynchronised, regions=REGIONS, draws=BOTH, nested=BOTH), needs=["rng"])
def test_a_region_does_not_make_the_host_wait(case: Case) -> None:
    """Forward and backward of regions run where every synchronisation of the host with the device is an error."""
    case.equals_plain()


@for_readers("everyday", "leaked or late memory", "peak memory, GPU memory, OOM, CUDA")
@device_law(
    named(devices.peak, regions=st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple), rest=st.integers(0, 2),
          elements=st.integers(1, 2000)),
    needs=["early-stop"],
)  # fmt: skip
def test_the_allocator_peaks_where_the_plan_does(case: Case) -> None:
    """On a chain of equal layers the most bytes that the device's allocator gives out are the plan's, in blocks of 512."""
    seen = case.equals_plain()
    chosen = dict(cast(Named, case.program).arguments)
    plan, layers = _plan(chosen["regions"], max(chosen["regions"]) + chosen["rest"])
    units = interpret(plan, unit_chain(layers)).peak + 1  # and the output, which the program holds
    due = units * -(-4 * chosen["elements"] // BLOCK) * BLOCK
    if seen.notes["cost peak"] != due:
        raise Diverges(f"the allocator's peak is {seen.notes['cost peak']} bytes, {units} units and {due} bytes are due", None)


def _plan(regions: tuple[int, ...], rest: int) -> tuple[Plan, int]:
    """A chain in these regions and the rest outside of any; and how many layers it has."""
    parts: list[Region | Keep] = []
    layer = 0
    for count in regions:
        parts.append(Region(tuple(Keep(layer + index) for index in range(count))))
        layer += count
    parts += [Keep(layer + index) for index in range(rest)]
    return tuple(parts), layer + rest


@for_readers("advanced", "wrong gradient", "save_on_cpu, pin_memory, CUDA stream")
@device_law(
    named(streams.saved_under_delays, first=FIRST, seeds=SEEDS, depth=REGIONS, side=BOTH),
    kind="graph",
    recomputes=False,
)
def test_pinned_copies_under_delays(case: Case) -> None:
    """Saved tensors that travel through pinned memory give plain's gradients, whatever is delayed on the streams."""
    case.equals_plain()


WIDTHS = st.lists(st.integers(2, 6), min_size=3, max_size=5).map(tuple)


def _away(widths: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[Written]:
    return written(
        offload.trained_under_delays,
        widths=widths,
        slices=st.integers(1, 4),
        checkpoint=BOTH,
        first=FIRST,
        seeds=SEEDS,
        away=st.just(True),
    )


@for_readers("advanced", "wrong gradient", "pin_memory, CUDA stream")
@device_law(_away(WIDTHS), kind="offload", recomputes=False)
def test_offloaded_parameters_under_delays(case: Case) -> None:
    """Training with parameters that travel through pinned memory gives plain's values, whatever is delayed on the streams."""
    equals_plain(case)
