"""The script of a verdict under ranks, as torchrun starts it: it fails with what was judged, and not with what is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import impls
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, all_laws
from conformance.distributed.world import Worlds
from conformance.reproducers.script import binding
from conformance.rows.results_file import ROOT


def status(script: Path) -> int:
    """The status of a script that two ranks run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300
    ).returncode


@pytest.mark.parametrize(
    ("law", "wrong"),
    [
        ("a_generator_of_each_rank_is_replayed", "torch-nonreentrant"),  # of values
        ("fsdp_inside_regions_gathers_as_often_as_plain", "torch-reentrant"),  # of collectives
    ],
)
def test_torchrun_fails_with_what_is_wrong_and_not_with_what_is_right(law: str, wrong: str, tmp_path: Path) -> None:
    with Worlds(2) as worlds:
        row = RankedExplorer(worlds, PROFILES["quick"], 0).row(all_laws()[law], impls.get(wrong))
    assert row["verdict"] == "diverges"
    bound, right = (binding(impls.get(name)) for name in (wrong, "nested"))
    assert bound in row["program"]
    path = tmp_path / "script.py"
    path.write_text(row["program"])
    assert status(path) == 1
    path.write_text(row["program"].replace(bound, right))
    assert status(path) == 0
