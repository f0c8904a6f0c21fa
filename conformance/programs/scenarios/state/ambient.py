"""Programs that look at, or change, what a function can see besides its arguments."""

from __future__ import annotations

from typing import Any

import torch


def grad_mode(checkpoint: Any, note: Any, device: str, *, outer_mode: str, backward_mode: str, nested: bool) -> None:
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    seen = []

    def inner(h):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), h.requires_grad))
        with torch.no_grad():
            scale = h.cos()
        return h.sin() * scale

    def outer(h):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), h.requires_grad))
        return (checkpoint(inner, h.exp()) if nested else inner(h)).tanh()

    modes = {"no_grad": torch.no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode, "as is": nullcontext}
    with modes[outer_mode](), torch.enable_grad():
        y = checkpoint(outer, p * 1)
    note("forward", y)
    with modes[backward_mode]():
        getattr(y.grad_fn, "_saved_result", None)  # this recomputes too, and backward() puts its grad mode back in any case
        note("grad mode after reading", torch.is_grad_enabled())
        y.backward(torch.ones_like(y))
        note("grad mode after backward", torch.is_grad_enabled())
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(set(seen))))


def without_grad(checkpoint: Any, note: Any, device: str, *, mode: str, nested: bool, flag: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=flag)
    note("leaves", (p,))

    def inner(h):
        return h.sin() * p

    def outer(h):
        return checkpoint(inner, h.exp()) if nested else inner(h)

    with getattr(torch, mode)():
        y = checkpoint(outer, p * 1)
        note("is inference", y.is_inference())
    note("forward", y)


def arguments(checkpoint: Any, note: Any, device: str, *, leaf: bool, nested: bool, view: bool) -> None:
    class Kind(torch.Tensor):
        pass

    p = torch.nn.Parameter(torch.randn(2, 2, device=device))
    q = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, q))
    x = q if leaf else q.t() * 2 if view else q * 2
    constant = torch.ones(2, 2, device=device)
    special = torch.ones(2, 2, device=device).as_subclass(Kind)
    seen = []

    def look(*tensors):
        facts = [(type(t).__name__, t.dtype, t.requires_grad, t.is_leaf, t.is_contiguous()) for t in tensors]
        same = [[one is other for one in tensors] for other in tensors]
        seen.append(str((facts, same)))

    def inner(a, b, c, d, e):
        look(a, b, c, d, e)
        return (a * b).sin() * c * d.as_subclass(torch.Tensor) * e

    def outer(a, b, c, d, e):
        look(a, b, c, d, e)
        y = checkpoint(inner, a, b, c, d, e) if nested else inner(a, b, c, d, e)
        return y.cos()

    y = checkpoint(outer, x, x, p, special, constant)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, q.grad])
    note("what the functions saw", str(sorted(set(seen))))


def attributes(checkpoint: Any, note: Any, device: str, *, kind: str, tensor: bool, nested: bool) -> None:
    class Kind(torch.Tensor):
        pass

    p = torch.nn.Parameter(torch.randn(2, 2, device=device))
    q = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, q))
    x = p if kind == "parameter" else torch.randn(2, 2, device=device) if kind == "leaf" else p * 2
    x = x.as_subclass(Kind) if kind == "subclass" else x
    x.scale = q if tensor else 3.0
    seen = []

    def inner(a):
        scale = getattr(a, "scale", None)
        seen.append((type(a).__name__, type(scale).__name__ if tensor else scale))
        h = a.as_subclass(torch.Tensor) if kind == "subclass" else a
        return (h * p).sin() * getattr(a, "scale", 1.0)

    def outer(a):
        scale = getattr(a, "scale", None)
        seen.append((type(a).__name__, type(scale).__name__ if tensor else scale))
        y = (checkpoint(inner, a) if nested else inner(a)).cos()
        y.made = 2.0
        return y

    y = checkpoint(outer, x)
    note("forward", y)
    note("attribute of the output", getattr(y, "made", None))
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, q.grad])
    note("what the functions saw", str(sorted(map(str, set(seen)))))


def operators_of_subclasses(
    checkpoint: Any, note: Any, device: str, *, forward: bool, backward: bool, nested: bool, passes: int
) -> None:
    from contextlib import nullcontext

    class Doubling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            value = super().__torch_function__(func, types, args, kwargs or {})
            return super().__torch_function__(torch.Tensor.mul, types, (value, 2)) if func is torch.Tensor.sin else value

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return h.sin() * p

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)).cos()

    with nullcontext() if forward else torch._C.DisableTorchFunctionSubclass():
        y = checkpoint(outer, (p * 1).as_subclass(Doubling)).as_subclass(torch.Tensor)
    note("forward", y)
    loss = y.sum().as_subclass(torch.Tensor if backward else Doubling)
    for number in range(passes):
        loss.backward(retain_graph=number + 1 < passes)
        note(f"gradients {number}", [p.grad])


def device_context(
    checkpoint: Any, note: Any, device: str, *, around: str, forward: str, backward: str, default: bool, nested: bool
) -> None:
    from contextlib import nullcontext

    from torch.overrides import TorchFunctionMode

    class Above(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    seen = []

    def f(h):
        seen.append(torch.empty(1).device.type)
        if nested:
            h = checkpoint(lambda a: seen.append(torch.zeros(1).device.type) or a.sin(), h.exp())
        return h * torch.ones(2, 2, device=device).cos()

    x = p * 1
    try:
        if default:
            torch.set_default_device(forward)
        with (
            torch.device(around) if around in ("cpu", "meta") else nullcontext(),
            nullcontext() if default or forward is None else torch.device(forward),
            Above() if around == "mode" else nullcontext(),
        ):
            y = checkpoint(f, x)
        note("forward", y)
        ones = torch.ones_like(y)
        if default:
            torch.set_default_device(backward)
        with nullcontext() if default or backward is None else torch.device(backward):
            getattr(y.grad_fn, "_saved_other", None)  # this recomputes too, and backward() suspends contexts around it
            y.backward(ones)
            note("default device after backward", torch.empty(1).device.type)
    finally:
        torch.set_default_device(None)
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(set(seen))))


def default_dtype(
    checkpoint: Any, note: Any, device: str, *, before: bool, forward: str, backward: str, passes: int, nested: bool
) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True, dtype=torch.float32)
    note("leaves", (p,))
    seen = []

    def inner(h):
        seen.append(torch.get_default_dtype())
        return h * torch.full((2, 2), 0.1, device=device)

    def outer(h):
        seen.append(torch.get_default_dtype())
        return (checkpoint(inner, h) if nested else inner(h)).sin()

    default = torch.get_default_dtype()
    try:
        earlier = checkpoint(outer, p * 1) if before else None
        note("a call before", earlier)
        torch.set_default_dtype(getattr(torch, forward))
        y = checkpoint(outer, p * 1)
        note("forward", y)
        torch.set_default_dtype(getattr(torch, backward))
        for turn in range(passes):
            y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note("default dtype after backward", torch.get_default_dtype())
    finally:
        torch.set_default_dtype(default)
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(map(str, set(seen)))))


def deterministic(
    checkpoint: Any, note: Any, device: str, *, forward: str, backward: str, passes: int, nested: bool
) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def flags():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def switch(to):
        torch.use_deterministic_algorithms(to != "off", warn_only=to == "warn")

    seen = []

    def inner(h):
        seen.append(flags())
        return h.sin()

    def outer(h):
        seen.append(flags())
        return (checkpoint(inner, h) if nested else inner(h)).exp()

    try:
        switch(forward)
        y = checkpoint(outer, p * 1)
        note("forward", y)
        switch(backward)
        for turn in range(passes):
            y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note("flags after backward", flags())
    finally:
        switch("off")
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(set(seen))))


def error(checkpoint: Any, note: Any, device: str, *, ambient: str, error: str, nested: bool) -> None:
    from contextlib import nullcontext, suppress

    kind = {"RuntimeError": RuntimeError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    autocast = torch.autocast(torch.device(device).type, dtype=torch.bfloat16, cache_enabled=False)
    contexts = {"autocast": autocast, "no_grad": torch.no_grad(), "device": torch.device("meta"), "none": nullcontext()}

    def state():
        backend = torch.device(device).type
        cast = torch.is_autocast_enabled(backend), torch.get_autocast_dtype(backend), torch.is_autocast_cache_enabled()
        return (
            *cast,
            torch.is_grad_enabled(),
            torch.empty(0).device.type,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
        )

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    failing = []

    def inner(h):
        h = h.sin()
        if failing:
            raise kind("program")
        return h.cos()

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)).exp()

    try:
        with contexts[ambient], nullcontext() if ambient == "none" else torch.enable_grad():
            y = checkpoint(outer, p * 1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        with nullcontext() if ambient != "none" else autocast:
            before = state()
            failing.append(True)
            with suppress(kind):
                y.backward(torch.ones_like(y), retain_graph=True)
            note("state after the error", state())
            note("nothing moved", before == state())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    failing.clear()
    p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
