"""Scripts run as ``reproducers.replay`` runs them, in a process without threads of autograd, since replaying forks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from conformance.reproducers import replay
from conformance.reproducers.script_syntax import has_threads
from conformance.rows.results_file import ROOT

DRIVER = """
import json, sys
from conformance.reproducers import replay
replay.TRIES = int(sys.argv[1])
print(json.dumps([(ended.status, ended.output + ended.errors) for _, ended in replay.replay(json.load(sys.stdin))]))
"""


def replayed(texts: Iterable[str], tries: int = 1) -> list[tuple[int, str]]:
    """Status and output of each script; one that shows nothing is run so often."""
    asked = json.dumps([{"program": text} for text in texts])
    run = subprocess.run([sys.executable, "-c", DRIVER, str(tries)], cwd=ROOT, input=asked, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [(status, output) for status, output in json.loads(run.stdout)]


def tries(text: str) -> int:
    """In how many runs a script must show nothing: in one where they are all alike, else in as many as replay makes."""
    return replay.TRIES if has_threads(text) else 1
