"""Meters count what they say they count."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.judging.judge import execute
from conformance.meters.meter import Calls, Meter, Moment, Objects, Storages
from impls.nested import checkpoint as nested
from impls.plain import checkpoint as plain


class Text:
    """A program given as the lines of its ``run``."""

    def __init__(self, *lines: str) -> None:
        self.source = "import torch, threading\ndef run(checkpoint, note, device):\n" + "".join(
            f"    {line}\n" for line in lines
        )


LEAF = ("p = torch.ones(2, 2, requires_grad=True)", "note('leaves', (p,))")
FUNCTION = ("def f(h): return h.sin().cos()", "y = checkpoint(f, p)")


@pytest.fixture(autouse=True)
def _without_collector() -> Any:
    gc.disable()
    yield
    gc.enable()


def measured(checkpoint: Callable[..., Any], *lines: str) -> dict[str, Moment]:
    storages = Storages()
    error = execute(Text(*LEAF, *lines), checkpoint, "cpu", [storages]).error
    assert error is None, error
    storages.end()
    return {moment.label: moment for moment in storages.moments}


def test_a_module_stays_a_module_in_the_mode_that_it_is_in() -> None:
    got: list[tuple[Any, bool]] = []

    def checkpoint(function: Any, *args: Any) -> Any:
        got.append((function, function.training))
        return function(*args)

    lines = "m = torch.nn.Linear(2, 2).eval()", "checkpoint(m, p)", "m.train()", "checkpoint(m, p)"
    seen = execute(Text(*LEAF, *lines), checkpoint, "cpu")
    (first, evaluating), (second, training) = got
    assert (evaluating, training) == (False, True)
    assert first is second
    assert isinstance(first, torch.nn.Module)
    assert [type(child) for child in first.children()] == [torch.nn.Linear]
    assert seen.calls == {"Linear": 2}


def test_what_a_graph_saves_is_kept() -> None:
    moments = measured(plain, *FUNCTION, "note('forward', y)")
    assert [made.region for made in moments["forward"].kept] == ["f"]
    assert [made.bytes for made in moments["forward"].kept] == [16]


def test_what_is_noted_is_held_and_not_kept() -> None:
    moments = measured(plain, *FUNCTION, "note('shown', [y, {'input': y.grad_fn._saved_self}])", "note('hidden')")
    assert len(moments["shown"].held) == 3  # the leaf is always held
    assert not moments["shown"].kept
    assert len(moments["hidden"].kept) == 2


@pytest.mark.parametrize(
    ("line", "nested"),
    [
        ("checkpoint(lambda h: h.sin(), checkpoint(lambda h: h.cos(), p))", False),
        ("checkpoint(lambda h: checkpoint(lambda h: h.cos(), h).sin(), p)", True),
        ("checkpoint(lambda h: h.sin(), p).sum().backward(); checkpoint(lambda h: h.cos(), p)", False),
    ],
)
@pytest.mark.parametrize("checkpoint", [plain, nested], ids=["plain", "nested"])
def test_it_is_seen_whether_regions_nest(line: str, nested: bool, checkpoint: Callable[..., Any]) -> None:
    assert execute(Text(*LEAF, line), checkpoint, "cpu").nested is nested


def test_a_leaf_and_its_gradient_are_held() -> None:
    moments = measured(plain, "p.sin().sum().backward()", "note('here')")
    assert len(moments["here"].held) == 2
    assert not moments["here"].kept


def test_a_view_holds_its_storage() -> None:
    moments = measured(plain, "y = p.sin()", "view = y[0]", "del y", "note('here')", "note('shown', view)")
    assert len(moments["here"].kept) == 1
    assert not moments["shown"].kept


def test_a_storage_is_not_taken_for_an_earlier_one_at_its_address() -> None:
    lines = [f"y = p.sin(); note('turn {turn}'); del y" for turn in range(8)]
    moments = measured(plain, *lines)
    numbers = [made.number for turn in range(8) for made in moments[f"turn {turn}"].kept]
    assert len(numbers) == len(set(numbers)) == 8


def test_a_cycle_is_kept_until_the_collector_runs() -> None:
    moments = measured(
        plain,
        "box = [p.sin()]",
        "box.append(box)",
        "del box",
        "note('here')",
        "import gc; gc.collect()",
        "note('collected')",
    )
    assert len(moments["here"].kept) == 1
    assert not moments["collected"].kept


def test_copies_made_by_the_suite_are_not_counted() -> None:
    moments = measured(plain, "note('one', p)", "note('two', p)", "note('here')")
    assert not moments["here"].kept


def test_states_of_generators_and_empty_tensors_are_not_counted() -> None:
    moments = measured(plain, "state = torch.get_rng_state().clone()", "nothing = torch.empty(0)", "note('here')")
    assert not moments["here"].kept


def test_a_region_on_another_thread_is_watched() -> None:
    moments = measured(
        plain,
        "box = []",
        "def f(h): box.append(h.sin())",
        "thread = threading.Thread(target=checkpoint, args=(f, p))",
        "thread.start(); thread.join()",
        "note('here')",
    )
    assert [made.region for made in moments["here"].kept] == ["f"]


def test_what_a_thread_makes_outside_of_regions_is_not_seen() -> None:
    moments = measured(
        plain,
        "box = []",
        "thread = threading.Thread(target=lambda: box.append(p.sin()))",
        "thread.start(); thread.join()",
        "note('here')",
    )
    assert not moments["here"].kept


def test_nested_regions_are_told_apart() -> None:
    moments = measured(
        plain,
        "def g(h): return h.sin().cos()",
        "def f(h): return checkpoint(g, h.tanh()).exp()",
        "y = checkpoint(f, p)",
        "note('here')",
    )
    assert sorted(made.region for made in moments["here"].kept) == ["f", "f", "g"]  # of tanh, exp and sin


def test_a_checkpoint_keeps_nothing_of_the_inside() -> None:
    moments = measured(nested, *FUNCTION, "note('forward', y)", "y.sum().backward()", "note('backward', y)")
    assert not moments["forward"].kept
    assert not moments["backward"].kept


def test_the_end_comes_after_the_program_has_let_go() -> None:
    assert not measured(plain, *FUNCTION, "note('forward', y)")["end"].kept


def test_the_mode_is_left_after_an_error() -> None:
    storages = Storages()
    assert isinstance(execute(Text(*LEAF, "raise ValueError('program')"), plain, "cpu", [storages]).error, ValueError)
    made = storages.made
    torch.ones(2).sin()
    assert storages.made == made


@pytest.mark.parametrize(("line", "growth"), [("pass", 0), ("kept.append([])", 1), ("cycle = []; cycle.append(cycle)", 0)])
def test_objects_counts_what_stays_reachable(line: str, growth: int) -> None:
    objects = Objects()
    execute(Text("kept = []", "for _ in range(6):", f"    {line}", "    note('step')"), plain, "cpu", [objects])
    steps = [after - before for before, after in zip(objects.counts[1:], objects.counts[2:], strict=False)]
    assert steps == [growth] * 4


def test_a_callable_without_a_name_is_called_by_its_type() -> None:
    calls = Calls()
    execute(Text("import functools", "checkpoint(functools.partial(torch.sin), torch.ones(2))"), plain, "cpu", [calls])
    assert calls.counts == {"partial": 1}


def test_a_meter_does_nothing_by_itself() -> None:
    meter = Meter()
    assert meter.around(threading.get_ident) is threading.get_ident
    with meter:
        meter.at("label", None)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_subject_is_given_the_callable_itself_unless_it_is_wrapped(wrapped: bool) -> None:
    given: list[Any] = []

    def checkpoint(function: Any, *args: Any) -> Any:
        given.append(function)
        return plain(function, *args)

    execute(Text(*LEAF, "checkpoint(torch.sin, torch.ones(2))"), checkpoint, "cpu", wrapped=wrapped)
    assert (given == [torch.sin]) is not wrapped
