"""Programs that are compiled: what plain runs of them, that no meter is in the way, and where compilers keep things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.judging.judge import Case, execute, plainly
from conformance.judging.law import Law
from conformance.programs.compiled import Compiled, compiling, sums_of
from conformance.programs.program import Leaf, Op, Program, Region
from conformance.programs.sums import Order
from impls import get

BODY = (Region("f", ("h",), (), "x", ("x",), (Op("y", "torch.sin({0})", ("h",), 2),), "y", ("y",), (("z", ""),)),)
ROOT = Path(__file__).parents[3]
EAGER = Program((Leaf("x", "torch.ones(2, device=device, requires_grad=True)", True),), BODY, ("z",), ())
GRAPHS: list[Any] = []


def counting(graph: Any, inputs: Any) -> Any:
    """A backend that writes down its graphs."""
    GRAPHS.append(graph)
    return graph


def test_the_body_of_a_drawn_program_is_what_is_compiled() -> None:
    lines = Compiled(EAGER, "eager").source.splitlines()
    assert "    def step(x):" in lines
    assert "    (z,), noted = torch.compile(step, backend='eager', fullgraph=True)(x)" in lines
    assert lines.index("    def step(x):") < lines.index("        z = checkpoint(f, x)")


def test_plain_runs_it_eagerly_and_the_implementation_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compile_it = torch.compile

    def compile_with(function: Any, **options: Any) -> Any:
        made.append(options["backend"])
        return compile_it(function, **options)

    monkeypatch.setattr(torch, "compile", compile_with)
    program = Compiled(EAGER, "eager")
    case = Case(program, get("nested"), "cpu")
    assert case.plain.calls == {"f": 1}
    assert not made
    case.equals_plain()
    assert made == ["eager"]
    assert plainly(program, "cpu").notes.keys() == case.seen.notes.keys()


def test_no_meter_is_around_functions_that_are_compiled() -> None:
    seen = execute(Compiled(EAGER, "eager"), get("nested").checkpoint, "cpu")
    assert (seen.error, seen.calls.total()) == (None, 0)


@pytest.mark.parametrize(("backend", "order"), [("eager", Order.SAME), ("aot_eager", Order.SAME), ("inductor", Order.ANY)])
def test_sums_are_exact_where_the_backend_runs_plains_kernels(backend: str, order: Order) -> None:
    assert Compiled(EAGER, backend).sums.order is sums_of(backend).order is order


def test_a_written_program_says_that_it_compiles() -> None:
    def nothing(checkpoint: Any, note: Any, device: str) -> None: ...

    assert compiling(nothing).example().compiles


def test_compilers_keep_things_in_a_directory_that_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with own_compiler_cache() as path:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == path != str(tmp_path)
        (Path(path) / "kernel.so").touch()
        assert os.environ["TMPDIR"].startswith(path)
        assert not tempfile.gettempdir().startswith(path)  # what other libraries put there must outlive it
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not Path(path).exists()
    assert not [*tmp_path.iterdir()]


def test_a_law_may_take_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    law = Law("made", "family", "It holds.", lambda case: None, compiling(lambda checkpoint, note, device: None), compiler=True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert law.lacks("cpu") == "a compiler of C++"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    assert law.lacks("cpu") == ""


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor has no compiler of C++ here")
@pytest.mark.parametrize("inside", ["this process", "another"])
def test_headers_are_precompiled_in_a_directory_that_goes(inside: str, tmp_path: Path) -> None:
    compiled = "import torch; torch.compile(lambda x: (x + 1).sin())(torch.ones(4096))"
    there = {
        "this process": compiled,
        "another": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {compiled!r}])",
    }
    program = f"""
from pathlib import Path
from conformance.isolation.compiler_cache import own_compiler_cache
with own_compiler_cache(compiles_here={inside == "this process"}) as path:
    {there[inside]}
    print([*Path(path).rglob("*.gch")] != [])
"""
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True
    )
    assert (run.stdout, run.returncode) == ("True\n", 0), run.stderr
    assert not [*tmp_path.rglob("*.gch")]
    assert not [*tmp_path.rglob("reprise_compiled_*")]
