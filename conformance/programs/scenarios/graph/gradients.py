"""Programs about one hook for the gradients of several tensors."""

from __future__ import annotations

from typing import Any

import torch


def every(graph: Any, note: Any, device: str, *, tensors: Any, loss: str, request: Any, passes: int) -> None:
    p, q, unused = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    note("leaves", (p, q))
    a = p * q
    b = a.sin() + p
    c = a.exp()
    d = b * c
    named = {"p": p, "q": q, "unused": unused, "a": a, "b": b, "c": c, "d": d}
    total = d if loss == "d" else b * b if loss == "b" else c + b if loss == "c + b" else a * 2
    one = torch.ones_like(total)
    watched = [named[name] for name in tensors]
    gradients = torch.autograd.grad(total, watched, one, retain_graph=True, allow_unused=True)
    asked = [named[name] for name in request or ("p", "q")]

    def needed(tensor):  # for some input that is asked for
        found = torch.autograd.grad(tensor, asked, one, retain_graph=True, allow_unused=True)
        return any(grad is not None for grad in found)

    due = [grad if needed(tensor) else None for tensor, grad in zip(watched, gradients, strict=True)]
    calls = []
    note("expected calls", [due] * passes if any(grad is not None for grad in due) else [])
    note("expected error", None)
    graph.register_multi_grad_hook(watched, lambda grads: calls.append([g if g is None else g.clone() for g in grads]))
    try:
        for turn in range(passes):
            if request is None:
                total.backward(one, retain_graph=True)
            elif turn % 2:
                torch.autograd.grad(total, asked, one, retain_graph=True, allow_unused=True)
            else:
                total.backward(one, retain_graph=True, inputs=asked)
        note("seen error", None)
    except Exception as error:
        note("seen error", f"{type(error).__name__}: {error}")
    note("seen calls", calls)


def first(graph: Any, note: Any, device: str, *, chosen: Any, request: Any, passes: int) -> None:
    p = torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    chain = [p]
    for _ in range(4):
        chain.append(chain[-1].sin())
    total = chain[-1].sum()
    gradients = torch.autograd.grad(total, chain, retain_graph=True)
    calls = []
    graph.register_multi_grad_hook([chain[index] for index in chosen], lambda grad: calls.append(grad.clone()), mode="any")
    due = [index for index in chosen if index >= (request or 0)]
    note("expected calls", [gradients[max(due)]] * passes if due else [])
    for _ in range(passes):
        total.backward(retain_graph=True, inputs=None if request is None else [chain[request]])
    note("seen calls", calls)


def undefined(graph: Any, note: Any, device: str, *, order: Any, passes: int) -> None:
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, s, t):
            return s * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    a, b = p * 1, q * 1
    loss = First.apply(a, b).sum()
    tensors = [{"a": a, "b": b, "constant": p.detach()}[name] for name in order]
    calls = []
    graph.register_multi_grad_hook(tensors, lambda grads: calls.append([g if g is None else g.clone() for g in grads]))
    two = torch.full((2, 2), 2.0, device=device)
    note("expected calls", [[two if name == "a" else None for name in order]] * passes)
    for _ in range(passes):
        loss.backward(retain_graph=True)
    note("seen calls", calls)


def died(graph: Any, note: Any, device: str, *, watched: Any, dead: Any, asked: Any) -> None:
    p = torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    tensors = {name: p * 2 for name in "abc"}  # noqa: C420 - a tensor for each
    losses = {name: (tensor * number).sum() for number, (name, tensor) in enumerate(tensors.items(), 5)}  # saves nothing
    gradients = {name: torch.autograd.grad(losses[name], tensors[name], retain_graph=True)[0] for name in "abc"}
    note("expected calls", [[gradients[name] if name == one else None for name in watched] for one in asked if one in watched])
    calls = []
    hook = lambda grads: calls.append([g if g is None else g.clone() for g in grads])  # noqa: E731
    graph.register_multi_grad_hook([tensors[name] for name in watched], hook)
    for name in dead:
        del tensors[name]
    for name in asked:
        losses[name].backward(retain_graph=True)
    note("seen calls", calls)


def inside(graph: Any, note: Any, device: str, *, mode: str, where: str, other: Any) -> None:
    p, q, r = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    note("leaves", (p, q, r))
    tensors = [p, q, r]
    calls = []

    def one():  # the gradient of the last of these comes first
        with torch.enable_grad():
            return sum(tensors[i].exp().sum() for i in other)

    def hook(grads):
        calls.append([g if g is None else g.clone() for g in grads] if mode == "all" else grads.clone())
        if where == "hook" and len(calls) == 1:
            one().backward()

    late = q.cos()  # its gradient comes after p's and before q's
    loss = late.sum() + p.cos().sum()
    expected = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    inner = torch.autograd.grad(one(), tensors, allow_unused=True)
    due = [list(expected), list(inner)] if mode == "all" else [expected[0], inner[other[-1]]]
    note("expected calls", due if where == "hook" or mode == "any" else due[::-1])
    graph.register_multi_grad_hook(tensors, hook, mode=mode)
    if where == "between":
        late.register_hook(lambda grad: one().backward())
    loss.backward()
    note("seen calls", calls)


def threads(graph: Any, note: Any, device: str, *, mode: str, other: Any, first: bool) -> None:
    import threading

    p, q, r = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    note("leaves", (p, q, r))
    tensors = [p, q, r]
    late = q.cos()  # its gradient comes after p's and before q's
    loss = late.sum() + p.cos().sum()
    theirs = sum(tensors[i].exp().sum() for i in other)
    mine = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    there = torch.autograd.grad(theirs, tensors, retain_graph=True, allow_unused=True)
    note("expected calls", sorted([mine, there] if mode == "all" else [mine[0], there[other[-1]]], key=str))
    calls = []

    def hook(grads):
        calls.append(tuple(g if g is None else g.clone() for g in grads) if mode == "all" else grads.clone())

    if first:
        graph.register_multi_grad_hook([q, p], lambda grads: None)
    graph.register_multi_grad_hook(tensors, hook, mode=mode)
    thread = threading.Thread(target=theirs.backward, daemon=True)

    def meanwhile(grad):
        thread.start()
        thread.join(1)  # in vain where a device has one thread for all backwards

    late.register_hook(meanwhile)
    loss.backward()
    thread.join()
    note("seen calls", sorted(calls, key=str))


def moved(graph: Any, note: Any, device: str, *, change: str, watched: Any, passes: int) -> None:
    p = torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    named = {"a": p * 2, "b": p * 3}
    a = named["a"]
    total = a * 5 + named["b"] * 7  # saves nothing, so a may be changed
    edges = [torch.autograd.graph.get_gradient_edge(named[name]) for name in watched]
    calls = []
    hook = lambda grads: calls.append([g if g is None else g.clone() for g in grads])  # noqa: E731
    graph.register_multi_grad_hook([named[name] for name in watched], hook)
    if change == "detached":
        a.detach_().requires_grad_()
    else:
        a.add_(1)
    if change == "changed and read":
        total = total + a
    one = torch.ones_like(total)
    due = torch.autograd.grad(total, edges, one, retain_graph=True)
    calls.clear()
    note("expected calls", [list(due)] * passes)
    for _ in range(passes):
        total.backward(one, retain_graph=True)
    note("seen calls", calls)


def first_defined(graph: Any, note: Any, device: str, *, order: Any, passes: int) -> None:
    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, s, t):
            return s * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    tensors = {"a": p * 1, "b": q * 1}  # the gradient of b comes first, and is undefined
    loss = Second.apply(tensors["a"], tensors["b"]).sum()
    calls = []
    graph.register_multi_grad_hook([tensors[name] for name in order], lambda grad: calls.append(grad), mode="any")
    note("expected calls", [torch.full((2, 2), 2.0, device=device)] * passes)
    for _ in range(passes):
        loss.backward(retain_graph=True)
    note("seen calls", calls)
