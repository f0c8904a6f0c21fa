"""What a recomputation restores: generators and modes, the arguments, and the versions of tensors that are gone."""

from __future__ import annotations

import enum
import gc
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.nested import CheckpointError, checkpoint
from impls.nested.inputs import Inputs
from impls.state import accelerators, modes, random_numbers
from impls.state.restoration import Restoration
from impls.tensors.containers import flatten_once
from impls.tensors.versions import tensor_metadata, version_probe

Pair = namedtuple("Pair", "left right")
T = TypeVar("T")


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
    with torch.autocast("cpu", torch.float16, cache_enabled=False), torch.device("meta"):
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


@dataclass
class Box:
    """A dataclass that pytree does not know."""

    value: Any
    others: Any


class Mixin:
    """A base that is no dataclass."""


@dataclass(slots=True)
class Slots:
    """A dataclass without a ``__dict__``."""

    value: Any


@dataclass(slots=True)
class MoreSlots(Slots):
    """One that inherits slots."""

    more: Any


@dataclass
class Mixed(Mixin, Slots):
    """One with slots and a ``__dict__``, and a base that is no dataclass."""


@dataclass
class Generically(Generic[T]):
    """One that is generic."""

    value: T


@dataclass(frozen=True)
class Frozen(Protocol):
    """One that cannot be changed in the usual way."""

    value: Any


class FrozenBox(Frozen):
    """An object with a Protocol for a base."""


@pytest.mark.parametrize("kind", [Box, Slots, MoreSlots, Mixed, Generically, FrozenBox])
@pytest.mark.parametrize("nested", [False, True])
def test_dataclasses_are_given_back_as_they_were(kind: Any, nested: bool) -> None:
    weight = torch.eye(3).mul(2).requires_grad_()
    x, seen, had = torch.ones(3, requires_grad=True), [], []

    def function(record: Any) -> torch.Tensor:
        seen.append(record)
        had.append(hasattr(record, "more") or hasattr(record, "hidden"))
        object.__setattr__(record, "more" if isinstance(record, MoreSlots) else "value", record.value)
        if hasattr(record, "__dict__"):
            vars(record)["hidden"] = 3
        for _ in range(2):
            object.__setattr__(record, "value", torch.tanh(record.value @ weight))
        return (record.value**2).sum()

    def outer(x: torch.Tensor) -> torch.Tensor:
        record = object.__new__(kind)
        object.__setattr__(record, "value", x * 1)
        return checkpoint(function, record) if checked else function(record)

    gradients = []
    for checked in (False, True):
        result = checkpoint(outer, x) if nested and checked else outer(x)
        gradients.append(torch.autograd.grad(result, (x, weight)))
    assert all(map(torch.equal, *gradients))
    assert all(type(one) is kind for one in seen)
    assert not any(had)


@dataclass
class Named:
    """A dataclass whose fields an Enum may have."""

    label: str


class Number(Named, enum.Enum):
    """Dataclasses that each are one object."""

    ONE = "one"


@dataclass
class Mapped(dict[str, Any]):
    """A dict that is a dataclass."""

    value: Any


@dataclass
class Model(torch.nn.Module):
    """A module that is a dataclass."""

    value: Any

    def __post_init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("one", [Number.ONE, Mapped(1), Model(1), Slots])
def test_what_is_more_than_its_attributes_is_no_container(one: Any) -> None:
    assert flatten_once(one) is None


def test_arguments_are_put_together_again() -> None:
    x, y = torch.ones(2, requires_grad=True) * 1, torch.zeros(2)
    args, kwargs = Inputs((x, Pair(y, [x, 3])), {"box": Box(x, {"deep": (y, None)})}).restore()[:2]
    assert isinstance(args[1], Pair)
    assert isinstance(kwargs["box"], Box)
    assert kwargs["box"].value is args[0] is args[1].right[0]
    assert kwargs["box"].others["deep"][0] is args[1].left
    assert args[0].grad_fn is x.grad_fn
    assert args[1].right[1] == 3
    assert kwargs["box"].others["deep"][1] is None


def test_containers_are_fresh() -> None:
    box, values = Box(torch.ones(2), None), [torch.zeros(2)]
    inputs = Inputs((box, values), {})
    values.append(torch.ones(1))
    box.others = "later"
    (fresh_box, fresh_values), _ = inputs.restore()[:2]
    assert len(fresh_values) == 1
    assert fresh_box.others is None
    fresh_values.clear()
    assert len(inputs.restore()[0][1]) == 1


def test_generators_are_found_at_any_depth() -> None:
    one, two, three = (torch.Generator() for _ in range(3))
    assert Inputs((one, [Box(None, (two,))]), {"source": {"deep": three}}).generators == [one, two, three]


@pytest.mark.parametrize("change", [0, 1, 2])
def test_the_index_of_a_changed_argument_is_found(change: int) -> None:
    tensors = [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2)]
    inputs = Inputs((tensors[0], [tensors[1]]), {"other": {"deep": tensors[2]}})
    assert inputs.first_changed() is None
    with torch.no_grad():
        tensors[change].view(1, 2).add_(1)
    assert inputs.first_changed() == change


def test_a_parameter_and_an_inference_tensor_come_back_as_they_are() -> None:
    with torch.inference_mode():
        constant = torch.ones(2)
    parameter = torch.nn.Parameter(torch.ones(2))
    (one, other), _ = Inputs((parameter, constant), {}).restore()[:2]
    assert one is parameter
    assert other is constant


def test_attributes_come_back_through_hooks() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    x.scale = 2  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        inputs = Inputs((x,), {})
    (restored,), _ = inputs.restore()[:2]
    assert restored is not x
    assert restored.scale == 2


def test_releases_without_a_way_to_save_a_tensor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impls.tensors.packed.make_saved_tensor", None)
    packed: list[torch.Tensor] = []
    x = torch.ones(2, requires_grad=True) * 1

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        inputs = Inputs((x, x), {})
    (one, other), _ = inputs.restore()[:2]
    assert len(packed) == 1
    assert one is other
    assert one.grad_fn is x.grad_fn
    assert torch.equal(one, x)


def test_a_counter_outlives_the_storage() -> None:
    tensor = torch.ones(1000)
    storage = StorageWeakRef(tensor.untyped_storage())
    following = version_probe(tensor)
    tensor.add_(1)
    assert following._version == 1
    assert not storage.expired()
    del tensor
    assert storage.expired()
    assert following._version == 1


def test_a_change_through_a_view_counts() -> None:
    base = torch.ones(2, 2)
    following = [version_probe(base), version_probe(base[0]), version_probe(base.detach())]
    base.t()[1].mul_(2)
    assert [one._version for one in following] == [1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.ones(2, device="meta"),
        lambda: torch.ones(2).as_subclass(type("Kind", (torch.Tensor,), {})),
        lambda: torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["sparse", "meta", "subclass", "parameter"],
)
def test_unusual_tensors_are_followed(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    following = version_probe(tensor)
    with torch.no_grad():
        tensor.mul_(2)
    assert following._version == tensor._version == 1
    del tensor
    gc.collect()
    assert following._version == 1


def test_a_look_tells_other_tensors_apart() -> None:
    one, changed = tensor_metadata(torch.ones(2, 2)), torch.ones(2, 2)
    changed.add_(1)
    leaf = torch.ones(2, 2, requires_grad=True)
    others = [torch.ones(4), torch.ones(2, 2).double(), torch.ones(2, 2, device="meta"), changed, leaf, leaf * 1]
    assert one == tensor_metadata(torch.zeros(2, 2).t())
    assert len(set(map(tensor_metadata, others))) == len(others)
    assert one not in [tensor_metadata(other) for other in others]
