"""What is published of laws that take ranks: who keeps which, and scripts of reports by others, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.ranked_runs.command import PUBLISHED
from conformance.reproducers import script_files
from conformance.reproducers.script import binding_in
from conformance.rows.results_file import ROOT, read

KEEPS_ALL = "def checkpoint(function, *args, **_):\n    return function(*args)"  # and is defined in place of what is judged
# Of reports by others: the law that shows one, and an implementation whose script is published.
REPORTS = {
    "pytorch#24005": ("ddp_with_shared_weights", "torch-reentrant"),
    "pytorch#121594": ("ddp_with_several_forwards_before_a_backward", "torch-reentrant"),
    "pytorch#105635": ("fsdp_inside_regions_gathers_as_often_as_plain", "torch-reentrant"),
    "pytorch#187437": ("fsdp_with_several_forwards_before_a_backward", "torch-reentrant"),
    "VeOmni#979": ("regions_that_ranks_recompute_in_another_order", "torch-nonreentrant"),
    "Megatron#1330": ("statistics_over_ranks_are_updated_once", "torch-nonreentrant"),
    "torchtitan#3427": ("several_fsdp_units_under_a_region_whose_policy_keeps_all", "torch-nonreentrant"),
}


def kept(name: str) -> set[str]:
    """The laws that an implementation keeps, as is published."""
    return {row["law"] for row in read(PUBLISHED).rows if (row["impl"], row["verdict"]) == (name, "agrees")}


@pytest.mark.parametrize("ours", ["nested", "native"])
@pytest.mark.parametrize("torchs", ["torch-nonreentrant", "torch-nonreentrant-full"])
def test_ours_keep_every_law_that_torchs_nonreentrant_keeps_and_more(ours: str, torchs: str) -> None:
    assert kept(ours) > kept(torchs) != set()


def status(text: str, directory: Path) -> int:
    """The status of a script that two ranks run."""
    (path := directory / "script.py").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    return subprocess.run(command, env=environment, stdout=quiet, stderr=quiet, timeout=300).returncode


@pytest.mark.parametrize("report", REPORTS)
def test_the_script_of_a_report_shows_it_and_not_with_plain_regions(report: str, tmp_path: Path) -> None:
    if (about := read(PUBLISHED).header["versions"]["torch"]) != torch.__version__:
        pytest.skip(f"they are about torch {about}")
    text = (script_files.directory_of(PUBLISHED) / script_files.name_of(*REPORTS[report])).read_text(encoding="utf-8")
    bound = binding_in(text)
    assert bound in text
    assert status(text, tmp_path) == 1
    assert status(text.replace(bound, f"{bound}\n{KEEPS_ALL}"), tmp_path) == 0


def test_the_page_names_the_law_of_each_report() -> None:
    lines = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")][1:3] for line in lines if line.startswith("| ")]
    for report, (law, _) in REPORTS.items():
        assert [its for told, its in rows if report in told.replace(",", ":").split(":") and f"`{law}`" in its], report
