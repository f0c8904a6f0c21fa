"""The architecture holds: rooms and folders import one way, and folders, files and functions stay small enough to read.

Each list of exceptions is exact, so that it can only shrink: an entry that is no longer needed fails the test, too.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS: dict[str, set[str]] = {
    "impls": set(),
    "conformance": {"impls"},
    "benches": {"conformance", "impls"},
    "reprise": {"benches", "conformance", "impls"},
}
MODULES, LINES, LENGTH = 13, 450, 50
SCENARIOS = "conformance/programs/scenarios"  # the text of programs: what is imported inside a function is part of it

# Folders that import each other, directly or through others.
TANGLED = {
    "impls": set[str](),
    "conformance": {"judging", "meters", "programs", "reproducers", "simulated_device"},
    "benches": {"compare", "overhead", "papers"},
    "reprise": set[str](),
}
LARGE_FOLDERS = {
    "conformance/laws": "one module for each family",
    "conformance/mutants/faults/checkpoint": "one module for each family of laws",
    "impls/offload": "one step of a slice in each",
    "tests/support": "what several tests share",
}
LONG_FUNCTIONS = {
    "conformance/judging/judge.py:execute": "what a program notes is seen inside",
    "conformance/programs/scenarios/models/callables.py:passed": "the text of a program",
    "conformance/programs/scenarios/models/settings.py:looked_at": "the text of a program",
    "conformance/programs/scenarios/models/training.py:another_time": "the text of a program",
    "conformance/programs/scenarios/parallel/replicated.py:trained": "the text of a program",
    "conformance/programs/scenarios/parallel/sharded.py:trained": "the text of a program",
    "conformance/judging/law.py:law": "a keyword for each field of a law",
    "conformance/page/page.py:rendered": "an argument for each part of the template",
    "conformance/programs/offloaded_models.py:offloaded": "draws a model, its options and its text",
    "conformance/programs/scenarios/compiled/graphs.py:peaks": "the text of a program",
    "conformance/programs/scenarios/errors.py:managed": "the text of a program",
    "conformance/programs/scenarios/graph/hooks.py:unlike": "the text of a program",
    "conformance/programs/scenarios/graph/mutation/changes.py:mutated": "the text of a program",
    "conformance/programs/scenarios/graph/newer_names.py:created": "the text of a program",
    "conformance/programs/scenarios/graph/tools.py:logged": "the text of a program",
    "conformance/programs/scenarios/lifetimes.py:after_an_error": "the text of a program",
    "conformance/programs/scenarios/offload/refusals.py:built_wrongly": "the text of a program",
    "conformance/programs/scenarios/regions/visible_operators.py:operators": "the text of a program",
    "conformance/programs/scenarios/threads/process_modes.py:set_meanwhile": "the text of a program",
    "conformance/programs/scenarios/threads/threads.py:meanwhile": "the text of a program",
}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _modules(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imports(path: Path) -> Iterator[str]:
    """The dotted names of modules that a file imports; of a scenario those at its top alone."""
    tree = _tree(path)
    nodes = tree.body if _name(path).startswith(SCENARIOS) else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _folders(room: str) -> dict[str, set[str]]:
    """For each folder of a room, the other folders of it that its modules import."""
    graph: dict[str, set[str]] = {}
    for path in _modules(room):
        inside = path.relative_to(ROOT / room).parts
        folder = inside[0] if len(inside) > 1 else ""
        found = graph.setdefault(folder, set())
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == room and len(parts) > 1 and (ROOT / room / parts[1]).is_dir():
                found.add(parts[1])
        found.discard(folder)
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [*graph.get(start, ())]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += graph.get(one, ())
    return found


def _in_cycles(graph: dict[str, set[str]]) -> set[str]:
    return {one for one in graph if one in _reachable(graph, one)}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    for path in _modules(room):
        others = {name.partition(".")[0] for name in _imports(path)} & ROOMS.keys() - {room}
        assert others <= ROOMS[room], f"{_name(path)} imports {', '.join(sorted(others - ROOMS[room]))}"


@pytest.mark.parametrize("room", ROOMS)
def test_folders_import_one_way(room: str) -> None:
    assert _in_cycles(_folders(room)) == TANGLED[room]


def test_folders_hold_about_a_dozen_modules() -> None:
    counts = Counter(_name(path.parent) for path in _modules(*ROOMS, "tests") if path.name != "__init__.py")
    assert {name for name, count in counts.items() if count > MODULES} == LARGE_FOLDERS.keys()


def test_files_are_read_in_one_sitting() -> None:
    long = {_name(path) for path in _modules(*ROOMS, "tests") if len(path.read_text(encoding="utf-8").splitlines()) > LINES}
    assert not long


def test_functions_fit_a_screen() -> None:
    long = set()
    for path in _modules(*ROOMS):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= LENGTH:
                long.add(f"{_name(path)}:{node.name}")
    assert long == LONG_FUNCTIONS.keys()
