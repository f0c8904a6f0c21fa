"""The printed text of a program does what the tree does that was drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import Phase

from conformance.judging.explorer import Explorer
from conformance.judging.judge import execute
from conformance.judging.law import Profile
from conformance.judging.references import REFERENCES
from conformance.programs.backward_calls import Request
from conformance.programs.generator.features import FEATURES
from conformance.programs.generator.operators import DTYPES
from conformance.programs.program import Block, Line, Named, Noted, Op, Program, Region, Statement
from conformance.programs.strategies import programs
from tests.support.feature_evidence import RAISING
from tests.support.printed_programs import assert_same, in_memory


def followed(program: Program) -> Callable[..., None]:
    """What the tree of a program says, without its text."""

    def run(checkpoint: Any, note: Any, device: str) -> None:
        names: dict[str, Any] = {"note": note, "device": device, "checkpoint": checkpoint}
        exec("\n".join(["import torch", *program.preamble, f"torch.manual_seed({program.seed})"]), names)
        for leaf in program.leaves:
            names[leaf.name] = eval(leaf.code, names)
        note("leaves", eval(f"({', '.join(leaf.tensors for leaf in program.leaves)},)", names))
        follow(program.body, names)
        note("forward", tuple(names[output] for output in program.outputs))
        follow(program.driver, names)

    return run


def follow(body: tuple[Statement, ...], names: dict[str, Any]) -> None:
    """Do what the statements say. A function reads outer names as they are when it is called."""
    for one in body:
        match one:
            case Op():
                names[one.target] = eval(one.template.format(*one.args), names)
            case Line() | Noted() | Request():
                exec(one.code, names)
            case Block():
                with ExitStack() as stack:
                    stack.enter_context(eval(one.header.removeprefix("with ").removesuffix(":"), names))
                    follow(one.body, names)
            case Region():
                names[f"{one.name}_value"] = eval(
                    f"checkpoint({one.name}, {one.arguments})", {**names, one.name: called(one, names)}
                )
                for target, path in one.targets:
                    names[target] = eval(f"{one.name}_value{path}", names)


def called(region: Region, outer: dict[str, Any]) -> Callable[..., Any]:
    """The function of a region."""

    def function(*args: Any, **kwargs: Any) -> Any:
        names = {**outer, **dict(zip(region.parameters, args, strict=False)), **kwargs}
        for name, path in region.unpack:
            names[name] = eval(path, names)
        follow(region.body, names)
        return eval(region.result, names)

    return function


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_the_text_of_a_drawn_program_does_what_its_tree_says(
    seed: int, dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Program] = []
    mixed = programs([dtype] if dtype else [], FEATURES.keys() - DTYPES.keys() - (RAISING.keys() - {"again"}))
    Explorer("cpu", Profile(8, 0, False), seed).given(mixed, 8, (Phase.generate,), found.append)
    for program in found:
        drawn = in_memory(program, followed(program), "checkpoint", monkeypatch)
        assert "forward" in drawn.notes, f"{drawn.error!r}\n{program.source}"
        assert_same(execute(program, REFERENCES["checkpoint"], "cpu"), drawn, program.source)


def _annotated(checkpoint: Any, note: Any, device: str) -> None:
    def double(x: Any, *, by: Any = 2) -> Any:
        return x * by

    note("value", double(3))


def test_a_program_needs_no_name_that_is_in_annotations_alone() -> None:
    assert "Any" not in Named(_annotated).source
    assert execute(Named(_annotated), REFERENCES["checkpoint"], "cpu").notes == {"value": 6}


def test_a_program_runs_as_its_text_alone_says() -> None:
    class Text:
        source = "def run(checkpoint, note, device):\n    def f(x: Any):\n        return x\n"

    seen = execute(Text(), REFERENCES["checkpoint"], "cpu")
    assert isinstance(seen.error, NameError) is (sys.version_info < (3, 14))  # from which on annotations wait
