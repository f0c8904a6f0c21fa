"""Where parameters are and when, what goes from one device to the other, and what is left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.simulated_device.device import Moves, second
from impls.offload import OffloadModel
from impls.offload.transfers import Arrival, Route

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads
WIDTHS = (3, 5, 4, 6, 2)


class Loads:
    """Every load of a slice, with the copies that are alive."""

    def __init__(self) -> None:
        self.copies: list[tuple[tuple[str, ...], list[StorageWeakRef]]] = []
        self.most = 0
        self.events: list[Any] = []

    def alive(self) -> list[tuple[str, ...]]:
        return [names for names, copies in self.copies if any(not copy.expired() for copy in copies)]

    def note(self, copies: Mapping[str, torch.Tensor]) -> None:
        if copies:
            self.copies.append((tuple(copies), [StorageWeakRef(copy.untyped_storage()) for copy in copies.values()]))
        self.most = max(self.most, len(self.alive()))

    def order(self) -> list[str]:
        return [names[0].partition(".")[0] for names, _ in self.copies]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    OffloadModel([nn.Linear(1, 1)], "cpu", num_slices=1)(torch.ones(1, 1))  # torch imports at a first call, in frames that stay
    made, load = Loads(), Route.load

    def noted(self: Route, originals: Mapping[str, torch.Tensor]) -> Arrival:
        arrival = load(self, originals)
        made.note(arrival.copies)
        made.events.append(arrival.done)
        return arrival

    monkeypatch.setattr(Route, "load", noted)
    gc.disable()  # nothing may wait for the collector
    yield made
    gc.enable()


def _layers() -> list[nn.Module]:
    torch.manual_seed(0)
    pairs = itertools.pairwise(WIDTHS)
    return [nn.Sequential(nn.Linear(one, other), nn.Tanh(), nn.Dropout(0.2)) for one, other in pairs]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"checkpoint_activation": True},
    {"checkpoint_activation": True, "num_microbatches": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_slices_are_loaded_once_each_way_and_two_at_most(options: dict[str, Any], loads: Loads) -> None:
    model = OffloadModel(_layers(), "cpu", num_slices=4, **options)
    y = model(torch.randn(6, 3, requires_grad=True))  # otherwise the first slice saves nothing of its own
    assert (loads.alive(), loads.most) == ([], 2)
    loads.most = 0
    y.sum().backward()
    assert loads.order() == ["0", "1", "2", "3", "3", "2", "1", "0"]
    assert loads.most == 2
    assert loads.alive() == []


@pytest.mark.parametrize("options", OPTIONS)
def test_without_gradients_slices_are_loaded_once(options: dict[str, Any], loads: Loads) -> None:
    with torch.no_grad():
        OffloadModel(_layers(), "cpu", num_slices=4, **options)(torch.randn(6, 3))
    assert (loads.order(), loads.most, loads.alive()) == (["0", "1", "2", "3"], 2, [])


@pytest.mark.parametrize("options", OPTIONS)
def test_a_backward_loads_the_slices_that_it_needs(options: dict[str, Any], loads: Loads) -> None:
    model = OffloadModel(_layers(), "cpu", num_slices=4, **options)
    y = model(torch.randn(6, 3)).sum()
    loads.copies.clear()
    torch.autograd.grad(y, list(model.get_submodule("2").parameters()))
    assert loads.order() == ["3", "2"]
    assert loads.alive() == []


def test_a_slice_of_which_nothing_was_saved_is_not_loaded_again(loads: Loads) -> None:
    model = OffloadModel([nn.Embedding(5, 4), nn.Linear(4, 4)], "cpu", num_slices=2)
    model(torch.tensor([1, 2])).sum().backward()
    assert loads.order() == ["0", "1", "1"]


class _Shift(nn.Linear):
    """Saves nothing."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input + self.bias


def test_the_slice_after_one_of_which_nothing_was_saved_is_sent_for(loads: Loads) -> None:
    model = OffloadModel([nn.Linear(4, 4), _Shift(4, 4), nn.Linear(4, 4)], "cpu", num_slices=3)
    y = model(torch.randn(2, 4, requires_grad=True))
    loads.most = 0
    y.sum().backward()
    assert (loads.order(), loads.most) == (["0", "1", "2", "2", "0"], 2)


class _Pair(nn.Linear):
    def forward(self, input: torch.Tensor) -> Any:
        return input.sin(), super().forward(input)


class _Second(nn.Linear):
    def forward(self, input: Any) -> torch.Tensor:
        return super().forward(input[1])


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_a_slice_is_sent_for_when_one_of_its_outputs_is_used(options: dict[str, Any], loads: Loads) -> None:
    model = OffloadModel([_Pair(4, 4), _Second(4, 4)], "cpu", num_slices=2, **options)
    y = model(torch.randn(2, 4, requires_grad=True))
    loads.most = 0
    y.sum().backward()
    assert (loads.order(), loads.most) == (["0", "1", "1", "0"], 2)


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_is_left_after_an_error(options: dict[str, Any], loads: Loads) -> None:
    layers = _layers()
    model = OffloadModel(layers, "cpu", num_slices=4, **options)
    handle = layers[2].register_forward_hook(_fail)
    with pytest.raises(ValueError, match="on purpose"):
        model(torch.randn(6, 3))
    handle.remove()
    assert loads.alive() == []
    y = model(torch.randn(6, 3)).sum()
    handle = next(layers[1].parameters()).register_hook(_fail)
    with pytest.raises(ValueError, match="on purpose"):
        y.backward()
    handle.remove()
    del y
    assert loads.alive() == []
    assert [task() for task in model._residence.tasks.values()] in ([None], [])


def _fail(*_: Any) -> None:
    raise ValueError("on purpose")


@pytest.mark.parametrize("options", OPTIONS)
def test_a_graph_that_is_dropped_frees_what_was_saved(options: dict[str, Any]) -> None:
    model, freed = OffloadModel(_layers(), "cpu", num_slices=2, **options), []
    kept: list[StorageWeakRef] = []
    for module in model.modules():
        if isinstance(module, nn.Tanh):
            module.register_forward_hook(lambda m, args, y: kept.append(StorageWeakRef(y.untyped_storage())))
    gc.disable()
    y = model(torch.randn(6, 3))
    freed.append([reference.expired() for reference in kept])
    del y
    freed.append([reference.expired() for reference in kept])
    gc.enable()
    assert any(freed[0]) == (options != {})
    assert all(freed[1])


def _bytes(tensors: Iterator[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("options", OPTIONS)
def test_parameters_come_twice_a_step_and_gradients_go_once(options: dict[str, Any]) -> None:
    model = OffloadModel(_layers(), SIM, num_slices=4, **options)
    size, boundaries = _bytes(model.parameters()), 4 * 6 * sum(WIDTHS[:-1]) * bool(options)
    x = torch.randn(6, 3, device=SIM, requires_grad=True)
    with Moves() as forward:
        y = model(x)
    with Moves() as backward:
        y.sum().backward()
    assert forward.totals == _positive({f"cpu→{SIM}": size, f"{SIM}→cpu": boundaries})
    assert backward.totals == {f"cpu→{SIM}": size + boundaries, f"{SIM}→cpu": size}


def _positive(totals: dict[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in totals.items() if count}


def test_only_what_changed_is_copied_back() -> None:
    model = OffloadModel([nn.Linear(3, 4), nn.BatchNorm1d(4)], SIM, num_slices=2)
    with torch.no_grad(), Moves() as training:
        model(torch.randn(2, 3, device=SIM))
    with torch.no_grad(), Moves() as evaluation:
        model.eval()(torch.randn(2, 3, device=SIM))
    assert training.totals[f"{SIM}→cpu"] == _bytes(model.buffers())
    assert evaluation.totals[f"{SIM}→cpu"] == 0


@pytest.mark.parametrize("options", OPTIONS)
def test_the_host_waits_for_what_reads_and_writes_parameters(
    options: dict[str, Any], loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, waited = torch.get_device_module(SIM).Event, set()
    synchronize = event.synchronize

    def noted(self: Any) -> None:
        waited.add(self)
        synchronize(self)

    monkeypatch.setattr(event, "synchronize", noted)
    model = OffloadModel(_layers(), SIM, num_slices=4, **options)
    y = model(torch.randn(6, 3)).sum()
    assert len(loads.events) == 4
    assert set(loads.events) <= waited
    y.backward()
    assert loads.events[-1] in waited  # copies in are made in order


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_threads_may_share_a_model(options: dict[str, Any]) -> None:
    model = OffloadModel([nn.Linear(4, 4) for _ in range(4)], "cpu", **options)
    inputs = [torch.randn(2, 4) for _ in range(4)]
    expected = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for x in inputs]
    found: dict[int, list[Any]] = {}

    def work(index: int) -> None:
        found[index] = [torch.autograd.grad(model(inputs[index]).square().sum(), list(model.parameters())) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    _each(threads, threading.Thread.start)
    _each(threads, threading.Thread.join)
    for index, grads in enumerate(expected):
        assert all(torch.equal(one, other) for again in found[index] for one, other in zip(grads, again, strict=True))


def _each(threads: list[threading.Thread], act: Callable[[threading.Thread], Any]) -> None:
    for thread in threads:
        act(thread)


def test_an_lstm_keeps_its_own_weights() -> None:
    lstm = nn.LSTM(3, 3)
    OffloadModel([lstm], "cpu", num_slices=1)(torch.randn(2, 1, 3))[0].sum().backward()
    assert all(one is other for one, other in zip(lstm._flat_weights, lstm.parameters(), strict=True))
    references: Any = lstm._flat_weight_refs
    assert all(one() is other for one, other in zip(references, lstm.parameters(), strict=True))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_process_forked_while_another_thread_runs_a_slice_refuses_the_model(elsewhere: bool) -> None:
    inside, end = threading.Event(), threading.Event()
    model = OffloadModel([nn.Linear(2, 2), nn.Linear(2, 2)], "cpu", num_slices=2)
    x = torch.randn(3, 2)
    due = model(x).detach()

    def wait(*_: object) -> None:
        inside.set()
        end.wait(30)

    def answer() -> int:
        try:
            return 0 if torch.equal(model(x), due) and len(model.state_dict()) == 4 else 1
        except RuntimeError as error:
            return 2 if "forked while another thread ran a slice" in str(error) else 3

    handle = next(model.children()).register_forward_pre_hook(wait)
    thread = threading.Thread(target=model, args=(x,))
    if elsewhere:
        thread.start()
        inside.wait(30)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # where it would wait for ever
        handle.remove()
        os._exit(answer())
    end.set()
    if elsewhere:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if elsewhere else 0)
    assert answer() == 0
