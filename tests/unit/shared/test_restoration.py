"""What a recomputation restores of the process: generators of random numbers, and modes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from impls.nested import CheckpointError, checkpoint
from impls.state import accelerators, modes, random_numbers
from impls.state.restoration import Restoration


class Accelerator:
    """Stands in for the module of an accelerator; its devices' generators are the CPU's kind, which serves as well."""

    def __init__(self, started: bool, devices: int = 2) -> None:
        self._initialized = started
        self.capturing = False
        self.made = [torch.Generator().manual_seed(index) for index in range(devices)]

    def is_available(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    @property
    def default_generators(self) -> list[torch.Generator]:
        assert self._initialized, "asking for generators starts the runtime"
        return self.made


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Accelerator]:
    """Makes a stand-in and puts it where torch's own accelerator would be."""

    def make(**options: Any) -> Accelerator:
        module = Accelerator(**options)
        monkeypatch.setattr(accelerators, "accelerator", lambda: "cuda")
        monkeypatch.setattr(torch, "get_device_module", lambda device=None: module)
        return module

    return make


@pytest.mark.parametrize("device", [0, 1])
def test_draws_on_a_device_that_no_argument_is_on_are_replayed(accelerated: Callable[..., Accelerator], device: int) -> None:
    source = accelerated(started=True).made[device]
    drawn: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(3, generator=source))
        return (x * drawn[-1]).sin()

    y = checkpoint(function, torch.ones(3, requires_grad=True))
    after = source.get_state()
    y.sum().backward()
    first, second = drawn
    assert torch.equal(first, second)
    assert torch.equal(source.get_state(), after)


def test_draws_on_a_device_that_shows_no_generator_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(1)
    members = {"get_rng_state": source.get_state, "set_rng_state": source.set_state}
    module = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, **members)  # as torch.mps is
    monkeypatch.setattr(accelerators, "accelerator", lambda: "mps")
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: module)
    drawn: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(3, generator=source))
        return (x * drawn[-1]).sin()

    y = checkpoint(function, torch.ones(3, requires_grad=True))
    after = source.get_state()
    y.sum().backward()
    assert torch.equal(*drawn)
    assert torch.equal(source.get_state(), after)


@pytest.mark.parametrize("sleeper_knows_the_device", [True, False])
def test_what_a_sleeper_found_is_put_back_under_either_name(
    monkeypatch: pytest.MonkeyPatch, sleeper_knows_the_device: bool
) -> None:
    source = torch.Generator().manual_seed(1)
    module = SimpleNamespace(set_rng_state=source.set_state)
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: module)
    names: tuple[random_numbers.Source, ...] = (random_numbers.Device("cuda", 0), source)
    sleeper, passer = Restoration(None, []), Restoration(None, [])
    found, replayed = source.get_state(), source.manual_seed(2).get_state()
    sleeper.before = [(names[not sleeper_knows_the_device], found)]
    passer.before = [(one, replayed) for one in names]
    passer.inherit(sleeper)
    random_numbers.set_states(passer.before)
    assert torch.equal(source.get_state(), found)


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_a_device_first_initialised_inside_is_refused(
    accelerated: Callable[..., Accelerator], preserve: bool, started: bool
) -> None:
    module = accelerated(started=started)
    x = torch.ones(3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        module._initialized = True
        return x.sin()

    if preserve and not started:
        with pytest.raises(CheckpointError, match=r"first initialised inside the region.*preserve_rng_state=False"):
            checkpoint(function, x, preserve_rng_state=preserve)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    else:
        checkpoint(function, x, preserve_rng_state=preserve).sum().backward()
        assert torch.equal(x.grad, torch.cos(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("preserve", [True, False])
def test_random_numbers_cannot_be_preserved_while_a_graph_is_captured(
    accelerated: Callable[..., Accelerator], preserve: bool
) -> None:
    accelerated(started=True).capturing = True
    x = torch.ones(3, requires_grad=True)
    if preserve:
        with pytest.raises(CheckpointError, match=r"is being captured.*Pass preserve_rng_state=False"):
            checkpoint(torch.sin, x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    else:
        checkpoint(torch.sin, x, preserve_rng_state=False).sum().backward()
        assert torch.equal(x.grad, torch.cos(x))  # type: ignore[arg-type]


def test_looking_does_not_start_a_runtime(accelerated: Callable[..., Accelerator]) -> None:
    accelerated(started=False)
    assert accelerators.initialized_module() is None
    assert [generator for generator, _ in random_numbers.capture_states()] == [torch.default_generator]


def test_generators_are_set_back_to_where_they_stood() -> None:
    generator = torch.Generator().manual_seed(3)
    states = random_numbers.capture_states((generator,))
    drawn = torch.rand(2), torch.randn(3, generator=generator)
    random_numbers.set_states(states)
    assert torch.equal(torch.rand(2), drawn[0])
    assert torch.equal(torch.randn(3, generator=generator), drawn[1])


def _forward_modes() -> modes.Modes:
    functions = torch._C.DisableTorchFunctionSubclass()
    with torch.autocast("cpu", torch.float16, cache_enabled=False), torch.device("meta"), functions:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_dtype(torch.float64)
        try:
            return modes.current_modes()
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_are_put_in_force_and_put_back(fails: bool) -> None:
    before, wanted = modes.current_modes(), _forward_modes()
    assert all(one != other for one, other in zip(before, wanted, strict=True))
    try:
        with Restoration(wanted, []):
            assert modes.current_modes() == wanted
            assert torch.empty(1).device.type == "meta"
            assert torch.empty(1).dtype == torch.float64
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert modes.current_modes() == before


@pytest.mark.parametrize("around", [0, 1])
def test_autocast_that_is_set_by_hand_is_put_back(around: int) -> None:
    with torch.autocast("cpu", torch.float16) if around else nullcontext():
        before, wanted = modes.current_modes(), modes.current_modes()
        with Restoration(wanted, []):
            cast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
            cast.__enter__()
            torch.set_autocast_enabled("cpu", not around)
        assert (modes.current_modes(), modes.autocast_depth()) == (before, around)
        with Restoration(wanted, []):
            torch.autocast_decrement_nesting()
        assert modes.autocast_depth() == around


def test_casts_of_a_run_that_is_left_early_are_let_go() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        cast = torch.autocast("cpu", torch.bfloat16)
        cast.__enter__()
        x = torch.mm(x, weight).square()
        cast.__exit__(None, None, None)
        return x

    weight = torch.ones(2, 2, requires_grad=True)
    checkpoint(function, torch.ones(2, 2)).sum().backward()
    with torch.no_grad():
        weight.fill_(3)
    assert torch.equal(function(torch.ones(2, 2)).float(), torch.full((2, 2), 36.0))


def test_no_device_context_is_a_mode_too() -> None:
    wanted = modes.current_modes()
    with torch.device("meta"), Restoration(wanted, []):
        assert torch.empty(1).device.type == "cpu"


def test_autocast_of_the_accelerator_is_a_mode_too(accelerated: Callable[..., Accelerator]) -> None:
    accelerated(started=True)
    assert [kind for kind, _, _ in modes.current_modes().autocast] == ["cpu", "cuda"]
