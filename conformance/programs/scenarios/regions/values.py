"""Programs about tensors that are rarely met, by their layout, dtype or values, and about very many of them."""

from __future__ import annotations

from typing import Any

import torch


def laid_out(checkpoint: Any, note: Any, device: str, *, kind: str, nested: bool) -> None:
    dtype = torch.complex128 if kind in ("conj", "neg") else torch.float64
    p = torch.randn(2, 3, 2, 2, dtype=dtype, device=device, requires_grad=True)
    note("leaves", (p,))
    seen = []

    def laid(t):
        return (
            t.contiguous(memory_format=torch.channels_last) if kind == "channels last"
            else t.permute(2, 0, 3, 1) if kind == "permuted"
            else t[:, 1:, ::2] if kind == "slice"
            else t[:, :, :1].expand(2, 3, 4, 2) if kind == "expanded"
            else t.reshape(-1).as_strided((3, 2, 2, 4), (4, 2, 1, 1)) if kind == "overlapping"
            else t.conj() if kind == "conj"
            else t.conj().imag
        )  # fmt: skip

    def look(name, t):
        seen.append((name, tuple(t.shape), t.stride(), t.is_conj(), t.is_neg()))

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t.sin()

        @staticmethod
        def backward(ctx, grad):
            (t,) = ctx.saved_tensors
            look("saved", t)
            return grad * t.cos().conj()

    def inner(h):
        look("inner", h)
        return laid(h.cos()) if kind in ("channels last", "permuted") else Reads.apply(h)

    def outer(h):
        look("outer", h)
        h = laid(h * 1)
        return Reads.apply(checkpoint(inner, h) if nested else inner(h))

    y = checkpoint(outer, laid(p * 1) if kind in ("channels last", "permuted") else p * 1)
    look("output", y)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    look("gradient", p.grad)
    note("what was seen", sorted(map(str, set(seen))))


def rare(checkpoint: Any, note: Any, device: str, *, kind: str, nested: bool) -> None:
    size = 300 if kind == "large" else 4
    dtype = {"complex128": torch.complex128, "float16": torch.float16}.get(kind, torch.float64)
    p = torch.randn(size, size, device=device).to(dtype).requires_grad_()
    note("leaves", (p,))
    index = torch.tensor([2, 0, 2, 3], dtype=torch.int32, device=device)

    def inner(h):
        return (
            h.index_select(0, index) if kind == "int32"
            else torch.where(h.detach() > 0, h, -2 * h) if kind == "bool"
            else h * torch.tensor([1, 2, 3, 255], dtype=torch.uint8, device=device) if kind == "uint8"
            else h * torch.tensor([float("nan"), float("inf"), -0.0, 1.0], dtype=dtype, device=device) if kind == "special"
            else h @ h
        )  # fmt: skip

    def outer(h):
        h = h.sin()
        return (checkpoint(inner, h) if nested else inner(h)).cos()

    y = checkpoint(outer, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def held(checkpoint: Any, note: Any, device: str, *, shape: tuple[int, ...], layout: str, holds: str, nested: bool) -> None:
    dtype = (
        torch.bfloat16 if holds == "bfloat16"
        else torch.float32 if holds in ("float32", "bool", "1e30", "1e-30")
        else torch.float64
    )  # fmt: skip
    p = torch.randn(shape, device=device).to(dtype).requires_grad_()
    note("leaves", (p,))

    def laid(t):
        return (
            t.permute(2, 0, 1) if layout == "permuted"
            else t[:, 1:, ::2] if layout == "sliced"
            else t[:, :, :1].expand(shape) if layout == "expanded"
            else t
        )  # fmt: skip

    other = laid(
        torch.rand(shape, device=device) > 0.5 if holds == "bool"
        else torch.randint(-(2**40), 2**40, shape, device=device) if holds == "int64"
        else torch.randint(2**15, 2**16, shape, device=device) if holds == "above 2**15"
        else torch.randint(2**24, 2**25, shape, device=device) if holds == "above 2**24"
        else 1e30 * torch.rand(shape, device=device) if holds == "1e30"
        else 1e-30 * torch.rand(shape, device=device) if holds == "1e-30"
        else torch.rand(shape, device=device).to(dtype)
    )  # fmt: skip

    def inner(h, other):
        return torch.where(~other, h, -2 * h) if holds == "bool" else h * -other

    def outer(h, other):
        h = h.sin()
        return checkpoint(inner, h, other) if nested else inner(h, other)

    y = checkpoint(outer, laid(p * 1), other)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def many(checkpoint: Any, note: Any, device: str, *, count: int, versions: int, passes: int) -> None:
    class SaveMany(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(*t.unbind(0))
            return t.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.stack(ctx.saved_tensors).cos()

    p = torch.linspace(0.1, 1.4, count, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        if versions:
            h = h * 2
            for _ in range(versions):
                h.mul_(0.9)
        return SaveMany.apply(h)

    y = checkpoint(f, p)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])


def changed(checkpoint: Any, note: Any, device: str, *, count: int, times: int, tries: int) -> None:
    from contextlib import suppress

    class SaveMany(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(*t.unbind(0))
            return t.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.stack(ctx.saved_tensors).cos()

    p = torch.linspace(0.1, 1.4, count, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    y = checkpoint(lambda h: SaveMany.apply(h).exp(), p)
    note("forward", y)
    with torch.no_grad():
        for _ in range(times):
            y.mul_(2)
    for _ in range(tries - 1):
        with suppress(RuntimeError):
            y.backward(torch.ones_like(y), retain_graph=True)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def special(checkpoint: Any, note: Any, device: str, *, passed: bool, before: int, times: int, nested: bool) -> None:
    class Kind(torch.Tensor):
        pass

    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    k = (q * 1).as_subclass(Kind)

    def inner(h, other):
        return ((other if passed else k) * h).sin().as_subclass(torch.Tensor)

    def outer(h, other):
        return (checkpoint(inner, h.cos(), other) if nested else inner(h, other)).exp()

    y = checkpoint(outer, p * 1, k if passed else q)
    note("forward", y)
    for turn in range(before):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad, q.grad])
    with torch.no_grad():
        for _ in range(times):
            k.mul_(2)
    y.backward(torch.ones_like(y))
    note("gradients", [p.grad, q.grad])


def of_nested_tensors(checkpoint: Any, note: Any, device: str, *, made: str, nested: bool) -> None:
    import warnings

    parts = [torch.randn(count, 2, device=device, requires_grad=True) for count in (2, 3, 1)]
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (*parts, w))
    offsets = torch.tensor([0, 2, 5, 6], device=device)

    def make(parts):
        if made in ("with offsets", "jagged, passed"):
            return torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strided ones are a prototype
            return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged if made == "jagged" else torch.strided)

    def inner(h):
        return torch.nn.functional.linear(h, w).sin()

    def outer(*given):
        h = given[0] if made.endswith("passed") else make(given)
        h = checkpoint(inner, h) if nested else inner(h)
        return torch.nested.to_padded_tensor(h, 0.0).exp()

    y = checkpoint(outer, make(parts)) if made.endswith("passed") else checkpoint(outer, *parts)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [leaf.grad for leaf in (*parts, w)])
