"""Streams of the simulated device: who waited finds values, who did not finds garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.simulated_device.device import second

SIM = second("cpu")
sim: Any = torch.get_device_module(SIM)
X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _nothing_queued() -> Iterator[None]:
    sim.forget_hazards()
    yield
    sim.forget_hazards()


@pytest.fixture
def side() -> Any:
    return sim.Stream()


def garbage(tensor: torch.Tensor) -> bool:
    """Whether all is garbage; looking does not make anybody wait."""
    raw = tensor if tensor.device.type == "cpu" else (tensor + 0).cpu()
    return bool(raw.isnan().all())


def arrived(tensor: torch.Tensor, values: torch.Tensor = X) -> bool:
    return torch.equal(tensor if tensor.device.type == "cpu" else (tensor + 0).cpu(), values)


def loaded(stream: Any, source: torch.Tensor = X) -> torch.Tensor:
    """A copy to the device that waits on a stream."""
    with sim.stream(stream):
        return source.to(SIM, non_blocking=True)


WAITS: dict[str, Callable[[Any, Any], None]] = {
    "event waits": lambda stream, event: event.wait(),
    "stream waits for event": lambda stream, event: sim.current_stream().wait_event(event),
    "stream waits for stream": lambda stream, event: sim.current_stream().wait_stream(stream),
    "host waits for event": lambda stream, event: event.synchronize(),
    "host waits for stream": lambda stream, event: stream.synchronize(),
    "host waits for device": lambda stream, event: sim.synchronize(),
    "by way of another stream": lambda stream, event: _through(sim.Stream(), event),
    "host asks the event until it is there": lambda stream, event: _until(event.query),
    "host asks the stream until it is there": lambda stream, event: _until(stream.query),
}


def _through(other: Any, event: Any) -> None:
    other.wait_event(event)
    other.record_event().wait()


def _until(query: Callable[[], bool]) -> None:
    assert not query()
    while not query():
        pass


@pytest.mark.parametrize("name", WAITS)
def test_a_copy_to_the_device_is_there_once_somebody_waited(name: str, side: Any) -> None:
    x = loaded(side)
    event = side.record_event()
    assert garbage(x)
    WAITS[name](side, event)
    assert arrived(x)
    assert sim.hazards() == ()


def test_to_ask_is_not_to_wait(side: Any) -> None:
    x = loaded(side)
    assert not side.record_event().query()
    assert not side.query()
    assert garbage(x)


def test_an_event_covers_what_came_before_it_alone(side: Any) -> None:
    first = loaded(side)
    event = side.record_event()
    second = loaded(side)
    event.wait()
    assert arrived(first)
    assert garbage(second)


def test_an_event_that_was_never_recorded_is_done() -> None:
    event = sim.Event()
    event.wait()
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.complex64])
def test_every_dtype_has_garbage(dtype: torch.dtype, side: Any) -> None:
    source = torch.zeros(2, dtype=dtype)
    x = loaded(side, source)
    assert (x != 0).all().item()
    side.synchronize()
    assert torch.equal(x.cpu(), source)


def test_a_queued_copy_reads_the_host_when_it_runs(side: Any) -> None:
    source = X.clone().pin_memory()
    x = loaded(side, source)
    source.zero_()
    side.synchronize()
    assert arrived(x, torch.zeros(3))


def test_work_of_one_stream_is_in_order(side: Any) -> None:
    x = loaded(side)
    with sim.stream(side):
        y = x * 2
    side.synchronize()
    assert arrived(y, X * 2)
    assert sim.hazards() == ()


@pytest.mark.parametrize("on_side", [False, True])
def test_a_copy_to_the_host_is_there_once_the_host_waited(on_side: bool, side: Any) -> None:
    x = X.to(SIM)
    with sim.stream(side if on_side else None):
        side.wait_stream(sim.default_stream())
        host = x.to("cpu", non_blocking=True)
        event = sim.current_stream().record_event()
    assert garbage(host)
    event.wait(sim.Stream())  # that the device waits is no help to the host
    event.wait()
    assert garbage(host)
    event.synchronize()
    assert arrived(host)


def test_a_view_and_an_allocation_let_the_queue_be(side: Any) -> None:
    x = loaded(side)
    with sim.stream(side):
        view, _ = x.view(3, 1)[1:], torch.empty(2, device=SIM)
    assert garbage(view)
    side.synchronize()
    assert arrived(view, X.view(3, 1)[1:])


def test_the_host_sees_what_its_event_covers_alone() -> None:
    x = X.to(SIM)
    first = x.to("cpu", non_blocking=True)
    event = sim.current_stream().record_event()
    second = x.to("cpu", non_blocking=True)
    event.synchronize()
    assert arrived(first)
    assert garbage(second)


def test_a_copy_to_the_device_on_the_default_stream_runs_at_once() -> None:
    source = X.clone()
    x = source.to(SIM, non_blocking=True)
    source.zero_()
    assert arrived(x)


class Seen(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_what_a_wait_does_is_no_operator_of_the_program(side: Any) -> None:
    x = loaded(side)
    with sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    version = x._version, host._version
    with Seen() as seen:
        side.synchronize()
        y = x + 1
    assert seen.names == ["add"]
    assert arrived(y, X + 1)
    assert (x._version, host._version) == version


def test_the_host_waits_for_what_it_waits_for_waits_for(side: Any) -> None:
    x = X.to(SIM)
    with sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    sim.default_stream().wait_stream(side)
    sim.default_stream().synchronize()
    assert arrived(host)


def test_what_is_copied_is_what_was_there_when_the_default_stream_got_to_it() -> None:
    x = X.to(SIM)
    host = x.to("cpu", non_blocking=True)
    x.zero_()
    sim.synchronize()
    assert arrived(host)


def test_the_device_reads_what_it_wrote_to_the_host_without_the_host(side: Any) -> None:
    x, host = X.to(SIM), torch.empty(3, pin_memory=True)
    side.wait_stream(sim.current_stream())
    with sim.stream(side):
        host.copy_(x, non_blocking=True)
        y = host.to(SIM, non_blocking=True)
    sim.current_stream().wait_stream(side)
    assert arrived(y)


def test_a_blocking_copy_waits_for_its_own_stream_alone(side: Any) -> None:
    x, host = loaded(side), X.to(SIM).to("cpu", non_blocking=True)
    X.to(SIM)
    assert arrived(host)
    assert garbage(x)


def test_item_waits_for_the_default_stream() -> None:
    x = X.to(SIM)
    host = x.to("cpu", non_blocking=True)
    assert x.sum().item() == 6
    assert arrived(host)


def test_autograd_waits_for_nothing_by_itself(side: Any) -> None:
    x = X.to(SIM).requires_grad_()
    with sim.stream(side):
        weight = X.to(SIM, non_blocking=True)
    loss = (x * weight).sum()  # forward did not wait
    side.synchronize()
    loss.backward()  # what was saved is the weight, which is there by now
    assert garbage(loss.detach())
    assert x.grad is not None
    assert arrived(x.grad)


def test_the_current_stream_is_the_threads(side: Any) -> None:
    seen = []
    with sim.stream(side):
        thread = threading.Thread(target=lambda: seen.append(sim.current_stream()))
        thread.start()
        thread.join()
        assert sim.current_stream() == side
    assert seen == [sim.default_stream()] == [sim.current_stream()]


def test_the_stream_is_put_back_after_an_error(side: Any) -> None:
    with pytest.raises(KeyError), sim.stream(side):
        raise KeyError
    assert sim.current_stream() == sim.default_stream()


def test_streams_and_devices_of_others_are_refused() -> None:
    with pytest.raises(TypeError, match="stream is 7"):
        sim.Event().record(7)
    with pytest.raises(ValueError, match="device is 'cpu'"):
        sim.synchronize("cpu")
    with pytest.raises(ValueError, match="one simulated device"):
        sim.Stream("sim:1")


def test_the_generator_is_the_cpus() -> None:
    with torch.random.fork_rng(device_type=SIM):
        torch.manual_seed(5)
        state = sim.get_rng_state_all()
        one = torch.rand(2, device=SIM).cpu()
        sim.set_rng_state_all(state)
        assert torch.equal(one, torch.rand(2))
        sim.manual_seed_all(5)
        assert torch.equal(one, torch.rand(2, device=SIM).cpu())


def test_the_module_answers_what_torch_asks() -> None:
    assert (sim.is_available(), sim.is_initialized(), sim._is_in_bad_fork()) == (True, True, False)
    assert (sim.current_device(), sim.device_count(), torch.accelerator.current_accelerator()) == (0, 1, torch.device(SIM))
    with sim.device(0), sim.device("sim:0"):
        sim.set_device(torch.device(SIM))
