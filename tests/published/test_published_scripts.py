"""Published scripts show their fault, each is short, and what keeps the laws does not show it.

Code changes before it is measured again. So what fails by code of ours is a failure only where the row is of the code that is
there: of older rows a warning tells. A script that takes torch and a package alone has to show its fault always.
"""

from __future__ import annotations

import ast
import gc
import importlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import LAWS, PROFILES
from conformance.programs.sums import DEFAULT, Sums
from conformance.provenance.staleness import Now
from conformance.reproducers import script_files
from conformance.reproducers.reduction import Shown, words
from conformance.reproducers.replay import TRIES, standalone
from conformance.reproducers.script import binding_in
from conformance.reproducers.script_files import directory_of, files
from conformance.reproducers.script_syntax import OURS, has_status, imports
from conformance.reproducers.stand_ins import FAKE, on_second_device
from conformance.rows.results_file import ROOT, Row, read
from tests.support.script_faults import faults_of
from tests.support.script_runner import replayed, tries

# Whether there are files at all is asked by the report's --check.
PUBLISHED = [path for path in (ROOT / "results").glob("conformance-cpu.jsonl") if directory_of(path).is_dir()]


def of_this_code(path: Path, rows: Iterable[Row]) -> list[str]:
    """The implementations and laws of the rows that were measured on the code that is there; a warning tells of the others."""
    now, header = Now(), read(path).header
    told = {f"{row['impl']}, law {row['law']}": bool(now.reasons(row, header)) for row in rows}
    if older := [name for name, is_older in told.items() if is_older]:
        warnings.warn(f"{path.name}: measured on older code, and no longer so: {'; '.join(older)}", stacklevel=2)
    return [name for name, is_older in told.items() if not is_older]


def _torch_of(path: Path) -> str:
    """The version of torch that results are about; skips where another one is here."""
    version = read(path).header["versions"]["torch"]
    if version != torch.__version__:
        pytest.skip(f"they are about torch {version}")
    return version


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_published_scripts_end_with_status_1(path: Path) -> None:
    _torch_of(path)
    rows = left = [row for row in read(path).rows if row["program"] and has_status(row["program"])]
    assert rows
    for _ in range(5):  # threads do not always meet, so the few that race are run again
        ended = replayed((row["program"] for row in left), TRIES)
        left = [row for row, (status, _) in zip(left, ended, strict=True) if status != 1]
        outputs = [output for status, output in ended if status != 1]
        if not left:
            return
    ours = [row for row in left if imports(row["program"], OURS)]
    others = [row["law"] for row in left if row not in ours]
    assert [*of_this_code(path, ours), *others] == [], "\n".join(outputs)


def _shown(texts: Mapping[str, str]) -> dict[str, Shown]:
    found: dict[str, Shown] = {}
    for times in {*map(tries, texts.values())}:
        some = {name: text for name, text in texts.items() if tries(text) == times}
        ended = zip(some, replayed(some.values(), times), strict=True)
        found |= {name: Shown(status, words(output)) for name, (status, output) in ended}
    return found


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_no_published_script_shows_what_who_keeps_the_laws_shows_as_well(path: Path) -> None:
    texts = {name: (text, row) for row in standalone(read(path).rows) for name, text in files([row]).items()}
    controls = {name: (binding_in(text), script_files.control_of(row)) for name, (text, row) in texts.items()}
    controlled = {name: texts[name][0].replace(*pair, 1) for name, pair in controls.items() if pair[1]}
    found = {name: shown for name, shown in _shown(controlled).items() if shown.status == 1}
    assert len(controlled) > 200
    assert found  # some of what a right one says is an error, where plain gives a value
    alike = [name for name, shown in _shown({name: texts[name][0] for name in found}).items() if shown == found[name]]
    assert of_this_code(path, [texts[name][1] for name in alike]) == []


# Scripts that may import this project though what they judge is not of it, each with the reason why there is no other way.
NOT_ALONE: dict[str, str] = {}


def test_every_published_script_is_short_and_takes_torch_and_the_package_alone() -> None:
    found = {path: faults_of(path.read_text(encoding="utf-8")) for path in (ROOT / "results").glob("programs*/*.py")}
    assert {path.parent.name for path in found} >= {"programs", "programs-distributed"}
    assert {str(path): faults for path, faults in found.items() if faults and path.name not in NOT_ALONE} == {}
    assert NOT_ALONE.keys() <= {path.name for path in found}
    assert all(NOT_ALONE.values())


class NeedsMore(Exception):
    """A law asks for more of a program than its text."""


@dataclass(frozen=True)
class Printed:
    """The program in a script."""

    source: str
    sums: Sums = DEFAULT
    compiles: bool = False

    @property
    def eager(self) -> Printed:
        return self

    def __getattr__(self, name: str) -> Any:
        raise NeedsMore(name)


def _program(text: str) -> Printed:
    before, _, after = text.partition(binding_in(text))
    end = next(one.end_lineno for one in ast.parse(after).body if isinstance(one, ast.FunctionDef) and one.name == "run")
    modules = [line for line in before.splitlines() if line.startswith("import ")]
    program = "\n".join([*modules, *after.splitlines()[:end], ""])
    return Printed(on_second_device(program) if FAKE in text else program)


def _told(verdict: str, detail: str, **_: object) -> tuple[str, str]:
    """A verdict, and of a crash which error it is."""
    return verdict, detail.partition(":")[0] if verdict == "crashes" else ""


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_what_is_left_of_a_program_gets_the_verdict_of_the_law(path: Path) -> None:
    _torch_of(path)
    for module in (ROOT / "conformance" / "laws").glob("test_*.py"):
        importlib.import_module(f"conformance.laws.{module.stem}")
    explorer, judged, wrong = Explorer("cpu", PROFILES["quick"], 0), Counter[str](), list[Row]()
    gc.disable()  # as a run does
    try:
        for one in (row for row in standalone(read(path).rows) if row["law"] in LAWS):
            implementation = replace(impls.find(one["impl"], one["subject"]), known={})
            program = replace(_program(one["program"]), compiles=one["family"] == "compiled")  # no meter, then
            with suppress(NeedsMore):
                tries = (explorer.judge(LAWS[one["law"]], program, implementation) for _ in range(10))
                same = any(
                    _told(str(each.verdict), each.detail) == _told(**one) for each in tries
                )  # threads do not always meet
                judged[one["verdict"]] += 1
                wrong += [] if same else [one]
            explorer.references.clear()
    finally:
        gc.enable()
    assert of_this_code(path, wrong) == []
    assert judged["diverges"] > 100
    assert judged["crashes"] > 0
