"""The programs that are drawn for the laws: valid, the same in every process, and printed as they are. They are drawn once."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.judging.explorer import Explorer
from conformance.judging.judge import execute
from conformance.judging.law import Law, Profile, all_laws
from conformance.programs.program import Named
from conformance.programs.sums import Comparable
from conformance.rows.results_file import ROOT
from conformance.simulated_device.device import second
from impls import get
from impls.plain import checkpoint as plain
from tests.support.printed_programs import assert_same, in_memory

LAWS = all_laws()
MODULES = sorted({law.check.__module__.rpartition(".")[2] for law in LAWS.values()})
EXPLORER = Explorer("cpu", Profile(4, 0, False), 0)
# Of another kind, "plain" is partly PyTorch's own, with its faults: needless errors, memory that nothing has filled.
WITHOUT_FAULTS = {"checkpoint": plain, "graph": get("graph").subject, "offload": get("offload").subject}


@functools.cache
def drawn(name: str) -> tuple[Comparable, ...]:
    law = LAWS[name]
    return tuple(EXPLORER.programs(law, get("nested" if law.kind == "checkpoint" else law.kind)))


def laws_of(module: str) -> Iterator[Law]:
    return (law for law in LAWS.values() if law.check.__module__.endswith(f".{module}"))


def place(law: Law) -> str:
    """The device on which programs of a law can run here; empty where there is none."""
    second("cpu")  # autograd counts the devices at its first backward
    return next((device for device in ("cpu", "sim") if not law.lacks(device)), "")


@pytest.mark.parametrize("module", MODULES)
def test_programs_of_laws_fail_under_plain_only_as_autograd_does(module: str) -> None:
    """A program with a mistake raises under plain and under the implementation alike, and would count as agreement."""
    for law in laws_of(module):
        for program in drawn(law.name):
            if not place(law):
                compile(program.source, law.name, "exec")
                continue
            error = execute(program, WITHOUT_FAULTS[law.kind], place(law), kind=law.kind).error
            assert not isinstance(error, NameError | SyntaxError | AttributeError | AssertionError | LookupError), (
                program.source
            )


def function_itself(program: Named) -> Callable[..., None]:
    """The function that was written by hand, called with the arguments that were drawn."""

    def run(subject: Any, note: Any, device: str) -> None:
        import torch

        torch.manual_seed(0)
        program.function(subject, note, device, **dict(program.arguments))

    return run


def written(law: Law) -> Named | None:
    """The last of its programs, if that is written by hand and can run here."""
    last = drawn(law.name)[-1]
    return last if isinstance(last, Named) and place(law) else None


@pytest.mark.parametrize("module", MODULES)
def test_the_text_of_a_written_program_does_what_its_function_does(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for law in laws_of(module):
        if program := written(law):
            subject = WITHOUT_FAULTS[law.kind]
            ours = in_memory(program, function_itself(program), law.kind, monkeypatch, place(law), subject)
            assert_same(execute(program, subject, place(law), kind=law.kind), ours, program.source)


def test_most_laws_have_a_written_program() -> None:
    assert sum(written(law) is not None for law in LAWS.values()) > len(LAWS) / 2


def fingerprints() -> str:
    """A line per law with what its drawn programs hash to."""
    texts = {name: "".join(program.source for program in drawn(name)) for name in sorted(LAWS)}
    return "\n".join(f"{name} {hashlib.sha256(text.encode()).hexdigest()}" for name, text in texts.items())


def test_the_same_seed_gives_the_same_programs_in_every_process() -> None:
    text = "from tests.suite.programs import test_programs_of_laws\nprint(test_programs_of_laws.fingerprints())\n"
    other = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", text], env=other, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == fingerprints().splitlines()
