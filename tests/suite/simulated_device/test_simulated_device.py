"""The simulated device: values as on the CPU, tensors of its own, and moves between the two."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.simulated_device.device import Moves, second

SIM = second("cpu")


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor of the device has the values and strides of one of the CPU."""
    assert (other.device.type, one.device.type) == (SIM, "cpu")
    back = other.detach().cpu()
    return one.stride() == other.stride() and one.dtype == other.dtype and torch.equal(one.detach(), back)


def test_the_second_device_of_another_device_is_itself() -> None:
    assert (second("cpu"), second("cuda"), second("meta:0")) == ("sim", "cuda", "meta:0")


@pytest.mark.parametrize(("place", "grows"), [("cpu", 0), (SIM, 100)])
def test_what_a_differentiable_backward_makes_is_numbered_by_the_thread_of_its_device(place: str, grows: int) -> None:
    """So what ran before decides on the order in which gradients of gradients are added up, as on an accelerator."""

    def ahead() -> int:
        x = torch.ones(2, device=place, requires_grad=True)
        y = x.sin()
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert y.grad_fn is not None
        assert grad.grad_fn is not None
        return y.grad_fn._sequence_nr() - grad.grad_fn._sequence_nr()

    before, x = ahead(), torch.ones(2, requires_grad=True)
    for _ in range(100):
        x.sin()
    between = ahead()
    assert between - before == pytest.approx(grows, abs=5)


def test_an_import_registers_nothing() -> None:
    code = "import conformance.simulated_device.device, torch; print(torch._C._get_privateuse1_backend_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["privateuseone"]


OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + x.sin()) @ x.mT,
    "reductions": lambda x: torch.stack([x.sum(), x.mean(), x.std(), x.max()]),
    "several results": lambda x: [*x.sort(1), *torch.linalg.svd(x), *x.unbind(), *x.split(2, 1)],
    "views": lambda x: [x[1:, ::2], x.t(), x.expand(2, 3, 4), x.view(2, 6), x.diagonal(), x.unfold(1, 2, 1), x.unsqueeze(0)],
    "in place": lambda x: x.clone().mul_(2).t_().add_(1).relu_(),
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "outs": lambda x: torch.sort(x, out=(torch.empty(0, device=x.device), torch.empty(0, device=x.device, dtype=torch.long))),
    "lists": lambda x: [torch.cat([x, x]), *torch._foreach_mul([x, x], 3.0), *torch.meshgrid(x[0], x[1], indexing="ij")],
    "indices": lambda x: [x[torch.tensor([2, 0])], x[x > 0], x.gather(1, x.argsort(1)), x.take_along_dim(x.argsort(1), 1)],
    "factories": lambda x: [torch.zeros_like(x), x.new_full((2,), 7), torch.arange(5, device=x.device), _zeros(x.device)],
    "random numbers": lambda x: [torch.randn(3, device=x.device), torch.randperm(9, device=x.device), x.bernoulli(0.5)],
    "dropout": lambda x: nn.functional.dropout(x),
    "complex": lambda x: _complex(torch.view_as_complex(x.view(3, 2, 2))),
    "dtypes": lambda x: [x.double(), x.to(torch.bfloat16), x.long(), x > 0, x.view(torch.int32)],
    "memory formats": lambda x: x.view(1, 2, 2, 3).to(memory_format=torch.channels_last),
    "numbers of the CPU": lambda x: [x * torch.tensor(2.0), 1 - x, (x > 0) | True, x + 1j],
    "resize": lambda x: x.clone().resize_(5, 4)[:3],
    "set item": lambda x: _set_items(x.clone()),
}  # fmt: skip


def _complex(z: torch.Tensor) -> list[torch.Tensor]:
    return [
        z.conj(),
        z.conj() * 2,
        z.conj().imag,
        z.conj().imag.clone(),
        z.conj().resolve_conj(),
        z.conj().to(torch.complex128),
    ]


def _zeros(device: torch.device) -> torch.Tensor:
    return torch._efficientzerotensor(2, device=device) + torch.ones(2, device=device)


def _set_items(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1
    x[:, 1] = torch.tensor(5.0)
    x[torch.tensor([False, True, True], device=x.device)] = 0
    return x


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_give_what_they_give_on_the_cpu(name: str) -> None:
    x = numbers(3, 4)
    torch.manual_seed(1)
    expected = OPERATORS[name](x)
    torch.manual_seed(1)
    found = OPERATORS[name](x.to(SIM))
    pairs = zip(expected, found, strict=True) if isinstance(expected, list | tuple) else [(expected, found)]
    assert all(same(one, other) for one, other in pairs)


def test_tensors_are_ordinary_ones() -> None:
    x = numbers(3, 4).to(SIM)
    assert (type(x), type(x + 1), type(nn.Parameter(x))) == (torch.Tensor, torch.Tensor, nn.Parameter)
    assert x.tolist() == numbers(3, 4).tolist()
    assert "device='sim:0'" in repr(x)


def test_views_share_storage_base_and_version() -> None:
    x = numbers(3, 4).to(SIM)
    view = x[1:].t()
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert view._base is x
    view.mul_(2)
    assert (x._version, view._version) == (1, 1)
    assert same(torch.cat((numbers(3, 4)[:1], numbers(3, 4)[1:] * 2)), x)


def test_an_operation_in_place_returns_its_argument() -> None:
    x, y = torch.zeros(2, device=SIM), torch.zeros(0, device=SIM)
    assert x.add_(1) is x
    assert torch.add(x, 1, out=y) is y


def test_a_change_in_place_of_a_saved_tensor_is_noticed() -> None:
    x = torch.ones(2, device=SIM, requires_grad=True)
    y = x * 1
    z = (y * y).sum()
    y[:1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("mix", [lambda x, y: x + y, lambda x, y: torch.cat([x, y]), lambda x, y: y.add_(x)])
def test_tensors_of_two_devices_do_not_mix(mix: Callable[..., Any]) -> None:
    x, y = torch.ones(2, device=SIM), torch.ones(2)
    with pytest.raises(RuntimeError, match="same device, found sim:0 and cpu"):
        mix(x, y)
    assert y.tolist() == [1, 1]


def test_a_storage_dies_with_its_last_tensor() -> None:
    x = torch.ones(2, device=SIM)
    weak, view = StorageWeakRef(x.untyped_storage()), x[:1]
    memory = weakref.ref(x.untyped_storage().block)  # type: ignore[attr-defined]
    del x
    assert not weak.expired()
    del view
    gc.collect()
    assert weak.expired()
    assert memory() is None


def test_a_storage_cannot_be_resized() -> None:
    x = torch.ones(2, device=SIM)
    with pytest.raises(RuntimeError, match="keeps its size"):
        x.untyped_storage().resize_(0)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: _loaded(x)])
def test_copies_are_on_the_device_and_apart(again: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = numbers(3, 4).to(SIM)[:, 1:]
    y = again(x)
    x.zero_()
    assert same(numbers(3, 4)[:, 1:], y)


def _loaded(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_tensors_move_and_compute(sparse: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = sparse(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    with Moves() as moves:
        there = x.to(SIM)
        back = (there + there).cpu()
    assert (there.device.type, there.layout, back.device.type) == (SIM, x.layout, "cpu")
    assert torch.equal(back.to_dense(), x.to_dense() * 2)
    assert [move.kind for move in moves.seen] == ["cpu→sim", "sim→cpu"]
    assert same((x @ x.to_dense()), there @ there.to_dense())


def test_sparse_gradients_accumulate() -> None:
    module = nn.Embedding(9, 4, sparse=True).to(SIM)
    for _ in range(2):
        module(torch.tensor([1, 3], device=SIM)).sum().backward()
    grad = module.weight.grad
    assert grad is not None
    assert (grad.is_sparse, grad.device.type, grad.to_dense().sum().item()) == (True, SIM, 16)


def test_memory_of_the_host_can_be_pinned() -> None:
    pinned = [torch.ones(2).pin_memory(), torch.empty(2, pin_memory=True), torch.zeros(2, pin_memory=True)]
    assert all(tensor.is_pinned() and tensor.view(-1).is_pinned() and tensor.device.type == "cpu" for tensor in pinned)
    assert not torch.empty(2).is_pinned()
    assert not torch.ones(2).to(SIM).is_pinned()
    with pytest.raises(RuntimeError, match="only"):
        torch.empty(2, pin_memory=True, device=SIM)


def test_autocast_casts() -> None:
    x = numbers(3, 4).to(SIM)
    with torch.autocast(SIM, dtype=torch.bfloat16):
        low, high = nn.functional.linear(x, x), x.exp()
    assert (low.dtype, high.dtype, nn.functional.linear(x, x).dtype) == (torch.bfloat16, torch.float32, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the CPU's is not the device's
        assert (x @ x.t()).dtype is torch.float32


def test_a_tensor_without_dimensions_is_copied_deeply() -> None:
    tensor = torch.tensor(3.0, device=SIM)
    copied = copy.deepcopy(tensor)
    assert (copied.item(), copied.device, copied.shape) == (3.0, tensor.device, tensor.shape)
