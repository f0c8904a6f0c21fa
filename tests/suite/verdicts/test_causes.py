"""What is observed is told by its kind, without numbers, and a run that is not as declared ends with where to look first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.judging.causes import MEASURED, Cause, left_behind, noted, raised, unexpected
from conformance.judging.verdicts import Crashes, Diverges, Judged, Measured, difference, freeze, from_error
from conformance.programs.notes import read
from conformance.runs.destination import declared_in

ONE, OTHER = torch.tensor([0.5, 1e-3]), torch.tensor([0.25, 0.0])


GRADIENT = "a gradient differs from plain's"


def kind(label: str, plain: Any, here: Any) -> Cause:
    """What is told of two values of a note that differ."""
    found = difference((freeze(plain),), (freeze(here),), label)
    assert found is not None
    return noted(read(label), found)


@pytest.mark.parametrize(
    ("label", "plain", "here", "told"),
    [
        ("gradients 0", ONE, OTHER, GRADIENT),
        ("grad", ONE, OTHER, GRADIENT),
        ("gradients 0", ONE, ONE.double(), GRADIENT),
        ("grad 0", ONE, None, "a gradient is missing"),
        ("gradients 1", None, ONE, "there is a gradient where plain has none"),
        ("forward", ONE, OTHER, "a value of forward differs from plain's"),
        ("stream after backward", ONE, OTHER, "what is noted as 'stream after backward' differs from plain's"),
        ("buffers 3", ONE, OTHER, "what is noted as 'buffers' differs from plain's"),
        ("f1", ONE, ONE.clone().requires_grad_(), "of what is noted as 'f…', requires_grad differs from plain's"),
    ],
)
def test_a_note_that_differs_is_told_by_its_role(label: str, plain: Any, here: Any, told: str) -> None:
    assert kind(label, plain, here).words == told


@pytest.mark.parametrize(
    ("judged", "effect"),
    [
        (Diverges("[0]: plain 1, here 2", cause=kind("gradients 0", ONE, OTHER)), "wrong gradient"),
        (Diverges("[0]: plain 1, here None", cause=kind("grad 0", ONE, None)), "wrong gradient"),
        (Diverges("left", Measured("left"), left_behind(TypeError("no"))), "wrong gradient"),
        (Diverges("2 storages are alive", Measured("alive")), "leaked or late memory"),
        (Diverges("forward: plain 1, here 2", cause=kind("forward", ONE, OTHER)), ""),
        (Diverges("kernels of sin: 2 due, 3 seen", Measured("kernels")), ""),
        (Diverges("something"), ""),
    ],
)
def test_an_effect_is_told_where_what_was_seen_shows_it(judged: Judged, effect: str) -> None:
    assert judged.cause.effect == effect


def test_what_causes_say_of_memory_is_what_meters_of_memory_measure() -> None:
    assert {what for what, cause in MEASURED.items() if cause.effect} == {"alive", "inside", "recomputed", "objects"}


def test_what_a_program_expects_is_told_without_its_number() -> None:
    assert unexpected(read("expected copies 2")).words == "what is noted as 'copies' is not what the law expects"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TypeError("f() got 2 of 'x1'"), "raised TypeError: f() got … of …"),
        (
            RuntimeError("m1 and m2 differ, plain is 3"),
            "raised RuntimeError: m1 and m2 differ, plain is …",
        ),
        (KeyError("out"), "raised KeyError: …"),
    ],
)
def test_an_error_is_told_by_its_type_and_its_first_words(error: Exception, told: str) -> None:
    assert raised(error).words == from_error(error).cause.words == told


@pytest.mark.parametrize(
    ("judged", "told"),
    [
        (Diverges("kernels of sin: 2 due, 3 seen", Measured("kernels")), "operators run more or less often than expected"),
        (Diverges("the host waits for copies {2}", None), "the host waits for copies {…}"),
        (Crashes("the process was ended by SIGSEGV, in f (/tmp/x.py, line 3)"), "the process was ended by SIGSEGV"),
        (Crashes("the process took more than 4 GiB of memory"), "the process took more than … GiB of memory"),
    ],
)
def test_anything_else_is_told_by_what_decided_it_or_without_its_numbers(judged: Judged, told: str) -> None:
    assert judged.cause.words == told


@pytest.mark.parametrize(
    ("stem", "chosen", "name", "due"),
    [
        ("quick-cpu-m-checkpoint", ["m:checkpoint"], "m:checkpoint", "quick_cpu_m_checkpoint_declared.py"),
        ("quick-cpu-nested-m-a-m-b", ["nested", "m:a", "m:b"], "m:a", "quick_cpu_m_a_declared.py"),
        ("mine", ["m:checkpoint"], "m:checkpoint", "mine_m_checkpoint_declared.py"),
    ],
)
def test_a_declaration_has_the_name_of_what_it_is_about_once(stem: str, chosen: list[str], name: str, due: str) -> None:
    assert declared_in(stem, chosen, name) == due
