"""The example on how to write an adapter, as a user would have it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import impls
from conformance.isolation.smoke_check import Smoke, smoke
from conformance.rows.results_file import read

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- example:begin -->\n```python\n(.*?)```\n```toml\n(.*?)```\n<!-- example:end -->", re.DOTALL)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the example is the module that it says, and installed as it says."""
    found = BLOCK.findall((ROOT / "docs" / "writing-an-adapter.md").read_text(encoding="utf-8"))
    assert len(found) == 1
    python, project = found[0]
    ((group, entries),) = tomllib.loads(project)["project"]["entry-points"].items()
    module = tmp_path / (entries["mine"].partition(":")[0].replace(".", "/") + ".py")
    module.parent.mkdir()
    module.write_text(python)
    metadata = tmp_path / "mypkg-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in entries.items())]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_adapter_is_sound(installed: Path) -> None:
    for name in ("wrapped", "decorated", "preceded"):
        assert smoke(impls.load(f"mypkg.adapters:{name}"), "cpu") == Smoke()


def test_the_installed_one_is_as_declared(installed: Path) -> None:
    laws = ["conformance/laws/test_errors.py", "conformance/laws/test_structure.py"]
    some = ["-k", "test_except_exception_does_not_catch_the_stop or test_keyword_arguments"]
    options = ["--impl", "mine", "--profile", "quick", "--results", str(installed / "results.jsonl"), "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pytest", *laws, *some, *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(row["verdict"] for row in read(installed / "results.jsonl").rows) == ["agrees", "agrees", "crashes"]
