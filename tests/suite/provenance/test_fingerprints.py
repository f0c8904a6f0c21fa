"""Fingerprints of code: what changes them, what does not, and that nothing runs which is not in them."""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from torch.utils.hooks import RemovableHandle

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import Profile, all_laws
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Item, Sources
from conformance.provenance.syntax_trees import canonical
from conformance.rows.results_file import ROOT

IMPLEMENTATION = '''
"""Ours."""
import torch
from impls.helper import helped, unrelated as _other
from impls import tools

LIMIT = 3


class Region(tools.Base):
    def run(self):
        """Run."""
        if self.ready:
            from impls.lazy import late
            return late(LIMIT)
        return helped(f"{self.name!r:>{LIMIT}} is" " ready", torch.ones(2))


IMPLEMENTATION = Region
'''
HELPER = "FACTOR = 2\ndef helped(x): return x * FACTOR\ndef unrelated(): return 1\ndef nowhere(): return 2\n"
TOOLS = "from impls.deep import DEPTH\nclass Base:\n    depth = DEPTH\n"
PROGRAM = 'TEXT = """\nimport torch\nfrom impls.lazy import late\n"""\n'
FILES = {
    "impls/__init__.py": "",
    "impls/ours.py": IMPLEMENTATION,
    "impls/helper.py": HELPER,
    "impls/tools.py": TOOLS,
    "impls/deep.py": "DEPTH = 1\n",
    "impls/lazy.py": "def late(limit):\n    return limit + 1\n",
    "conformance/laws/test_family.py": (
        "from conformance.programs.scenarios import scenes\nfrom conformance.programs.program import TEXT\n"
        "def test_one(case):\n    'A statement.'\n    scenes.one(case, TEXT)\ndef test_two(case): scenes.two(case)\n"
        "def test_mixed(case): case.others('two')\n"
    ),
    "conformance/programs/scenarios/scenes.py": "def one(case, text): case(1)\ndef two(case): case(2)\n",
    "conformance/programs/program.py": PROGRAM,
}
OURS, ONE = "impls.ours", "conformance.laws.test_family:test_one"


def sources(root: Path, **changed: str) -> Sources:
    """A checkout of these files; a changed one is named by its stem."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.stem, text), encoding="utf-8")
    return Sources(root)


def changes(root: Path, module: str, old: str, new: str, among: str = OURS) -> bool:
    """Whether a fingerprint is another one after a replacement in a module."""
    text = next(text for name, text in FILES.items() if Path(name).stem == module)
    assert text.count(old) == 1
    before = sources(root).fingerprint([among])
    return sources(root, **{module: text.replace(old, new)}).fingerprint([among]) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Ours."""', "# a comment"),
        ('"""Run."""', '"""Runs, and\n        from impls.helper import nowhere\n        """'),
        ("LIMIT = 3", "LIMIT = (3)  # at most"),
        ("return late(LIMIT)", "return late(\n                LIMIT,\n            )"),
        ('} is" " ready"', '} is ready"'),
    ],
)
def test_comments_docstrings_and_formatting_change_nothing(old: str, new: str, tmp_path: Path) -> None:
    assert not changes(tmp_path, "ours", old, new)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("ours", "LIMIT = 3", "LIMIT = 4"),
        ("ours", "import torch", "import torch.fx as torch"),
        ("ours", ":>{LIMIT}", ":<{LIMIT}"),
        ("helper", "FACTOR = 2", "FACTOR = 2.0"),
        ("helper", "FACTOR = 2", "FACTOR = 2\nprint(FACTOR)"),
        ("lazy", "limit + 1", "limit + 2"),
        ("deep", "DEPTH = 1", "DEPTH = True"),
    ],
)
def test_code_that_an_implementation_refers_to_changes_its_fingerprint(module: str, old: str, new: str, tmp_path: Path) -> None:
    assert changes(tmp_path, module, old, new)


def test_what_nothing_refers_to_changes_nothing(tmp_path: Path) -> None:
    assert not changes(tmp_path, "helper", "return 2", "return 3")
    assert not changes(tmp_path, "scenes", "case(2)", "case(3)", ONE)


def test_a_law_depends_on_its_scenario_and_on_what_its_programs_import(tmp_path: Path) -> None:
    assert changes(tmp_path, "scenes", "case(1)", "case(3)", ONE)
    assert changes(tmp_path, "lazy", "limit + 1", "limit + 2", ONE)
    assert not changes(tmp_path, "test_family", "A statement.", "Another statement.", ONE)


def test_a_law_depends_on_laws_that_it_names(tmp_path: Path) -> None:
    mixed = ONE.replace("test_one", "test_mixed")
    assert changes(tmp_path, "scenes", "case(2)", "case(3)", mixed)
    assert not changes(tmp_path, "scenes", "case(1)", "case(3)", mixed)


def test_an_entry_of_a_dict_is_a_root_of_its_own(tmp_path: Path) -> None:
    before = sources(tmp_path, helper="def f(): ...\nKINDS = {'a': f(), 'b': 1}\n")
    first, second = (f"impls.helper:KINDS[{key}]" for key in "ab")
    after = sources(tmp_path, helper="def f(): ...\nKINDS = {'a': f(), 'b': 2}\n")
    assert before.fingerprint([first]) == after.fingerprint([first])
    assert before.fingerprint([second]) != after.fingerprint([second])
    assert ("impls.helper", "f") in after.closure([first])


def test_a_text_is_a_module_that_is_imported_only_with_a_dot(tmp_path: Path) -> None:
    """A folder may have the name of a package: its cache would have all of that in a fingerprint."""
    text = "import importlib\ndef helped(x): return importlib.import_module('impls.deep')\ndef unrelated(): return 'impls'\n"
    closure = sources(tmp_path, helper=text).closure(["impls.helper:helped", "impls.helper:unrelated"])
    assert ("impls.deep", "DEPTH") in closure
    assert ("impls.lazy", "late") not in closure


@pytest.mark.parametrize("root", ["impls.nowhere", "impls.ours:nothing", "impls.ours:LIMIT[1]"])
def test_a_root_that_is_not_there_is_an_error(root: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no "):
        sources(tmp_path).fingerprint([root])


def test_code_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"impls/ours.py is no Python"):
        sources(tmp_path, ours="def").fingerprint([OURS])


EVERYTHING = """
async def f(a, /, *b: int, c=None, **d) -> None:
    x = [*a, f"{a!r:>{c}}b" "c", ...]
    del x[1:, :]
"""
TREE = (
    "[AsyncFunctionDef(name='f',args=arguments(posonlyargs=[arg(arg='a')],vararg=arg(arg='b',annotation=Name(id='int')),"
    "kwonlyargs=[arg(arg='c')],kw_defaults=[NoneType None],kwarg=arg(arg='d')),body=[Assign(targets=[Name(id='x')],"
    "value=List(elts=[Starred(value=Name(id='a')),JoinedStr(values=[FormattedValue(value=Name(id='a'),conversion=114,"
    "format_spec=JoinedStr(values=[str '>',FormattedValue(value=Name(id='c'),conversion=-1)])),str 'bc']),"
    "ellipsis Ellipsis])),Delete(targets=[Subscript(value=Name(id='x'),slice=Tuple(elts=[Slice(lower=int 1),Slice()]))])],"
    "returns=NoneType None)]"
)


def test_the_text_of_a_tree_does_not_depend_on_the_version_of_python() -> None:
    assert canonical(ast.parse(EVERYTHING).body) == TREE


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_version_of_python_gives_the_same_fingerprint(version: str) -> None:
    roots = ["impls.nested", "impls.offload", *measured_code.JUDGE]
    code = f"from conformance.provenance.fingerprints import Sources; print(Sources().fingerprint({roots}))"
    python = shutil.which(f"python{version}")
    run = python and subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if not run or "not found" in run.stderr:
        pytest.skip(f"there is no Python {version} here")
    assert (run.stdout.strip(), run.stderr) == (Sources().fingerprint(roots), "")


@pytest.fixture(scope="module")
def present() -> Sources:
    return Sources()


def test_every_implementation_and_every_law_has_a_fingerprint(present: Sources) -> None:
    header: dict[str, Any] = {"profile": "default", "versions": {}}
    names = [*impls.names(), *impls.PEERS]
    found = [measured_code.of_implementation(present, {"impl": name}, header)["implementation"] for name in names]
    assert len(set(found)) == len(names)
    laws = {name: measured_code.of_law(present, {"law": name, "impl": "nested"}, header)["law"] for name in all_laws()}
    assert len(set(laws.values())) == len(laws)


def test_what_judges_is_in_the_fingerprint_of_a_law_and_what_reports_is_not(present: Sources) -> None:
    modules = {module for module, _ in present.closure([*measured_code.JUDGE, *measured_code.APART])}
    assert {
        "conformance.judging.judge",
        "conformance.judging.verdicts",
        "conformance.judging.explorer",
        "conformance.isolation.sandbox",
    } <= modules
    assert (
        not {
            "conformance.reports.report",
            "conformance.page.page",
            "conformance.reports.matrix",
            "conformance.reproducers.script",
        }
        & modules
    )


def _item(code: CodeType) -> Item | None:
    """The definition that code of this project belongs to; None for other code."""
    path = Path(code.co_filename)
    name = code.co_qualname.partition(".")[0]
    own = path.is_relative_to(ROOT) and "site-packages" not in path.parts and path != Path(__file__)
    if not own or name.startswith("<") or name == "accept":  # which Hypothesis makes
        return None
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts), name


@contextmanager
def _called() -> Iterator[set[CodeType]]:
    """The code that is called inside, on any thread."""
    found: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    setters: list[Callable[[Any], None]] = [threading.setprofile, sys.setprofile]
    for each in setters:
        each(profile)
    try:
        yield found
    finally:
        for each in setters:
            each(None)


@pytest.mark.parametrize(
    ("impl", "law"),
    [
        ("nested", "keyword_arguments"),
        ("nested", "any_implementation_inside_any_other"),
        ("nested", "all_claimed_features_combined"),
        ("nested", "two_threads_over_one_graph"),
        ("legacy", "dropout_masks_are_replayed"),
        ("graph", "a_backward_after_an_error_is_right"),
        ("offload", "a_backward_inside_a_slice_sees_its_weights"),
    ],
)
def test_nothing_runs_that_is_in_neither_fingerprint(
    impl: str, law: str, present: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    if impl != "nested":  # which hears of handles from its first recomputation on, in whatever test that was
        for name in ("__init__", "remove"):
            monkeypatch.setattr(RemovableHandle, name, inspect.unwrap(getattr(RemovableHandle, name)))
    judged, implementation = all_laws()[law], impls.get(impl)
    explorer = Explorer("cpu", Profile(3, 5, shrink_declared=True, patience=0), 0)
    with _called() as codes:
        explorer.hold(judged, implementation, implementation)
    called = {item for item in map(_item, codes) if item is not None}
    assert ("conformance.judging.judge", "judge") in called
    roots = [impls.module_of(impl), f"{judged.check.__module__}:{judged.check.__name__}", *measured_code.JUDGE]
    assert called - present.closure(roots) == set()
