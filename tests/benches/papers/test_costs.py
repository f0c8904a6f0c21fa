"""What papers are measured with: the meter of live bytes, saved bytes, the layer on several ranks, the executed chains."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benches.papers import korthikanti2022, peer_schedules
from benches.papers.meters.live import Live
from benches.papers.meters.saved_bytes import saved_bytes
from benches.papers.models import stages
from benches.papers.models.chain import cost, plain
from benches.papers.models.transformer_layer import Shape, Technique, Weights, layer, paper_bytes, split, weights
from impls import nested
from impls.schedules import interpret, kept, uniform


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_the_meter_counts_storages_while_they_are_alive() -> None:
    given_before = torch.ones(100)
    with Live() as live:
        first = given_before + 1
        view = first[10:]
        del first
        second = view * 2
        third = torch.empty(50, device="meta")
        assert [*live.sizes.values()] == [400, 360, 200]
        del view, third
        second.add_(1)
    assert (live.alive, live.peak) == (360, 960)
    assert live.kernels["add_"] == live.kernels["mul"] == 1


def test_a_meter_counts_no_more_once_it_is_left() -> None:
    with Live() as live:
        kept_alive = torch.ones(4)
    torch.ones(1000)
    assert (live.alive, live.peak) == (16, 16)
    del kept_alive
    assert live.alive == 0


def test_saved_bytes_count_each_storage_once_and_parameters_never() -> None:
    weight, x = torch.ones(8, 8, requires_grad=True), torch.ones(4, 8, requires_grad=True)

    def function() -> torch.Tensor:
        y = x @ weight  # saves x and the weight
        return (y.sin() + y.cos()) * y[:, :1]  # saves y thrice and the sum

    saved, _ = saved_bytes(function, parameters=[weight], rows=4)
    assert (saved.activations, saved.statistics) == (3 * 4 * 8 * 4, 0)
    normed, _ = saved_bytes(lambda: torch.layer_norm(x, (8,)), parameters=[], rows=4)
    assert (normed.activations, normed.statistics) == (128, 2 * 4 * 4)


# Heads of width 1 would be taken for statistics.
SHAPES = st.builds(
    lambda s, b, d, a: Shape(4 * s, b, 4 * (d + 1) * a, 4 * a),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
)
TECHNIQUES = st.builds(
    Technique,
    ranks=st.sampled_from((1, 2, 4)),
    sequence=st.booleans(),
    recompute=st.sampled_from(("none", "selective", "full")),
)


def run_on_meta(shape: Shape, technique: Technique) -> int:
    ranks = split(weights(shape, dtype=torch.bfloat16, device="meta"), technique.ranks)
    whole = torch.empty(shape.s, shape.b, shape.h, dtype=torch.bfloat16, device="meta")
    parts = whole.chunk(technique.ranks) if technique.sequence else [whole] * technique.ranks
    inputs = [part.clone().requires_grad_() for part in parts]
    parameters = [tensor for rank in ranks for tensor in rank.tensors()]
    saved, _ = saved_bytes(
        lambda: layer(inputs, ranks, shape, technique), parameters=parameters, rows=inputs[0].numel() // shape.h
    )
    return saved.activations


@settings(max_examples=40, deadline=None)
@given(SHAPES, TECHNIQUES)
def test_a_layer_saves_what_the_formulas_say(shape: Shape, technique: Technique) -> None:
    assert run_on_meta(shape, technique) == technique.ranks * paper_bytes(shape, technique)


def gradients(one: Technique) -> tuple[torch.Tensor, torch.Tensor, list[Weights]]:
    shape = Shape(s=8, b=2, h=16, a=4)
    ranks = split(weights(shape, dtype=torch.float64, device="cpu"), one.ranks)
    whole = torch.randn(8, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = list(whole.chunk(one.ranks)) if one.sequence else [whole.clone() for _ in range(one.ranks)]
    for part in inputs:
        part.requires_grad_()
    outputs = layer(inputs, ranks, shape, one)
    seeds = torch.linspace(-1, 1, whole.numel(), dtype=torch.float64).view_as(whole)
    torch.autograd.backward(outputs, list(seeds.chunk(one.ranks)) if one.sequence else [seeds] * one.ranks)
    grads: list[Any] = [part.grad for part in inputs]
    if one.sequence:
        return torch.cat(outputs), torch.cat(grads), ranks
    return outputs[0], grads[0], ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layer_on_several_ranks_is_the_layer_on_one(ranks: int, sequence: bool, recompute: str) -> None:
    one, whole, alone = gradients(Technique(dropout=0))
    several, parts, shared = gradients(Technique(ranks=ranks, sequence=sequence, recompute=recompute, dropout=0))
    torch.testing.assert_close(several, one)
    torch.testing.assert_close(parts, whole)
    assert alone[0].up[0].grad is not None
    torch.testing.assert_close(
        torch.cat([rank.up[0].grad for rank in shared if rank.up[0].grad is not None]), alone[0].up[0].grad
    )
    assert alone[0].project[0].grad is not None
    columns = [rank.project[0].grad for rank in shared if rank.project[0].grad is not None]
    torch.testing.assert_close(torch.cat(columns, 1), alone[0].project[0].grad)


def test_a_layer_that_keeps_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[torch.Tensor] = []

    def leaking(*arguments: Any) -> Any:
        outputs = layer(*arguments)
        held.append(outputs[0] + 1)
        return outputs

    monkeypatch.setattr("benches.papers.korthikanti2022.layer", leaking)
    with pytest.raises(RuntimeError, match="bytes are alive after forward, hooks account for"):
        korthikanti2022.run(korthikanti2022.SMALL, Technique())


def test_a_scheme_with_another_gradient_is_noticed() -> None:
    assert cost(plain, 4).calls == cost(plain, 4).kernels == 4
    with pytest.raises(RuntimeError, match="plain autograd's is"):
        cost(lambda layers, value: plain(layers[:3], value), 4)


def test_executed_stages_cost_what_the_interpreter_says() -> None:
    for plan in (kept(0, 12), uniform(12, 3), uniform(12, 6)):
        account = interpret(plan, (stages.REAL,) * 12)
        assert stages.execute(plan, 12) == stages.Executed(int(account.time), account.peak)


def test_segments_without_checkpointing_have_other_counts() -> None:
    one = cost(lambda layers, value: nested.checkpoint_sequential(list(layers), 1, value), 16)
    assert (one.calls, one.alive) == (16, 16)


def test_peers_that_are_not_installed_say_so() -> None:
    assert peer_schedules.version("no-such-distribution") == "not installed"
    theirs = peer_schedules.checkpoint_schedules(10, 3)
    assert theirs in ({}, {"Revolve": 25, "Multistage": 25, "Mixed": 19})
    if importlib.util.find_spec("pyrevolve"):
        assert peer_schedules.pyrevolve(10, 3) == 25
    else:  # the bench says of its row that it was not measured
        with pytest.raises(ModuleNotFoundError, match="pyrevolve"):
            peer_schedules.pyrevolve(10, 3)
