"""Programs about what hooks keep of a saved tensor: when it is changed afterwards, and when it is no longer needed."""

from __future__ import annotations

from typing import Any

import torch


def changed(graph: Any, note: Any, device: str, *, hooks: str, saved: str, change: str) -> None:
    class SaveBoth(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            result = t * 2
            ctx.save_for_backward(t, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            t, result = ctx.saved_tensors
            return grad * t * result

    pack, unpack = (
        (lambda t: t, lambda t: t) if hooks == "identity"
        else (lambda t: t.detach(), lambda t: t) if hooks == "detach"
        else (lambda t: t.detach().view(-1), lambda t: t.view(2, 2)) if hooks == "view"
        else (lambda t: t, lambda t: t.detach()) if hooks == "detached late"
        else (lambda t: t, lambda t: t.clone()) if hooks == "copied late"
        else (lambda t: t.detach(), lambda t: t.clone()) if hooks == "detached and copied late"
        else (lambda t: {"kept": t}, lambda box: box["kept"])
    )
    device = "cpu" if hooks == "save_on_cpu" else device
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x = p * 1
    with graph.save_on_cpu() if hooks == "save_on_cpu" else graph.saved_tensors_hooks(pack, unpack):
        y = torch.sin(x) if saved == "input" else torch.exp(x) if saved == "result" else SaveBoth.apply(x)
    t = (y if "result" in saved else x).detach()
    (
        t.mul_(2) if change == "method"
        else t[0].zero_() if change == "part"
        else t.__setitem__((0, 0), 3.0) if change == "item"
        else torch.add(t, 1, out=t) if change == "out"
        else torch._foreach_mul_([t], 2.0) if change == "foreach"
        else t.copy_(torch.ones_like(t)) if change == "copy"
        else None
    )
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def copied(graph: Any, note: Any, device: str, *, hooks: str, operator: str, change: str) -> None:
    import io

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

    def save(t):
        file = io.BytesIO()
        torch.save(t.detach(), file)
        return file.getvalue()

    pack, unpack = (
        (lambda t: t.detach().clone(), lambda t: t) if hooks == "clone"
        else (lambda t: [t.detach().clone()], lambda box: box[0].clone()) if hooks == "clone late"
        else (save, lambda data: torch.load(io.BytesIO(data))) if hooks == "bytes"
        else (lambda t: (t.tolist(), t.dtype), lambda packed: torch.tensor(packed[0], dtype=packed[1], device=device))
    )
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    function = (
        torch.sin if operator == "sin"
        else torch.exp if operator == "exp"
        else torch.square if operator == "square"
        else Save.apply
    )
    note("expected gradients", [torch.autograd.grad(function(p * 1).sum(), p)] * 2)
    x = p * 1
    with graph.saved_tensors_hooks(pack, unpack):
        y = function(x)
    loss = y.sum()
    for t in (x, y):
        t.detach().mul_(2) if change == "method" else t.detach().add_(1) if change == "add" else t.detach().zero_()
    note("seen gradients", [torch.autograd.grad(loss, p, retain_graph=turn == 0) for turn in range(2)])


def freed(graph: Any, note: Any, device: str, *, hooks: str, operators: Any, leaf: bool, steps: Any) -> None:
    from collections import namedtuple

    Named = namedtuple("Named", "number kept")

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            result = t.exp()
            ctx.save_for_backward(t, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[1]

    context = (
        graph.saved_tensors_hooks(lambda t: t, lambda t: t) if hooks == "identity"
        else graph.saved_tensors_hooks(lambda t: (t, 1), lambda packed: packed[0]) if hooks == "tuple"
        else graph.saved_tensors_hooks(lambda t: (1, (t,)), lambda packed: packed[1][0]) if hooks == "deep tuple"
        else graph.saved_tensors_hooks(lambda t: Named(1, t), lambda packed: packed.kept) if hooks == "named tuple"
        else graph.saved_tensors_hooks(lambda t: t.view(-1), lambda t: t.view(2, 2)) if hooks == "view"
        else graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t) if hooks == "detach"
        else graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t) if hooks == "clone"
        else graph.save_on_cpu() if hooks == "save_on_cpu"
        else graph.save_on_cpu(pin_memory=True)
    )
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    with context:
        y = p if leaf else p * 1
        for name in operators:
            y = Save.apply(y) if name == "function" else y @ y if name == "matmul" else getattr(torch, name)(y)
    for number, step in enumerate(steps):
        if step == "backward":
            y.backward(torch.ones_like(y), retain_graph=True)
            note(f"gradients {number}", [p.grad])
        elif step == "grad":
            note(f"grad {number}", torch.autograd.grad(y, p, torch.ones_like(y), retain_graph=True))
        elif step == "create-graph":
            note(f"first {number}", torch.autograd.grad(y, p, torch.ones_like(y), create_graph=True))
        elif step == "read":
            note(f"read {number}", [getattr(y.grad_fn, name) is None for name in dir(y.grad_fn) if name.startswith("_saved_")])
    del y
    note("empty", [])


def grows(graph: Any, note: Any, device: str, *, hooks: str, retained: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    kept = graph.save_on_cpu() if hooks == "save_on_cpu" else graph.saved_tensors_hooks(lambda t: t, lambda t: t)

    def forward():
        with kept:
            return (p.exp() * p).tanh()

    y = forward()
    for _ in range(8):
        y = y if retained else forward()
        y.backward(torch.ones_like(y), retain_graph=retained)
        note("gradients", [p.grad])
        p.grad = None
        note("step")


def deep(graph: Any, note: Any, device: str, *, hooks: str, operators: int) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def step():
        with graph.save_on_cpu() if hooks == "save_on_cpu" else graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = p
            for _ in range(operators):
                y = y.sin() if hooks == "identity" else y.exp().log()
        y.sum().backward()

    before = threading.stack_size(2**19)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    threading.stack_size(before)
    note("gradients 0", [p.grad])
