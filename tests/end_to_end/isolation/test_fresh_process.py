"""A program in a process of its own shows what it shows here; an error there is a verdict, and so is the process's end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from conformance.isolation.fresh_process import in_a_fresh_process
from conformance.judging.judge import Case, execute
from conformance.judging.verdicts import Crashes, Refuses, difference
from conformance.programs.program import Named
from conformance.programs.scenarios.state import rng
from conformance.programs.sums import DEFAULT, Sums
from impls import get

# A function that does something else where it is called again, as plain never does.
TWICE = """
import os, torch
def run(checkpoint, note, device):
    class Odd(RuntimeError):
        pass
    p, calls = torch.ones(2, device=device, requires_grad=True), []
    def f(h):
        calls.append(None)
        if len(calls) > 1:
            AGAIN
        return h.sin() * h
    checkpoint(f, p).sum().backward()
    note('gradients 0', [p.grad])
"""


@dataclass(frozen=True)
class Text:
    """A program of which there is the text alone."""

    source: str
    sums: Sums = DEFAULT


def case(again: str) -> Case:
    return Case(Text(TWICE.replace("AGAIN", again)), get("nested"), "cpu")


def test_notes_and_calls_are_those_of_this_process() -> None:
    one = Case(Named(rng.state, (("draws", 2), ("regions", 2))), get("nested"), "cpu")
    in_a_fresh_process(one)
    here = execute(one.program, get("nested").checkpoint, "cpu")
    assert one.recomputed
    assert one.seen.calls == here.calls
    assert list(one.seen.notes) == list(here.notes)
    assert not any(difference(value, one.seen.notes[label], label) for label, value in here.notes.items())
    one.equals_plain()


@pytest.mark.parametrize(
    ("again", "told"),
    [
        ("return h.exp()[0]", "CheckpointError: .*recomputation differs from forward"),
        ("raise Odd('cannot be recomputed here')", "RuntimeError: Odd: cannot be recomputed here"),  # a class of its own
    ],
)
def test_an_error_of_the_implementation_alone_is_its_verdict(again: str, told: str) -> None:
    with pytest.raises(Refuses, match=told):
        in_a_fresh_process(case(again))


def test_the_end_of_the_process_is_a_crash() -> None:
    with pytest.raises(Crashes, match="the process ended"):
        in_a_fresh_process(case("os._exit(3)"))
