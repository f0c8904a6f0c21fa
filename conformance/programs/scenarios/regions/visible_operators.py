"""Programs that watch what a checkpoint does besides calling the function: operators that others can see."""

from __future__ import annotations

from typing import Any

import torch


def operators(
    checkpoint: Any, note: Any, device: str, *, body: str, computed: bool, nested: bool, retain: bool, outputs: int, alone: bool
) -> None:
    from collections import Counter
    from contextlib import nullcontext

    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        supports_higher_order_operators = True  # a compiler makes some

        def __init__(self):
            super().__init__()
            self.seen = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen[str(func)] += 1
            return func(*args, **(kwargs or {}))

    x, w = (torch.rand(3, 3, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (x, w))

    def inner(h):
        if body == "hooked" and h.requires_grad:
            h.register_hook(lambda grad: grad * 2)
        h = (
            torch.nn.functional.layer_norm(h * w, (3,)) if body == "normed"
            else torch.nn.functional.dropout(h * w) if body == "dropped"
            else (h + 1).mul_(w).t().sin() if body == "in place"
            else torch.nn.functional.rrelu(h * w, training=True) if body == "noisy"
            else torch.nn.functional.linear(h[None].mT, w, torch.ones(3, device=device)).sin() if body == "biased"
            else (h * w).tanh()
        )  # fmt: skip
        return h + 1

    def run(through):
        def outer(h):
            h = h.cos()
            h = through(inner, h) if nested else inner(h)
            return h if outputs == 1 else (h, h.sin())

        x.grad = w.grad = None
        with Log() as forward:
            ys = through(outer, x * 1 if computed else x)
            ys = [ys] if outputs == 1 else ys
        backward = Log()
        with nullcontext() if alone else backward:
            if retain:
                ys[0].backward(torch.ones_like(ys[0]), retain_graph=True)
            ys[-1].backward(torch.ones_like(ys[-1]))
        return forward.seen, backward.seen

    def hooked(function, *args):  # unpacking what any hook brings back takes an operator of autograd's own
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return function(*args)

    (due, _), (_, due_in_backward) = run(lambda function, *args: function(*args)), run(hooked)
    forward, backward = run(checkpoint)
    note("expected operators of nobody in forward", [])
    note("seen operators of nobody in forward", sorted((forward - due).items()))
    again = backward - due_in_backward
    note("expected operators of nobody in backward", [])
    note("seen operators of nobody in backward", sorted(name for name in again if name not in due or "detach" in name))
    note("gradients 0", [x.grad, w.grad])


def kept_by_a_policy(checkpoint: Any, note: Any, device: str, *, products: int, hooks: bool, nested: bool) -> None:
    import warnings
    from contextlib import nullcontext

    x, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (x, w))
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return (tensor * 2,)

    def inner(h):
        for _ in range(products):
            h = (h @ w).sin()
        return h

    def outer(h):
        h = h.cos()
        return checkpoint(inner, h) if nested else inner(h)

    around = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0] / 2) if hooks else nullcontext()
    with warnings.catch_warnings(record=True) as warned, around:
        warnings.simplefilter("always")
        y = checkpoint(outer, x * 1)
    y.backward(torch.ones_like(y))
    note("seen number of tensors that hooks get", len(packed))
    note("seen warnings", [one.category.__name__ for one in warned])
    note("seen gradients", [x.grad, w.grad])
    y = x.cos()
    for _ in range(products):
        y = (y @ w).sin()
    note("expected gradients", list(torch.autograd.grad(y, (x, w), torch.ones_like(y))))
    policies = 2 if nested else 1  # of which each keeps the product
    note("expected number of tensors that hooks get", 1 + policies * products if hooks else 0)
    note("expected warnings", [])
    note("gradients 0", [x.grad, w.grad])
