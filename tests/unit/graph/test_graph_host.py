"""Saved tensors that live elsewhere: how they come back, what is copied, and in which order on an accelerator."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.simulated_device.device import Moves, second
from impls.graph import save_on_cpu, saved_on, saved_tensors_hooks
from impls.graph.save_on_device import _MovedTensor

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads


@pytest.fixture(autouse=True)
def no_hazards() -> Iterator[None]:
    """No copy races with another, or with the memory it uses."""
    module = torch.get_device_module(SIM)
    module.forget_hazards()
    yield
    assert module.hazards() == ()


class _Save(torch.autograd.Function):
    """Saves tensors, and hands out what comes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, back: list[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.back = back
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: each time, everything is unpacked
        ctx.back.extend(saved)
        return grads[0], None, *(None for _ in saved)


def _trip(context: saved_tensors_hooks, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], Moves]:
    back: list[torch.Tensor] = []
    with Moves() as moves:
        with context:
            y = _Save.apply(torch.ones(1, requires_grad=True), back, *tensors)
        y.sum().backward()
    return back, moves


def _bits(tensor: torch.Tensor) -> list[int]:
    dense: Any = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.view(torch.uint8).flatten().tolist() if dense.dim() else dense.reshape(1).view(torch.uint8).tolist()


_BASE = torch.arange(48.0).reshape(2, 4, 6)
_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "with gaps": lambda t: t[:, ::2, 1:3],
    "a column": lambda t: t[:, :, 0],
    "an offset": lambda t: t.flatten()[5:9],
    "expanded": lambda t: t[:, :1, :1].expand(2, 5, 300),
    "expanded and transposed": lambda t: t[:, :1].expand(2, 3, 6).permute(2, 0, 1),
    "channels last": lambda t: t.reshape(2, 3, 4, 2).contiguous(memory_format=torch.channels_last),
    "overlapping": lambda t: t.flatten().unfold(0, 5, 2),
    "overlapping with gaps": lambda t: t.flatten().as_strided((2, 2), (3, 3), 1),
    "one element": lambda t: t[0, 0, 3],
    "empty": lambda t: t[:, :0],
    "conjugated": lambda t: torch.complex(t, -t)[:, 1].conj(),
    "negated": lambda t: torch.complex(t, t)[:, 1].conj().imag,
    "bool": lambda t: t > 20,
    "int64": lambda t: t.long(),
    "bfloat16": lambda t: t.bfloat16(),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "nan and minus zero": lambda t: torch.stack([t.flatten()[0] / 0, -t.flatten()[0]]),
}


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("form", _FORMS)
def test_a_strided_tensor_comes_back_as_it_was(form: str, pin: bool) -> None:
    tensor = _FORMS[form](_BASE.to(SIM))
    assert (tensor.is_conj(), tensor.is_neg()) == (form == "conjugated", form == "negated")
    (back,), moves = _trip(saved_on("cpu", pin_memory=pin), tensor)
    assert (back.device, back.dtype, back.stride()) == (tensor.device, tensor.dtype, tensor.stride())
    assert (back.is_conj(), back.is_neg(), back._is_view()) == (tensor.is_conj(), tensor.is_neg(), False)
    assert _bits(back) == _bits(tensor)
    assert set(moves.totals) == {"sim→cpu", "cpu→sim"}


@pytest.mark.parametrize(("form", "elements"), [("expanded", 2), ("with gaps", 8), ("a column", 8), ("overlapping", 47)])
def test_no_more_is_copied_than_a_tensor_needs(form: str, elements: int) -> None:
    _, moves = _trip(save_on_cpu(), _FORMS[form](_BASE.to(SIM)))
    assert moves.totals == {"sim→cpu": 4 * elements, "cpu→sim": 4 * elements}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("make", [lambda t: t.to_sparse(), lambda t: t.to_sparse_csr(), lambda t: t.to_sparse_bsr((2, 2))])
def test_sparse_tensors_are_copied_by_their_own_operators(make: Any) -> None:
    tensor = make(torch.eye(4))
    moved = _MovedTensor(tensor, None, torch.device("cpu"), True)  # the simulated device has no sparse tensors
    assert moved.copy.values().data_ptr() != tensor.values().data_ptr() if tensor.layout != torch.sparse_coo else True
    assert moved.move_back().layout is tensor.layout
    assert moved.move_back().to_dense().equal(torch.eye(4))


class _Tagged(torch.Tensor):
    """A subclass whose operators are the ordinary ones."""


def test_a_subclass_comes_back_as_one() -> None:
    (back,), moves = _trip(save_on_cpu(pin_memory=True, device_type=SIM), _BASE.to(SIM).as_subclass(_Tagged))
    assert type(back) is _Tagged
    assert back.device.type == SIM
    assert moves.totals == {"sim→cpu": 192, "cpu→sim": 192}
    assert _bits(back) == _bits(_BASE)


def test_a_wrapper_subclass_comes_back_as_one() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    (back,), moves = _trip(save_on_cpu(), TwoTensor(_BASE.to(SIM), _BASE.to(SIM) + 1))
    assert type(back) is TwoTensor
    assert (back.a.device.type, _bits(back.b)) == (SIM, _bits(_BASE + 1))
    assert moves.seen


def test_what_is_on_the_device_already_is_kept_as_it_is() -> None:
    tensor = torch.ones(3)
    (back,), moves = _trip(save_on_cpu(), tensor)
    assert back.data_ptr() == tensor.data_ptr()
    assert moves.seen == []


def test_a_tensor_that_stays_is_refused_when_it_was_changed() -> None:
    for context, device in ((save_on_cpu(), "cpu"), (saved_on(SIM), SIM), (save_on_cpu(min_bytes=13), SIM)):
        a = torch.ones(3, requires_grad=True, device=device) * 1
        with context:
            y: Any = a.sin()
        assert y.grad_fn._saved_self.equal(a)
        a.detach().mul_(5)
        # Read here and not in a backward: with an error set, torch's device guard for backends in Python ends the process.
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _ = y.grad_fn._saved_self


def test_a_result_that_stays_does_not_own_itself() -> None:
    with save_on_cpu():
        y = torch.ones(3, requires_grad=True).exp()
    memory = StorageWeakRef(y.untyped_storage())
    del y
    gc.collect()
    assert memory.expired()


@pytest.mark.parametrize("pin", [False, True])  # pinned, the change comes before the copy on its side stream has had its turn
def test_a_tensor_that_was_moved_may_be_changed(pin: bool) -> None:
    x = torch.ones(3, requires_grad=True, device=SIM)
    a = x * 1
    with save_on_cpu(pin_memory=pin, device_type=SIM):
        y = a * a
    a.detach().mul_(5)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_tensors_below_min_bytes_stay() -> None:
    _, moves = _trip(
        saved_on("cpu", min_bytes=12), torch.ones(2).to(SIM), torch.ones(3).to(SIM), torch.ones(1).to(SIM).expand(9)
    )
    assert moves.totals == {"sim→cpu": 12, "cpu→sim": 12}


def test_one_tensor_saved_several_times_is_copied_once() -> None:
    a = torch.ones(3, requires_grad=True, device=SIM) * 1
    with save_on_cpu(), Moves() as moves:
        _ = (a * a).sum() + a.sin().sum() + a.view(1, 3).cos().sum() + a.view(1, 3).sin().sum()
    assert moves.totals["sim→cpu"] == 12 + 12  # as it is, and as (1, 3)


def test_a_tensor_that_was_changed_in_between_is_copied_again() -> None:
    x = torch.ones(3, requires_grad=True, device=SIM)
    a = x * 1
    with save_on_cpu():
        first = a * a
        a.detach().mul_(5)
        second_ = a * a
    (first + second_).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12.0] * 3


def test_an_alias_with_its_own_version_counter_is_not_taken_for_the_tensor() -> None:
    x, base = torch.ones(3, requires_grad=True, device=SIM), torch.ones(3, device=SIM)
    with save_on_cpu():
        y = x * base.data
        base.add_(1)
        y = y + x * base.data
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 3


def test_copies_live_as_long_as_the_graph_needs_them() -> None:
    context = save_on_cpu()
    mover: Any = context.pack_hook.__self__  # type: ignore[attr-defined]
    x = torch.ones(3, requires_grad=True, device=SIM)
    with context:
        y = (x * 1).sin().sum()  # of a result, as leaves are copied each time
        assert len(mover.copies) == 1
        y.backward()
        assert len(mover.copies) == 0
        (x * 2).exp()
        gc.collect()
        assert len(mover.copies) == 0


def test_the_host_can_save_on_an_accelerator() -> None:
    tensor = _BASE[:, ::2]
    (back,), moves = _trip(saved_on(SIM, pin_memory=True), tensor)
    assert moves.totals == {"cpu→sim": 96, "sim→cpu": 96}
    assert (back.device.type, back.stride()) == ("cpu", tensor.stride())
    assert back.equal(tensor)


def test_meta_tensors_stay() -> None:
    tensor = torch.ones(3, device="meta")
    assert save_on_cpu().pack_hook(tensor) is tensor


def test_both_contexts_are_saved_tensors_hooks_and_can_be_used_again() -> None:
    for context in (save_on_cpu(), saved_on("cpu")):
        assert isinstance(context, saved_tensors_hooks)
        for _ in range(2):
            with context:
                torch.ones(3, requires_grad=True).exp().sum().backward()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: saved_on(None), TypeError, "device is None"),  # type: ignore[arg-type]
        (lambda: saved_on("nowhere"), ValueError, "device is 'nowhere'"),
        (lambda: saved_on("meta"), ValueError, "device is meta"),
        (lambda: saved_on("cpu", pin_memory=1), TypeError, "pin_memory is 1"),  # type: ignore[arg-type]
        (lambda: saved_on("cpu", min_bytes=1.5), TypeError, "min_bytes is 1.5"),  # type: ignore[arg-type]
        (lambda: saved_on("cpu", min_bytes=True), TypeError, "min_bytes is True"),
        (lambda: saved_on("cpu", min_bytes=-1), ValueError, "min_bytes is -1"),
        (lambda: save_on_cpu(pin_memory="yes"), TypeError, "pin_memory is 'yes'"),  # type: ignore[arg-type]
        (lambda: save_on_cpu(device_type=3), TypeError, "device_type is 3"),  # type: ignore[arg-type]
        (lambda: save_on_cpu(device_type="nowhere"), ValueError, "device_type is 'nowhere'"),
        (lambda: save_on_cpu(device_type="cuda:1"), ValueError, "device_type is 'cuda:1'"),
    ],
)
def test_a_wrong_argument_is_named(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
