"""Names of torch.autograd.graph that releases of torch differ in: each exists, and says what it lacks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import impls
from conformance.runs.selection import claims_of
from impls import Implementation, graph
from impls.graph import newer_torch_names
from impls.implementation import optional_capabilities


@pytest.mark.parametrize("name", [*impls.GRAPH_NAMES, *newer_torch_names.FIRST_RELEASES])
def test_every_name_is_there_in_every_release(name: str) -> None:
    assert callable(getattr(graph, name))
    assert name in graph.__all__


def test_all_names_of_the_installed_release_are_there() -> None:
    assert set(torch.autograd.graph.__all__) <= set(graph.__all__)


@pytest.mark.parametrize("name", newer_torch_names.FIRST_RELEASES)
def test_what_a_release_lacks_names_the_release_that_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.autograd.graph, name, raising=False)
    with pytest.raises(NotImplementedError, match=f"{name} needs torch {newer_torch_names.FIRST_RELEASES[name]} or newer"):
        newer_torch_names.from_torch(name)(True)


def test_what_a_release_has_is_torchs_own() -> None:
    for name in newer_torch_names.FIRST_RELEASES.keys() & set(torch.autograd.graph.__all__):
        assert newer_torch_names.from_torch(name) is getattr(torch.autograd.graph, name)


def test_a_namespace_may_claim_what_it_has_names_for() -> None:
    assert optional_capabilities(graph) >= {"end-of-backward", "memory-budget", "node-creation", "stream-settings"}
    assert optional_capabilities(SimpleNamespace(queue_callback=print)) == {"end-of-backward"}


def test_nobody_is_held_to_names_that_may_be_missing() -> None:
    bare = SimpleNamespace(**{name: getattr(graph, name) for name in impls.GRAPH_NAMES})
    one = Implementation("one", kind="graph", provides=bare, declared=False, capabilities=optional_capabilities(bare))
    assert claims_of(one, impls.get("graph")).capabilities == {"logging", "min-bytes"}
    assert claims_of(replace(one, provides=graph, capabilities=optional_capabilities(graph)), impls.get("graph")) == impls.get(
        "graph"
    )


def test_a_callback_needs_a_backward() -> None:
    with pytest.raises(RuntimeError, match="no backward runs on this thread"):
        graph.queue_callback(print)
    with pytest.raises(TypeError, match="callback is 3; it must be callable"):
        graph.queue_callback(3)  # type: ignore[arg-type]
