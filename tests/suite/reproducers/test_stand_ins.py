"""What stands in for this project's own means leaves no import of it, and shows the same faults."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.judging.verdicts import Measured
from conformance.programs.program import Named
from conformance.reproducers.reduction_steps import smaller_ones
from conformance.reproducers.script import binding_in, script
from conformance.reproducers.script_syntax import OURS, imports, parts
from conformance.reproducers.stand_ins import CHECKPOINTS, FAKE, LAZY, on_second_device, without_fakes
from impls import get
from tests.end_to_end.test_replay import _moving

MOVED = Measured("moved", (("copies to the CPU", 0),))
SCRIPTS = [script(Named(_moving).source, get("torch-graph"), "law", one) for one in (MOVED, Measured("values"))]
IMPORT = "from conformance.simulated_device.device import second\n"


def without_second(text: str) -> list[str]:
    """The script with each thing that may stand in for the second device, and without the import that it then has."""
    made = [one for one in smaller_ones(text, binding_in(text)) if "second(device)" not in one and IMPORT in one]
    return [one.replace(IMPORT, "") for one in made][-3:]  # others only leave a statement out


def run(text: str, tmp_path: Path) -> tuple[int, str]:
    """Status and output of a script where this project cannot be imported."""
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", path], cwd=tmp_path, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_copies_are_counted_where_tensors_are_fake(tmp_path: Path) -> None:
    here, fake, registered = without_second(SCRIPTS[0])
    assert run(SCRIPTS[0], tmp_path)[0] == 2, "without this project there is no second device"
    assert run(here, tmp_path) == (0, "copies to the CPU: due is 0, torch-graph 0\n")
    for one in (fake, registered):
        assert run(one, tmp_path) == (1, "copies to the CPU: due is 0, torch-graph 1\n")


@pytest.mark.parametrize("text", SCRIPTS, ids=["moved", "values"])
def test_nothing_of_the_project_is_left_and_the_measure_is_the_same(text: str) -> None:
    made = without_second(text)
    assert len(made) == 3
    for one in made:
        assert not imports(one, OURS)
        assert parts(without_fakes(one), binding_in(text)).tail == parts(text, binding_in(text)).tail


def test_the_second_device_comes_back() -> None:
    _, *fakes = without_second(SCRIPTS[0])
    for one in fakes:
        assert FAKE in one
        assert "second(device)" in on_second_device(one)
        assert "'lazy'" not in on_second_device(without_fakes(one))


@pytest.mark.parametrize("call", ["checkpoint = impls.get('legacy').checkpoint", "y = impls.get('nested').checkpoint(f, x)"])
def test_a_checkpoint_becomes_one_of_torch_or_a_plain_call(call: str) -> None:
    text = f"import os\nbound = 1\n\ndef run(device):\n    {call}\nrun(1)\n"
    made = [one for one in smaller_ones(text, "bound = 1") if "impls" not in one]
    assert len(made) == len(CHECKPOINTS)
    for one, checkpoint in zip(made, CHECKPOINTS, strict=True):
        assert ast.unparse(ast.parse(checkpoint)) in one
        compile(one, "<script>", "exec")


def test_a_checkpoint_is_replaced_after_the_second_device_was() -> None:
    fake = without_second(SCRIPTS[0])[1]
    text = fake.replace(
        "def run(graph, note, device):\n", "def run(graph, note, device):\n    c = impls.get('legacy').checkpoint\n", 1
    )
    assert "impls.get('legacy')" in text
    made = [one for one in smaller_ones(text, binding_in(text)) if "c = lambda" in one]
    assert [LAZY in one for one in made] == [False, True] * len(CHECKPOINTS)
    assert all(FAKE in one for one in made)
