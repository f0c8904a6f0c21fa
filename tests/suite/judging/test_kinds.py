"""Implementations of every kind: what a record asks for, how one is loaded, and that a law judges its own kind alone."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case
from conformance.judging.law import Law, Profile
from conformance.judging.references import GRAPH, REFERENCES
from conformance.judging.verdicts import VALUES, Diverges, Refuses, Verdict
from conformance.programs.program import Named
from conformance.programs.strategies import named
from conformance.reports import matrix
from conformance.reproducers.script import script
from impls import Implementation, Known
from impls.implementation import known

PROFILE = Profile(12, 20, True)


def _saved(graph: Any, note: Any, device: str, *, factor: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    with graph.saved_tensors_hooks(lambda tensor: tensor * factor, lambda tensor: tensor):
        y = x.exp()
    y.sum().backward()
    note("gradients 0", [x.grad])
    note("expected gradient", torch.full((2,), 1.0).exp() * factor)
    note("seen gradient", x.grad)
    note("cost factor", factor)


def equal(case: Case) -> None:
    """It equals plain."""
    case.equals_plain()


def expected(case: Case) -> None:
    """It is as the program says."""
    case.as_expected()


def made(check: Any, *factors: int) -> Law:
    drawn = named(_saved, factor=st.sampled_from(factors))
    return Law("made", "family", "It holds.", check, drawn, floor=1, recomputes=False, kind="graph")


TORCH = Implementation("torch", kind="graph", provides=torch.autograd.graph)


def verdict(law: Law) -> Verdict:
    return Explorer("cpu", PROFILE, 0).hold(law, TORCH, TORCH).verdict


def test_hooks_that_change_nothing_equal_plain_and_others_do_not() -> None:
    assert verdict(made(equal, 1)) is Verdict.AGREES
    assert verdict(made(equal, 2)) is Verdict.DIVERGES


def test_a_program_can_say_itself_what_it_expects() -> None:
    assert verdict(made(expected, 2)) is Verdict.AGREES


def test_what_is_expected_and_not_seen_diverges() -> None:
    law = made(expected, 1)
    case = Case(next(iter(Explorer("cpu", PROFILE, 0).programs(law, TORCH))), TORCH, "cpu")
    case.seen.notes["seen gradient"] = 3
    with pytest.raises(Diverges, match="gradient: expected"):
        case.as_expected()
    del case.seen.notes["expected gradient"]
    with pytest.raises(ValueError, match="notes nothing that it expects"):
        case.as_expected()


def _failing(checkpoint: Any, note: Any, device: str) -> None:
    y = checkpoint(torch.sin, torch.ones(2, requires_grad=True, device=device)).exp()
    note("expected value", 1)
    note("seen value", 1)
    y.sum().backward()
    y.sum().backward()


def test_a_run_that_ends_with_plains_error_is_not_as_expected() -> None:
    with pytest.raises(Refuses):
        Case(Named(_failing), impls.get("plain"), "cpu").as_expected()


def test_costs_are_not_compared() -> None:
    law = made(equal, 1)
    case = Case(next(iter(Explorer("cpu", PROFILE, 0).programs(law, TORCH))), TORCH, "cpu")
    case.seen.notes["cost factor"] = 7
    case.equals_plain()


def test_a_law_refuses_an_implementation_of_another_kind() -> None:
    nested = impls.get("nested")
    with pytest.raises(ValueError, match="law made judges kind 'graph', 'nested' is of 'checkpoint'"):
        Explorer("cpu", PROFILE, 0).hold(made(equal, 1), nested, nested)


@pytest.mark.parametrize("kind", impls.KINDS)
def test_names_of_a_kind_are_of_that_kind(kind: impls.Kind) -> None:
    assert impls.names(kind)
    assert {impls.get(name).kind for name in impls.names(kind)} == {kind}
    assert set(impls.names(kind)) <= set(impls.names())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "hooks"}, "kind of 'it' is 'hooks'; it must be one of checkpoint, graph, offload"),
        ({"checkpoint": print, "name": ""}, "name is ''; it must be 150 letters, digits and"),
        ({"checkpoint": print, "name": "a b/c"}, "name is 'a b/c'; it must be 150 letters"),
        ({"checkpoint": None}, "checkpoint of 'it' is None; it must be callable"),
        ({"checkpoint": print, "capabilities": "rng"}, "capabilities of 'it' are 'rng'; they must be a set of names"),
        (
            {"checkpoint": print, "known": {"masks": "diverges"}},
            "known of 'it' has 'diverges' for law 'masks'; impls.implementation.known makes what is due",
        ),
        ({"checkpoint": print, "known": {1: Known("diverges", "why", "where")}}, "for law 1; impls.implementation.known makes"),
        ({"checkpoint": print, "known": ["masks"]}, r"known of 'it' is \['masks'\]; it must map names of laws"),
        ({"kind": "graph"}, "'it' is of kind 'graph': provides must be given, and checkpoint must not"),
        ({"kind": "graph", "provides": 1, "checkpoint": print}, "provides must be given, and checkpoint must not"),
        ({"provides": 1}, "'it' is of kind 'checkpoint': checkpoint must be given, and provides must not"),
        (
            {"kind": "graph", "provides": 1, "capabilities": frozenset({"rng"})},
            r"\['rng'\] do not exist; there are \['end-of-backward'",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Implementation(**{"name": "it"} | fields)


@pytest.mark.parametrize(
    ("told", "laws", "message"),
    [
        (
            ("divergs", "why", "where"),
            ["masks"],
            "verdict is 'divergs'; accepted are agrees, refuses, diverges, crashes, hangs",
        ),
        (("diverges", "", "where"), ["masks"], "reason is ''; it must be some text"),
        (("diverges", "why", " "), ["masks"], "source is ' '; it must be some text"),
        (("diverges", "why", "where"), [], "laws: none is given; it must be the name of one law at least"),
    ],
)
def test_a_limit_that_says_nothing_is_refused(told: Any, laws: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        known(*told, *laws)


def test_capabilities_cannot_change_later() -> None:
    assert type(Implementation("it", print, capabilities={"rng"}).capabilities) is frozenset  # type: ignore[arg-type]


def test_what_has_no_checkpoint_says_so_when_it_is_called() -> None:
    with pytest.raises(TypeError, match="it has no checkpoint to call"):
        TORCH.checkpoint(print)


def test_a_namespace_is_loaded_as_of_kind_graph() -> None:
    loaded = impls.load("torch.autograd:graph", "graph")
    assert (loaded.kind, loaded.declared, loaded.subject) == ("graph", False, torch.autograd.graph)


def test_a_namespace_that_lacks_names_is_refused() -> None:
    with pytest.raises(ValueError, match="'torch:nn' has no saved_tensors_hooks, save_on_cpu"):
        impls.load("torch:nn", "graph")


def test_a_class_is_loaded_as_of_kind_offload() -> None:
    assert impls.load("torch.nn:Sequential", "offload").subject is torch.nn.Sequential


def test_every_kind_has_something_to_be_compared_with() -> None:
    assert set(REFERENCES) == set(impls.KINDS)
    assert all(hasattr(GRAPH, name) for name in impls.GRAPH_NAMES)


def test_the_matrix_has_a_table_for_each_kind() -> None:
    common = {"device": "cpu", "expected": "agrees", "verdict": "agrees", "cases": 3, "detail": "", "program": ""}
    rows = [
        {**common, "law": "one", "impl": "nested", "family": "costs", "subject": "checkpoint"},
        {**common, "law": "two", "impl": "graph", "family": "hooks", "subject": "graph"},
    ]
    text = matrix.terminal(rows)
    assert text.count("device cpu") == 2
    first, second = text.split("device cpu")[1:]
    assert "nested" in first
    assert "graph" not in first
    assert "graph" in second
    assert "nested" not in second


def test_the_program_of_another_kind_is_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = next(iter(Explorer("cpu", PROFILE, 0).programs(made(equal, 2), TORCH)))
    path = tmp_path / "script.py"
    path.write_text(script(program.source, replace(TORCH, binding="from torch.autograd import graph"), "law", VALUES))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path))
    assert end.value.code == 1
    assert "gradients 0: plain [('Tensor', torch.float32, torch.strided, [2.71" in capsys.readouterr().out
