"""Drawn programs: what is switched on occurs, all are valid, and print as scripts."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import Phase

from conformance.judging.explorer import Explorer
from conformance.judging.judge import execute
from conformance.judging.law import Profile, all_laws
from conformance.judging.verdicts import VALUES
from conformance.laws.test_gradients import ALONE
from conformance.laws.test_rng import DISTRIBUTIONS
from conformance.programs.generator.builder import Author
from conformance.programs.generator.combinations import are_possible, covering
from conformance.programs.generator.features import FEATURES
from conformance.programs.generator.operators import DTYPES, Operator
from conformance.programs.program import Named, Noted, Program, Runnable, load
from conformance.programs.strategies import CORE, programs
from conformance.reproducers.script import script
from impls import Implementation, get
from impls.plain import checkpoint as plain
from tests.support.feature_evidence import BY_CHANCE, NEEDS, RAISING, is_allowed, shows

LAWS = all_laws()
EXPLORER = Explorer("cpu", Profile(4, 0, False), 0)


@functools.cache
def drawn(always: tuple[str, ...], sometimes: tuple[str, ...] = tuple(CORE), count: int = 12) -> tuple[Program, ...]:
    found: list[Program] = []
    EXPLORER.given(programs(always=always, sometimes=sometimes), count, (Phase.generate,), found.append)
    return tuple(found)


def always(feature: str) -> tuple[Program, ...]:
    return drawn((feature, *NEEDS.get(feature, ())))


def test_every_feature_has_a_name_that_laws_can_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    draw_feature = Author.draw_feature

    def noting(author: Author, feature: str) -> bool:
        asked.add(feature)
        return draw_feature(author, feature)

    monkeypatch.setattr(Author, "draw_feature", noting)
    for seed in range(3):
        given = Explorer("cpu", Profile(12, 0, False), seed).given
        given(programs(sometimes=set(FEATURES) - DTYPES.keys()), 12, (Phase.generate,), lambda _: None)
    assert asked | DTYPES.keys() == FEATURES.keys()
    assert {*CORE, *ALONE} <= FEATURES.keys()


@pytest.mark.parametrize("size", [4, 18])
def test_each_possible_pair_of_features_is_in_a_row(size: int) -> None:
    rows = covering(ALONE, size)
    pairs = {pair for row in rows for pair in combinations(sorted(row), 2)}
    assert pairs == {pair for pair in combinations(sorted(ALONE), 2) if are_possible(*pair)}
    assert max(map(len, rows)) <= size


@pytest.mark.parametrize(
    ("one", "other"), [("complex", "bfloat16"), ("complex", "late-noise"), ("training-layers", "batched-seeds")]
)
def test_some_features_are_not_drawn_together(one: str, other: str) -> None:
    assert not are_possible(one, other)
    assert not are_possible(other, one)
    assert are_possible(one, "views")


@pytest.mark.parametrize("argument", ["always", "sometimes"])
def test_a_feature_that_is_not_there_is_refused(argument: str) -> None:
    switched: dict[str, Any] = {argument: ["nestings"]}
    with pytest.raises(ValueError, match=rf"{argument} has \['nestings'\]; what there is: .*nesting"):
        EXPLORER.given(programs(**switched), 1, (Phase.generate,), lambda _: None)


def test_regions_that_cannot_nest_are_not_always_to() -> None:
    with pytest.raises(ValueError, match="depth is 1; it must be 2 at least where 'nesting' is in always"):
        EXPLORER.given(programs(always=["nesting"], depth=1), 1, (Phase.generate,), lambda _: None)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_is_always_on_occurs_in_every_program(feature: str) -> None:
    for program in always(feature):
        assert feature in program.features
        assert shows(feature, program), program.source


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_is_sometimes_on_occurs_and_does_not(feature: str) -> None:
    found = drawn(NEEDS.get(feature, ()), (*CORE, feature))
    used = [program for program in found if feature in program.features]
    assert 0 < len(used) < len(found)
    assert all(shows(feature, program) for program in used)
    if feature not in BY_CHANCE:
        assert not any(shows(feature, program) for program in found if program not in used)


def test_random_numbers_are_drawn_after_forward_and_after_backward_or_nowhere() -> None:
    drivers = [program.driver for program in drawn((), (*CORE, "stream"))]
    noted = [sum(isinstance(step, Noted) and "stream" in step.note.words for step in driver) for driver in drivers]
    assert {*noted} == {0, 2}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_program_is_valid(feature: str) -> None:
    proofs = 0
    for program in always(feature):
        seen = execute(program, plain, "cpu")
        assert is_allowed(seen.error, feature), f"{seen.error!r}\n{program.source}"
        proofs += seen.error is not None or not seen.vacuous
    assert proofs > len(always(feature)) / 2


@pytest.mark.parametrize("seed", range(21))
def test_programs_that_mix_everything_are_valid(seed: int) -> None:
    found: list[Program] = []
    mixed = programs(sometimes=FEATURES.keys() - RAISING.keys())
    Explorer("cpu", Profile(6, 0, False), seed).given(mixed, 6, (Phase.generate,), found.append)
    for program in found:
        error = execute(program, plain, "cpu").error
        assert error is None, f"{error!r}\n{program.source}"


@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("operator", DISTRIBUTIONS, ids=lambda operator: operator.template)
def test_what_is_drawn_from_a_distribution_fits_tensors_of_any_size(operator: Operator, side: int) -> None:
    x = torch.ones(side, side, dtype=torch.float64)
    assert eval(operator.template.format("x"), {"torch": torch, "x": x, "device": "cpu"}).shape == x.shape


# Runs scripts one after the other, and tells of each its status and what it printed.
DRIVER = """
import contextlib, io, json, runpy, sys

found = []
for path in sys.argv[1:]:
    text, status = io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = int(end.code or 0)
    found.append([status, text.getvalue().splitlines()])
assert "impls" not in sys.modules and "conformance" not in sys.modules
print(json.dumps(found))
"""


def test_another_seed_gives_other_programs() -> None:
    found = [
        Explorer("cpu", Profile(12, 0, False), seed).programs(LAWS["core_programs_equal_plain"], get("nested"))
        for seed in (0, 1)
    ]
    assert {program.source for program in found[0]} != {program.source for program in found[1]}


def _named(checkpoint: Any, note: Any, device: str, *, times: int, word: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    y = checkpoint(lambda h: (h * times).exp(), x)
    note("forward", (word, y))
    y.sum().backward()
    note("gradients 0", [x.grad])


PRINTED: dict[str, Callable[[], Runnable]] = {
    "generated": lambda: max(
        drawn(("containers", "keyword", "custom-function", "dropout", "stream")), key=lambda p: len(p.source)
    ),
    "named": lambda: Named(_named, (("times", 2), ("word", "it's"))),
    "raising": lambda: always("again")[0],
}


def noted(program: Runnable) -> list[str]:
    """What a program notes under plain once a region was called."""
    seen: list[str] = []
    called: list[None] = []

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(None)
        return plain(function, *args, **kwargs)

    with suppress(RuntimeError):
        load(program)(checkpoint, lambda label, value=None: seen.append(label) if called else None, "cpu")
    return seen


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, list[str]]]]:
    """Status and lines of the script of each program, with plain and with what only raises, where there is torch alone."""
    same = Implementation("same", plain, binding="checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)")
    other = replace(same, binding="def checkpoint(*args, **kwargs): raise ValueError('no')")
    paths = []
    for kind, made in PRINTED.items():
        for one in (same, other):
            paths.append(tmp_path_factory.mktemp("script") / f"{kind}.py")
            paths[-1].write_text(script(made().source, one, "law", VALUES))
    command = [sys.executable, "-I", "-c", DRIVER, *map(str, paths)]
    done = subprocess.run(command, cwd=paths[0].parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout))
    return {kind: [next(found), next(found)] for kind in PRINTED}


@pytest.mark.parametrize("kind", PRINTED)
def test_a_printed_program_runs_with_torch_alone(kind: str, runs: dict[str, list[tuple[int, list[str]]]]) -> None:
    (right, said), (wrong, printed) = runs[kind]
    assert (right, wrong) == (0, 1)
    assert all(line.startswith("error:") for line in said)
    assert "error: ValueError('no')" in printed
    labels = noted(PRINTED[kind]())
    assert labels
    for label in labels:
        assert any(line.startswith(f"{label}: plain ") for line in printed)
