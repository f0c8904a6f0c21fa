"""Parameters and buffers that change: in forward, and between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from impls.nested import checkpoint as nested
from impls.offload import OffloadModel


class Clamped(nn.Module):
    """Keeps its weight between bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x * self.weight


class Assigning(nn.Module):
    """Replaces a buffer after it was saved for backward."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.mean
        self.mean = self.mean * 0.5 + x.detach().mean(0)
        return y * self.mean


class Counting(nn.Module):
    """Counts in a buffer, in place."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls.clone()


class Reset(nn.BatchNorm1d):
    """Begins its statistics anew in each call, in place, and has them saved before they are written without a version."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.reset_running_stats()
        return super().forward(x)


class Codebook(nn.Module):
    """Has its codes changed where a version tells, saved, and changed where none does."""

    codes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.codes.add_(x.detach().mean(0))
        y = (x * self.codes).tanh()
        self.codes.data.mul_(0.5)
        return y


MAKES: list[Callable[[], nn.Module]] = [
    lambda: nn.BatchNorm1d(4),
    lambda: Reset(4),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
    Clamped,
    Assigning,
    Counting,
    Codebook,
]


def _built(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 4), make(), nn.Linear(4, 4)]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("make", MAKES)
def test_what_forward_changes_is_changed_once_a_step(make: Callable[[], nn.Module], checkpoint: bool) -> None:
    results = []
    for model in (nn.Sequential(*_built(make)), OffloadModel(_built(make), "cpu", checkpoint_activation=checkpoint)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        results.append([*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_batch_norm_may_run_twice_before_backward(checkpoint: bool) -> None:
    results = []
    for model in (
        nn.Sequential(*_built(MAKES[0])),
        OffloadModel(_built(MAKES[0]), "cpu", checkpoint_activation=checkpoint),
    ):
        torch.manual_seed(1)
        one, other = model(torch.randn(3, 4)), model(torch.randn(3, 4))
        one.square().sum().backward()
        other.square().sum().backward()
        results.append([*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_statistics_are_updated_without_gradients_too() -> None:
    plain, model = nn.BatchNorm1d(4), OffloadModel([nn.BatchNorm1d(4)], "cpu", num_slices=1)
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(plain(x), model(x))
    assert all(torch.equal(one, other) for one, other in zip(plain.buffers(), model.buffers(), strict=True))


def test_each_microbatch_starts_from_what_the_one_before_left() -> None:
    plain, x = nn.Sequential(*_built(Counting)), torch.randn(4, 4)
    model = OffloadModel(_built(Counting), "cpu", checkpoint_activation=True, num_microbatches=2)
    expected = torch.cat([plain(part) for part in x.split(2)])
    expected.sum().backward()
    actual = model(x)
    actual.sum().backward()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(next(model.buffers()), next(plain.buffers()))
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_a_clamped_weight_gets_its_gradient_from_all_microbatches() -> None:
    plain, x = nn.Sequential(Clamped()), torch.randn(5, 4)
    model = OffloadModel([Clamped()], "cpu", num_slices=1, checkpoint_activation=True, num_microbatches=3)
    for one in (plain, model):
        one(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert float(next(model.parameters()).detach().abs().max()) == 1


class Halving(Clamped):
    """Halves its weight before it uses it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


def test_each_microbatch_is_differentiated_at_the_weight_that_it_used() -> None:
    plain, x = Halving(), torch.randn(4, 4, requires_grad=True)
    parts = [part.requires_grad_() for part in x.detach().split(2)]
    expected = [torch.autograd.grad(plain(part).sum(), part)[0] for part in parts]
    model = OffloadModel([Halving()], "cpu", num_slices=1, checkpoint_activation=True, num_microbatches=2)
    assert torch.equal(torch.autograd.grad(model(x).sum(), x)[0], torch.cat(expected))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_weight_that_the_next_forward_changes_is_an_error_as_in_plain(checkpoint: bool) -> None:
    offloaded = OffloadModel([Halving()], "cpu", num_slices=1, checkpoint_activation=checkpoint)
    for model in (Halving(), offloaded):
        y = model(torch.randn(2, 4, requires_grad=True)).sum()
        model(torch.randn(2, 4))
        if checkpoint and model is offloaded:
            y.backward()  # it runs again from where it started
        else:
            with pytest.raises(RuntimeError, match="version"):
                y.backward()


def _step(model: nn.Module, parameter: nn.Parameter) -> None:
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter], lr=0.1).step()


def _load(model: nn.Module, parameter: nn.Parameter) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


@pytest.mark.parametrize("change", [_step, _load])
@pytest.mark.parametrize("options", [{}, {"checkpoint_activation": True}])
def test_a_weight_that_changed_since_forward_is_an_error(change: Callable[[Any, Any], None], options: dict[str, Any]) -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    model = OffloadModel(layers, "cpu", **options)
    y = model(torch.randn(2, 4)).sum()
    change(model, layers[1].weight)
    with pytest.raises(RuntimeError, match=r"weight.* is at version \d; expected version \d"):
        y.backward()
    model.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_bias_may_change_as_in_plain_unless_slices_run_again() -> None:
    for checkpoint in (False, True):
        layer = nn.Linear(4, 4)
        model = OffloadModel([layer], "cpu", num_slices=1, checkpoint_activation=checkpoint)
        y = model(torch.randn(2, 4)).sin().sum()
        with torch.no_grad():
            layer.bias.add_(1)
        if checkpoint:
            with pytest.raises(RuntimeError, match="bias"):
                y.backward()
        else:
            y.backward()


def test_data_that_was_replaced_since_forward_is_an_error() -> None:
    layer = nn.Linear(4, 4)
    y = OffloadModel([nn.Linear(4, 4), layer], "cpu", num_slices=2)(torch.randn(2, 4)).sum()
    layer.weight.data = torch.zeros(4, 4)
    with pytest.raises(RuntimeError, match="given other data"):
        y.backward()


def test_an_assigned_state_leaves_the_graph_of_before_as_it_was() -> None:
    layers, x = [nn.Linear(4, 4), nn.Linear(4, 4)], torch.randn(2, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(nn.Sequential(*layers)(x).square().sum(), x)
    model = OffloadModel(layers, "cpu", num_slices=2)
    y = model(x).square().sum()
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)
    assert torch.equal(torch.autograd.grad(y, x)[0], expected)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_activation_that_changed_since_forward_is_an_error(checkpoint: bool) -> None:
    kept: list[torch.Tensor] = []

    class Keeping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x.exp())
            return kept[-1] * 2

    y = OffloadModel([nn.Linear(2, 2), Keeping()], "cpu", num_slices=1, checkpoint_activation=checkpoint)(torch.randn(1, 2))
    kept[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="version"):
        y.sum().backward()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_weight_that_forward_changes_after_its_use_is_an_error_as_in_plain(checkpoint: bool) -> None:
    class Late(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            y = super().forward(input)
            with torch.no_grad():
                self.weight.mul_(0.5)
            return y

    layers = [nn.Linear(2, 2), Late(2, 2)]
    offloaded = OffloadModel([nn.Linear(2, 2), Late(2, 2)], "cpu", num_slices=2, checkpoint_activation=checkpoint)
    for model in (nn.Sequential(*layers), offloaded):
        y = model(torch.randn(1, 2)).sum()
        with pytest.raises(RuntimeError, match="version"):
            y.backward()


class _Grown(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.weight.mul_(2)
        return super().forward(input)


class _Replacing(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.weight = nn.Parameter(self.weight.detach() * 2)
        return super().forward(input)


class _Remembering(nn.BatchNorm1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.running_mean = input.mean(0)
        return input


@pytest.mark.parametrize(("kind", "words"), [(_Grown, "leaf Variable"), (_Replacing, "assigned parameter '0.weight'")])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_change_that_cannot_be_written_back_is_an_error(kind: Any, words: str, checkpoint: bool) -> None:
    layer = kind(2, 2)
    before, weight = layer.weight.detach().clone(), layer.weight
    model = OffloadModel([layer], "cpu", num_slices=1, checkpoint_activation=checkpoint)
    with pytest.raises(RuntimeError, match=words):
        model(torch.randn(1, 2))
    assert layer.weight is weight
    assert torch.equal(weight, before)


def test_a_buffer_with_a_graph_is_an_error() -> None:
    model = OffloadModel([nn.Linear(2, 2), _Remembering(2)], "cpu", num_slices=1)
    with pytest.raises(RuntimeError, match=r"gave buffer '1\.running_mean' a graph"):
        model(torch.randn(3, 2))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_compiled_modules_stay_compiled(*, checkpoint: bool) -> None:
    compiled = []

    def backend(module: torch.fx.GraphModule, _: object) -> Any:
        compiled.append(module)
        return module.forward

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sin().exp()

    torch._dynamo.reset()
    blocks = [Block(), nn.Linear(2, 2), Block()]  # of the second, which is torch's own, nothing is compiled
    for block in blocks:
        block.compile(backend=backend)
    model = OffloadModel(blocks, "cpu", num_slices=1, checkpoint_activation=checkpoint)
    for _ in range(10):  # more often than a function is compiled anew
        model(torch.randn(3, 2)).sum().backward()
    assert [node.target for module in compiled for node in module.graph.nodes if node.op == "call_method"] == (
        ["sin", "exp"] * len(compiled)
    )
    assert 0 < len(compiled) <= 4  # once for input of the user's and once for a result, in forward and in a recomputation


class Failing(nn.Module):
    """Resizes a buffer, or counts in it, and fails."""

    state: torch.Tensor

    def __init__(self, resizes: bool) -> None:
        super().__init__()
        self.resizes = resizes
        self.register_buffer("state", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.resizes:
            self.state.resize_(1)
        self.state.add_(1)
        raise KeyError("the module's")


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("resizes", [False, True])
def test_an_error_is_raised_as_it_is(resizes: bool, checkpoint: bool) -> None:
    model = OffloadModel([Failing(resizes)], "cpu", num_slices=1, checkpoint_activation=checkpoint)
    with pytest.raises(KeyError, match="the module's") as caught:
        model(torch.ones(2))
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == resizes
    assert all("not all written back" in note and "resized buffer '0.state'" in note for note in notes)
    assert next(model.buffers()).tolist() == ([0, 0] if resizes else [1, 1])


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("region", [nested, partial(torch_checkpoint, use_reentrant=False)])
def test_a_recomputation_that_ends_early_changes_nothing(region: Callable[..., torch.Tensor], checkpoint: bool) -> None:
    model = OffloadModel([Counting(), nn.Tanh(), nn.Tanh()], "cpu", num_slices=1, checkpoint_activation=checkpoint)
    x = torch.ones(2, 4, requires_grad=True)
    region(model, x).sum().backward()
    assert next(model.buffers()) == 1


def _halving(weight: torch.Tensor) -> Callable[..., None]:
    def halve(*_: Any) -> None:
        weight.data.mul_(0.5)

    return halve


def _with_a_hook_on(index: int, **options: Any) -> OffloadModel:
    """A hook halves the weight of the last module, by a reference that it took before."""
    modules: list[nn.Module] = [nn.PReLU(4, init=1.0), nn.PReLU(4, init=0.5)]
    weight = modules[1].get_parameter("weight")

    modules[index].register_forward_hook(_halving(weight))
    return OffloadModel(modules, "cpu", num_slices=2, **options)


def test_a_hook_on_one_slice_changes_the_next() -> None:
    model, x = _with_a_hook_on(0), torch.randn(2, 4)
    with torch.no_grad():
        assert torch.equal(model(x), nn.functional.prelu(x, torch.full((4,), 0.25)))


def test_a_weight_that_a_hook_halves_is_refused_in_the_next_microbatch() -> None:
    x = torch.randn(4, 4)
    _with_a_hook_on(1, checkpoint_activation=True)(x)
    with pytest.raises(RuntimeError, match="changed in forward by one name and is used by another"):
        _with_a_hook_on(1, checkpoint_activation=True, num_microbatches=2)(x)


def test_a_hook_that_changes_another_slice_is_refused_when_it_runs_again() -> None:
    first, second = nn.PReLU(4), nn.PReLU(4)
    weight = second.weight
    first.register_forward_pre_hook(_halving(weight))
    y = OffloadModel([first, second], "cpu", num_slices=2, checkpoint_activation=True)(torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="once more"):
        y.sum().backward()


def test_a_hook_of_a_slice_without_parameters_is_noticed() -> None:
    first, last = nn.PReLU(4), nn.Identity()
    weight = first.weight
    last.register_forward_pre_hook(_halving(weight))
    y = OffloadModel([first, last], "cpu", num_slices=2, checkpoint_activation=True)(torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="changed by a later forward, or by a hook"):
        y.sum().backward()


class Inner(nn.Module):
    """A block whose layer can be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x).sin()
        return y


@pytest.mark.parametrize("exchanged", [nn.Identity(), nn.Sequential(nn.Linear(2, 2))])
def test_a_slice_whose_module_was_exchanged_is_not_run_again(exchanged: nn.Module) -> None:
    block = Inner()
    y = OffloadModel([block], "cpu", num_slices=1, checkpoint_activation=True)(torch.randn(3, 2))
    block.inner = exchanged
    with pytest.raises(RuntimeError, match=r"slice 0 \(0\) had a parameter or buffer '0.inner.weight' in forward, for which"):
        y.sum().backward()
