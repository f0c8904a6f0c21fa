"""Drawn programs: what is switched on occurs, all are valid, print as scripts, are the same again, and shrink."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import Phase, settings

from conformance.judge import execute
from conformance.law import LAWS, Explorer, Profile
from conformance.operators import DTYPES, OPERATORS
from conformance.programs import Named, Program, Runnable, load, operations
from conformance.scripts import script
from conformance.strategies import CORE, programs
from conformance.verdicts import VALUES
from impls import Implementation, get
from impls.plain import checkpoint as plain

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "conformance" / "laws").glob("test_*.py"))
for module in MODULES:
    importlib.import_module(f"conformance.laws.{module}")
ALONE = sys.modules["conformance.laws.test_gradients"].ALONE
EXPLORER = Explorer("cpu", Profile(4, 0, False), 0)

# How a feature shows in a program's text, where it is more than an operator or a dtype.
TRACES = {
    "closure": r"def f\d+\((.*)\):(?s:.*?)\b(p\d|h\d+|x0)\b",
    "closure-intermediates": r"def f\d+\((.*)\):(?s:.*?)\b(p\d|h\d+|x0|c0)\b",
    "container-outputs": r"return ([\[({]|Pair|Box)",
    "containers": r"= box\d+[.\[]",
    "corrupted": r"\w+\.mul_\(0\.5\)",
    "create-graph": r"create_graph=True",
    "escaping": r"kept\d+\.append",
    "grad": r"torch\.autograd\.grad\(",
    "hooks": r"register_hook",
    "input-outputs": r"return .*\ba\d+\b",
    "inputs": r"inputs=\[",
    "keyword": r"checkpoint\(f\d+, .*\w+=\w+",
    "mutated": r"with torch\.no_grad\(\): \w+\.mul_",
    "mutated-closure": r"with torch\.no_grad\(\): \w+\.mul_",
    "no-grad": r"with torch\.no_grad\(\):\n",
    "no-grad-outputs": r"return .*\.detach\(\), \(",
    "no-input-grad": r"checkpoint\(f\d+, c0",
    "non-contiguous": r"device=device\)\.t\(\)",
    "non-tensor-outputs": r"return .*None, 7",
    "non-tensors": r"checkpoint\(f\d+, (None, 'text'|3, torch\.float32)",
    "partial": r"retain_graph=True",
    "repeated-inputs": r"checkpoint\(f\d+, .*\b(\w+)\b.*\b\1\b",
    "repeated-outputs": r"return .*\b(h\d+)\b.*\b\1\b",
    "retain": r"retain_graph=True",
    "stream": r"note\('stream after forward'",
    "unused-outputs": r"return .*torch\.tanh",
    "view-outputs": r"return .*\.t\(\)",
}
FEATURES = sorted({*TRACES, *OPERATORS, *DTYPES, *ALONE} - {"exp-last"})
NEEDS = {"mutated-closure": ("closure",), "closure-intermediates": ("closure",)}  # features that change another one
RAISING = {"again", "corrupted", "mutated", "mutated-closure"}  # features with which plain may raise


def trace(feature: str) -> str:
    """A pattern that a program with the feature matches."""
    if feature in DTYPES:
        return re.escape(DTYPES[feature])
    if feature in OPERATORS:
        texts = (re.escape(template) for template in OPERATORS[feature])
        return "|".join(re.sub(r"\\\{[01]\\\}", r"\\w+", text) for text in texts)
    return TRACES[feature]


@functools.cache
def drawn(always: tuple[str, ...], sometimes: tuple[str, ...] = tuple(CORE), count: int = 12) -> tuple[Program, ...]:
    found: list[Program] = []
    EXPLORER.given(programs(always=always, sometimes=sometimes), count, (Phase.generate,), found.append)
    return tuple(found)


def always(feature: str) -> tuple[Program, ...]:
    return drawn((feature, *NEEDS.get(feature, ())))


def test_every_combined_feature_has_a_trace() -> None:
    assert set(ALONE) <= set(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_is_always_on_occurs_in_every_program(feature: str) -> None:
    for program in always(feature):
        assert feature in program.features
        assert re.search(trace(feature), program.source), program.source


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_is_sometimes_on_occurs_and_does_not(feature: str) -> None:
    found = drawn(NEEDS.get(feature, ()), (*CORE, feature))
    used = [feature in program.features for program in found]
    assert any(used)
    assert not all(used)


@pytest.mark.parametrize("feature", sorted({*FEATURES, "again"}))
def test_every_program_is_valid(feature: str) -> None:
    proofs = 0
    for program in always(feature):
        seen = execute(program, plain, "cpu")
        if feature in RAISING:
            assert seen.error is None or re.search("a second time|in-?place operation", str(seen.error)), program.source
        else:
            assert seen.error is None, f"{seen.error!r}\n{program.source}"
        proofs += seen.error is not None or not seen.vacuous
    assert proofs > len(always(feature)) / 2


def test_programs_that_mix_everything_are_valid() -> None:
    for program in drawn((), tuple(sorted(set(FEATURES) - RAISING - set(DTYPES))), 60):
        error = execute(program, plain, "cpu").error
        assert error is None, f"{error!r}\n{program.source}"


@pytest.mark.parametrize("module", MODULES)
def test_programs_of_laws_fail_under_plain_only_as_autograd_does(module: str) -> None:
    """A program with a mistake raises under plain and under the implementation alike, and would count as agreement."""
    # Of another kind, "plain" is partly PyTorch's own, with its faults; there the programs must run under ours.
    subjects = {"checkpoint": plain, "graph": get("graph").subject, "offload": get("offload").subject}
    for law in (law for law in LAWS.values() if law.check.__module__.endswith(module)):
        for program in EXPLORER.programs(law, get("nested" if law.kind == "checkpoint" else law.kind)):
            error = execute(program, subjects[law.kind], "cpu", kind=law.kind).error
            assert not isinstance(error, NameError | SyntaxError | AttributeError | AssertionError | LookupError), (
                program.source
            )


@pytest.mark.parametrize("feature", FEATURES)
def test_a_property_about_a_feature_shrinks_to_a_small_program(feature: str) -> None:
    found = hypothesis.find(
        programs(always=NEEDS.get(feature, ()), sometimes=(*CORE, feature)),
        lambda program: feature in program.features,
        settings=settings(max_examples=300, database=None, derandomize=True),
    )
    assert operations(found.body) <= 3
    assert len(found.regions) == 1
    assert len(found.leaves) == 2


def fingerprints() -> str:
    """A line per law with what its drawn programs hash to."""
    lines = []
    for name in sorted(LAWS):
        texts = [program.source for program in EXPLORER.programs(LAWS[name], get("nested"))]
        lines.append(f"{name} {hashlib.sha256(''.join(texts).encode()).hexdigest()}")
    return "\n".join(lines)


def run(text: str, cwd: Path, *flags: str, status: int = 0, **environment: str) -> str:
    path = cwd / "script.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, *flags, path], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


def test_the_same_seed_gives_the_same_programs_in_every_process(tmp_path: Path) -> None:
    text = "from conformance.selftest import test_strategies\nprint(test_strategies.fingerprints())\n"
    other = run(text, tmp_path, PYTHONPATH=str(ROOT), PYTHONHASHSEED="7")
    assert other.splitlines() == fingerprints().splitlines()


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


@pytest.mark.parametrize("kind", PRINTED)
def test_a_printed_program_runs_with_torch_alone(kind: str, tmp_path: Path) -> None:
    program = PRINTED[kind]()
    same = Implementation("same", plain, binding="checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)")
    assert all(
        line.startswith("error:") for line in run(script(program.source, same, "law", VALUES), tmp_path, "-I").splitlines()
    )
    other = replace(same, binding="def checkpoint(*args, **kwargs): raise ValueError('no')")
    printed = run(script(program.source, other, "law", VALUES), tmp_path, "-I", status=1)
    assert "error: ValueError('no')" in printed
    labels = noted(program)
    assert labels
    for label in labels:
        assert f"\n{label}: plain " in printed
