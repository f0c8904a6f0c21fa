"""What stands in for this project's own means leaves no import of it, and shows the same faults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.judging.verdicts import Measured
from conformance.programs.program import Named
from conformance.reproducers.script import script
from conformance.reproducers.stand_ins import CHECKPOINTS, FAKE, measuring, on_second_device, standing_in, takes_ours
from impls import get
from tests.end_to_end.test_replay import _moving

MOVED = Measured("moved", (("copies to the CPU", 0),))
SCRIPTS = [script(Named(_moving).source, get("torch-graph"), "law", one) for one in (MOVED, Measured("values"))]


def run(text: str, tmp_path: Path) -> tuple[int, str]:
    """Status and output of a script where this project cannot be imported."""
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", path], cwd=tmp_path, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_copies_are_counted_where_tensors_are_fake(tmp_path: Path) -> None:
    here, fake, _ = standing_in(SCRIPTS[0])
    assert run(SCRIPTS[0], tmp_path)[0] == 2, "without this project there is no second device"
    assert run(here, tmp_path) == (0, "copies to the CPU: due is 0, torch-graph 0\n")
    assert run(fake, tmp_path) == (1, "copies to the CPU: due is 0, torch-graph 1\n")


@pytest.mark.parametrize("text", SCRIPTS, ids=["moved", "values"])
def test_nothing_of_the_project_is_left_and_the_measure_is_the_same(text: str) -> None:
    assert takes_ours(text)
    made = list(standing_in(text))
    assert len(made) == 3
    for one in made:
        assert not takes_ours(one)
        assert "conformance" not in one
        assert measuring(one).partition("def run")[2].partition("\n\n")[2] == text.partition("def run")[2].partition("\n\n")[2]


def test_the_second_device_comes_back() -> None:
    _, fake, registered = standing_in(SCRIPTS[0])
    for one in (fake, registered):
        assert FAKE in one
        assert "second(device)" in on_second_device(one)
        assert "'lazy'" not in on_second_device(measuring(one))


@pytest.mark.parametrize("call", ["checkpoint = impls.get('legacy').checkpoint", "y = impls.get('nested').checkpoint(f, x)"])
def test_a_checkpoint_becomes_one_of_torch_or_a_plain_call(call: str) -> None:
    made = list(standing_in(f"import impls\n{call}\n"))
    assert len(made) == len(CHECKPOINTS)
    for one, checkpoint in zip(made, CHECKPOINTS, strict=True):
        assert checkpoint in one
        assert not re.search("impls", one)
        compile(one, "<script>", "exec")


def test_an_import_that_is_still_needed_stays() -> None:
    text = "import impls\ncheckpoint = impls.get('legacy').checkpoint\nother = impls.names()\n"
    assert all(one.startswith("import impls\n") for one in standing_in(text))


def test_a_script_that_needs_nothing_is_left() -> None:
    assert not list(standing_in("import torch\n"))
