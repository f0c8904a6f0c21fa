"""The comparison: its meters, its ideal, and that a contender with other gradients is void."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._prims.rng_prims import run_with_rng_state

from benches.compare import command, meters
from benches.compare.contenders import PLAIN, Contender, checkpointing, each_block, planned, within
from benches.compare.measurement import (
    MEASURED,
    RAISES,
    VOID,
    Row,
    Subject,
    ideal,
    measure,
    nothing,
    quartiles,
    repetitions,
    step_of,
)
from benches.models.workloads import FAKE, KINDS, Workload, workload
from conformance.rows.option_values import InvalidOption
from impls import get
from impls.schedules import Keep, Plan, Region, sqrt_segments

NESTED = checkpointing("nested", "ours", get("nested").checkpoint)
Measured = Callable[[str, Contender], Row]
STATE = torch.get_rng_state().nbytes


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    return {name: Subject(workload(name), "cpu") for name in KINDS}


@pytest.fixture(scope="module")
def measured(subjects: dict[str, Subject]) -> Measured:
    """The row of a contender on a workload, without times; each is measured once."""
    return functools.cache(lambda name, contender: measure(subjects[name], contender, None))


def never(before: Callable[[], None], target: Callable[[], None]) -> Sequence[float]:
    """A timing that runs everything and says that it took as long as references are told to take."""
    for _ in range(3):
        before()
        target()
    return [1.0, 1.0]


def work(step: meters.Step) -> meters.Work:
    found = meters.work(step)
    assert found is not None
    return found


def saves_before(block: Any, value: torch.Tensor) -> tuple[int, int]:
    """Operators up to the last tensor that a block saves, and all of them."""
    counted = meters._Dispatched()
    last = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal last
        last = counted.count
        return tensor

    with counted, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(value)
    return last, counted.count


@pytest.mark.parametrize("name", KINDS)
def test_what_a_block_needs_ends_with_its_last_saved_tensor(name: str, subjects: dict[str, Subject]) -> None:
    one = subjects[name].workload
    needed, whole = saves_before(one.blocks[0], one.input)
    with meters._Dispatched() as counted:
        one.blocks[0].needed(one.input)
    assert counted.count == needed <= whole
    assert (needed < whole) == (not name.startswith("resnet"))


@pytest.mark.parametrize("name", KINDS)
def test_the_ideal_is_plain_and_the_forward_that_the_plan_repeats(name: str, subjects: dict[str, Subject]) -> None:
    subject = subjects[name]
    one = subject.workload

    def heads(over: Callable[[], object]) -> None:
        value = one.input
        for block in one.blocks:
            block.needed(value)
            value = block(value)

    def forward(over: Callable[[], object]) -> None:
        PLAIN.prepare(one.blocks, (), one.input)(one.input)

    extra = work(heads).beyond(work(forward))
    assert work(step_of(one, ideal(one, each_block(one)))).beyond(subject.work) == extra
    assert extra.operators > 0
    assert (extra.flops > 0) == (name != "chain")


def test_a_plan_repeats_each_region_up_to_what_its_last_part_saves() -> None:
    inner = Region((Keep(2), Keep(3)))
    plan: Plan = (Region((Keep(0), Keep(1), inner)), Keep(4), Region((inner, Keep(5))))
    outer = [(0, True), (1, True), (2, True), (3, False)]
    assert list(repetitions(plan)) == [*outer, (2, True), (3, True), (5, False), (2, True), (3, False)]


@pytest.mark.parametrize("name", ["chain", "attention", "fused-attention", "resnet", "lstm", "experts"])
@pytest.mark.parametrize("contender", [NESTED, planned("segments", lambda one: sqrt_segments(len(one.blocks)))])
def test_ours_repeats_what_the_ideal_does(name: str, contender: Contender, measured: Measured) -> None:
    row = measured(name, contender)
    assert (row.status, row.gradients) == (MEASURED, "equal")
    assert row.repeated == row.ideal is not None


def test_allocator_and_ledger_agree_to_the_byte_on_the_chain(measured: Measured) -> None:
    plain, nested = (measured("chain", one) for one in (PLAIN, NESTED))
    elements, sines = 64, 16 * 32
    assert plain.ledger is not None
    assert plain.allocated == plain.ledger
    assert plain.ledger.kept == 4 * elements * sines
    assert nested.allocated is not None
    assert nested.ledger is not None
    assert nested.ledger.kept == 4 * elements * 16
    assert nested.allocated.kept == nested.ledger.kept + 16 * STATE  # which no operator makes


def test_calls_work_and_python_memory_are_measured(measured: Measured, subjects: dict[str, Subject]) -> None:
    plain, nested = (measured("chain", one) for one in (PLAIN, NESTED))
    assert (plain.calls, nested.calls) == (16, 32)
    assert plain.repeated == meters.Work(0, 0)
    assert nested.repeated == meters.Work(0, 16 * 31)
    assert subjects["chain"].saved == 16 * 32
    assert plain.python_bytes is not None
    assert nested.python_bytes is not None
    assert 0 < plain.python_bytes < nested.python_bytes


def scaled(function: Callable[..., torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """A checkpoint whose gradients are a little too large."""
    return function(value * (1 + 1e-3))


def test_other_gradients_make_a_row_void(subjects: dict[str, Subject]) -> None:
    row = measure(subjects["chain"], checkpointing("scaled", "yours", scaled), never)
    assert (row.status, row.gradients, row.times, row.allocated) == (VOID, "differ", None, None)
    legacy = measure(subjects["experts"], checkpointing("legacy", "ours", get("legacy").checkpoint), None)
    assert legacy.status == VOID  # it draws another dropout mask


def test_operators_that_are_hidden_are_not_counted_as_none() -> None:
    x, state = torch.ones(4), torch.get_rng_state()

    def step(over: Callable[[], object]) -> None:
        over()
        run_with_rng_state(state, torch.ops.aten.bernoulli.default, x, generator=None)

    assert meters.work(step) is None
    assert meters.work(lambda over: x.sin()) == meters.Work(0, 1)


def test_gradients_that_go_wrong_later_make_a_row_void(subjects: dict[str, Subject]) -> None:
    calls = 0

    def worse(function: Callable[..., torch.Tensor], value: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return scaled(function, value) if calls > 16 else function(value)

    row = measure(subjects["chain"], checkpointing("worse", "yours", worse), never)
    assert (row.status, row.times) == (VOID, None)
    assert "once it was timed" in row.detail


def test_what_a_contender_raises_is_in_its_row(subjects: dict[str, Subject]) -> None:
    def refuses(function: Callable[..., torch.Tensor], value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no sines\nat all")

    row = measure(subjects["chain"], checkpointing("refuses", "yours", refuses), None)
    assert (row.status, row.detail) == (RAISES, "NotImplementedError: no sines")


def test_ratios_are_taken_round_by_round(monkeypatch: pytest.MonkeyPatch, subjects: dict[str, Subject]) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr("benches.compare.measurement.processor_seconds", lambda: next(ticks))
    row = measure(subjects["chain"], PLAIN, never)
    assert row.times == quartiles([1.0, 1.0])  # a reference takes one tick


@pytest.mark.parametrize("name", KINDS)
def test_fake_tensors_give_the_bytes_and_work_of_real_ones(name: str, measured: Measured) -> None:
    subject = Subject(workload(name, "S", FAKE), FAKE)
    for contender in (PLAIN, NESTED):
        fake, real = measure(subject, contender, never), measured(name, contender)
        assert (fake.status, fake.gradients, fake.times, fake.allocated) == (MEASURED, "no values", None, None)
        assert (fake.ledger, fake.repeated, fake.calls) == (real.ledger, real.repeated, real.calls)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_a_device_that_is_not_there_is_told_before_anything_is_measured() -> None:
    with pytest.raises(InvalidOption, match="device is 'cuda', and torch cannot use it here: "):
        command.compare(command.Choice(device="cuda"))


def test_fused_attention_has_the_flops_of_attention_written_out(measured: Measured, subjects: dict[str, Subject]) -> None:
    assert subjects["fused-attention"].work.flops > subjects["attention"].work.flops  # its backward computes scores again
    fused, written = (measured(name, NESTED).repeated for name in ("fused-attention", "attention"))
    assert fused is not None
    assert written is not None
    assert fused.flops == written.flops > 0


def test_a_budget_is_bytes_or_a_fraction(subjects: dict[str, Subject]) -> None:
    plain, row = (measure(subjects["attention"], one, None) for one in (PLAIN, within("0.5")))
    assert row.status == MEASURED
    assert row.plan
    assert plain.ledger is not None
    assert row.ledger is not None
    assert row.ledger.peak <= plain.ledger.peak / 2
    refused = measure(subjects["attention"], within("1000"), None)
    assert refused.status == RAISES
    assert "budget_bytes is 1000" in refused.detail
    for wrong in ("0", "-1", "half", "0.0"):
        with pytest.raises(ValueError, match="it must be a number of bytes, or a fraction"):
            within(wrong)


def test_a_plain_without_gradients_proves_nothing(subjects: dict[str, Subject]) -> None:
    one = subjects["chain"].workload
    dead = Workload("dead", "S", one.blocks, one.input, torch.zeros_like(one.cotangent))
    with pytest.raises(RuntimeError, match="nothing but zeros"):
        Subject(dead, "cpu")
    nothing()
