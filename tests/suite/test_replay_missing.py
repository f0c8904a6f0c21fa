"""Scripts whose modules are not there: replay names what is missing, and does not take them for faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conformance.reports.results_file import ROOT, write
from tests.support.synthetic_results import HEADER, row


def test_a_module_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    program = '"""legacy, law {}. It holds."""\nimport sys\nimport nowhere_at_all\nsys.exit(1)\n'
    path = tmp_path / "run.jsonl"
    write(path, HEADER, [row(law, "legacy", "diverges", program=program.format(law)) for law in ("one", "two")])
    command = [sys.executable, "-m", "conformance.reproducers.replay", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = done.stdout.splitlines()
    assert done.returncode == 1
    assert "0 of 2 scripts show their fault; 2 ended with another error, and show nothing" in told
    assert told[-1].startswith("2 that do not have found no module 'nowhere_at_all': run this by a Python that has it")
