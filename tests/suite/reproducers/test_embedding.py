"""What a script has in it is the source that the suite measures with, and measures the same by itself."""

from __future__ import annotations

import ast
import collections
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import Phase

from conformance.costs.forward_trace import OPERATORS
from conformance.judging.explorer import Explorer
from conformance.judging.judge import execute
from conformance.judging.law import Profile
from conformance.judging.verdicts import Measured
from conformance.meters import counters
from conformance.meters.meter import Calls, Kernels, Storages
from conformance.meters.saved_tensors import Packs
from conformance.programs.notes import Role
from conformance.programs.program import Program, load
from conformance.programs.strategies import programs
from conformance.reproducers import script_endings
from conformance.reproducers.embedding import Embedding, bare
from conformance.reproducers.script import script
from impls import get
from impls.nested import checkpoint as nested
from impls.plain import checkpoint as plain

CHECKPOINTS = {"plain": plain, "nested": nested}


@pytest.fixture(autouse=True)
def _with_collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.fixture(scope="module")
def drawn() -> Sequence[Program]:
    found: list[Program] = []
    strategy = programs(["nesting"], ["retain"], operators=tuple(OPERATORS), depth=3)
    Explorer("cpu", Profile(8, 0, False), 0).given(strategy, 8, (Phase.generate,), found.append)
    return found


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_script_counts_calls_and_kernels_as_the_suite_does(name: str, drawn: Sequence[Program]) -> None:
    kernels = {kernel for kernel, _ in OPERATORS.values()}
    for program in drawn:
        calls, there = Calls(), Kernels(kernels)
        execute(program, CHECKPOINTS[name], "cpu", [calls, there])
        assert script_endings.calls(load(program), CHECKPOINTS[name], "cpu") == calls.counts
        seen = script_endings.kernels(load(program), CHECKPOINTS[name], "cpu")
        assert {kernel: count for kernel, count in seen.items() if count and kernel in kernels} == there.counts, program.source


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_script_counts_storages_as_the_suite_does(name: str, drawn: Sequence[Program]) -> None:
    for program in drawn:
        storages = Storages()
        execute(program, CHECKPOINTS[name], "cpu", [storages])
        storages.end()
        kept = {moment.label: len(moment.kept) for moment in storages.moments}
        assert script_endings.alive(load(program), CHECKPOINTS[name], "cpu", {"end": 0}) == kept, program.source
        inside = {moment.label: sum(bool(made.region) for made in moment.alive) for moment in storages.moments[:-1]}
        assert script_endings.inside(load(program), CHECKPOINTS[name], "cpu", "", recomputed=False) == inside, program.source


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_script_counts_what_hooks_see_as_the_suite_does(name: str, drawn: Sequence[Program]) -> None:
    for program in drawn:
        packs = Packs()
        execute(program, CHECKPOINTS[name], "cpu", [packs])
        seen = script_endings.packed(load(program), CHECKPOINTS[name], "cpu")
        assert list(seen.values()) == [packs.forward.total(), packs.backward.total()], program.source


def test_names_are_whole_and_annotations_gone() -> None:
    embedding = Embedding()
    embedding.add(counters.storages)
    text = embedding.texts["storages"]
    assert text.startswith("def storages(tree, without=None):\n    dense = ")
    assert "torch.utils._pytree.tree_leaves(tree)" in text
    assert "torch.multiprocessing.reductions.StorageWeakRef(one)" in text


def test_what_a_definition_refers_to_comes_before_it() -> None:
    embedding = Embedding()
    embedding.add(counters.counted, "counting_calls")
    assert list(embedding.texts) == ["region_name", "counting_calls"]


def test_what_is_embedded_does_what_it_was_taken_from() -> None:
    embedding = Embedding()
    embedding.add(counters.counted)
    names: dict[str, Any] = {"functools": __import__("functools"), "inspect": inspect}
    exec("\n".join(embedding.texts.values()), names)
    called: list[str] = []
    assert names["counted"](torch.sin, called)(torch.zeros(1)) == 0
    assert called == ["sin"]


def _function(judged: Any, times: int, aside: bool) -> collections.Counter[str]:
    """Only its body is embedded."""
    seen: collections.Counter[str] = collections.Counter()
    if aside:
        judged(seen)
    judged(times)
    return seen


def test_of_a_function_there_is_its_body_for_the_arguments() -> None:
    arguments = {"judged": ast.Name("checkpoint", ast.Load()), "times": 2, "aside": False}
    assert Embedding().body(_function, arguments) == "seen = collections.Counter()\ncheckpoint(2)"


@pytest.mark.parametrize(
    "definition",
    [*script_endings.ENDS.values(), *script_endings.COUNTS.values(), script_endings.report],
    ids=lambda one: one.__name__,
)
def test_no_name_stands_for_two_things(definition: Callable[..., Any]) -> None:
    """A body has its names in the script beside those of definitions."""
    bound = {node.id for node in ast.walk(bare(definition)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    embedding = Embedding()
    embedding.body(definition, {})
    assert not bound & {*embedding.texts, "run", "plain", "torch"}


def test_what_is_due_is_told_by_labels_that_are_roles() -> None:
    measured = Measured("alive", due=((Role.END, 0),))
    text = script("def run(checkpoint, note, device): pass\n", get("nested"), "law two. Two is two.", measured)
    assert "{'end': 0}" in text
