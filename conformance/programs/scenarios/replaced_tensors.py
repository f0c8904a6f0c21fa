"""Programs in which what a function reads is replaced between forward and backward, or looks as if it were."""

from __future__ import annotations

from typing import Any

import torch


def late(checkpoint: Any, note: Any, device: str, *, kind: str, through: str, regions: int, nested: bool) -> None:
    import functools

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    stacked = torch.randn(regions, 2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p, stacked))
    if kind == "view":
        ws = stacked
    elif kind == "result":
        ws = [w * 1 for w in stacked]
    elif kind == "constant":
        ws = [w.detach() * 1 for w in stacked]
    elif kind == "transposed":
        ws = [stacked[0].t() if i % 2 else stacked[0] for i in range(regions)]
    elif kind == "imaginary part":
        c = torch.complex(stacked[0], stacked[1]).detach()
        ws = [c.conj().imag if i % 2 else c.imag for i in range(regions)]
    else:
        ws = [torch.nn.Linear(2, 2).to(device, torch.float64) for _ in range(regions)]
    q = p
    for w in ws:
        if through == "lambda":
            q = checkpoint(lambda q: w(q) if kind == "module" else q * w, q)
        elif through == "function":

            def block(q):
                return w(q) if kind == "module" else q * w

            q = checkpoint(lambda q: checkpoint(block, q.sin()) if nested else block(q), q)
        elif through == "partial":
            q = checkpoint(functools.partial(lambda two, q: (w(q) if kind == "module" else q * w) * two, 2.0), q)
        elif through == "output":
            q, _ = checkpoint(lambda q: (w(q), w.weight) if kind == "module" else (q * w, w), q)
        else:
            q = checkpoint(lambda: w(q) if kind == "module" else q * w)
    note("forward", q)
    q.backward(torch.ones_like(q))
    note("gradients 0", [p.grad, stacked.grad])


def changed(
    checkpoint: Any, note: Any, device: str, *, how: str, saved: str, passed: bool, after: bool, nested: bool
) -> None:
    def values():
        return torch.randn(2, 2, device=device, dtype=torch.float64)

    m = torch.nn.Linear(2, 2).to(device, torch.float64)
    m.weight = torch.nn.Parameter(values())
    m.register_buffer("table", values())
    p, v = values().requires_grad_(), values().requires_grad_()
    note("leaves", (p, v))

    def block(h, *given):
        if given:
            return (h * given[0]).sin()
        h = m(h) if saved == "weight" else h * (m.table[:1] if saved == "part of a buffer" else m.table)
        return h.sin()

    def outer(h, *given):
        h = checkpoint(block, h.cos(), *given) if nested else block(h, *given)
        return h.tanh() * v if after else h

    y = checkpoint(outer, p, *([m.weight if saved == "weight" else m.table] if passed else []))
    note("forward", y)
    name = "weight" if saved == "weight" else "table"
    with torch.no_grad():
        if how == "attribute":
            setattr(m, name, torch.nn.Parameter(values()) if saved == "weight" else values())
        elif how == "data":
            getattr(m, name).data = values()
        elif how == "data twice":
            for _ in range(2):
                getattr(m, name).data = values()
        else:
            average = values()
            getattr(m, name).data, average.data = average.data, getattr(m, name).data
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, v.grad])


def called(checkpoint: Any, note: Any, device: str, *, computed: bool, saved: str, stacked: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2).to(device, torch.float64)
            self.linear.weight = torch.nn.Parameter(torch.randn(2, 2, device=device, dtype=torch.float64))

        def block(self, h):
            return (self.linear(h) if saved == "product" else h * self.linear.weight).tanh()

        def forward(self, h):
            return checkpoint(self.block, h)

    m = Model()
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    fast = {name: torch.randn_like(one).requires_grad_() for name, one in m.named_parameters()}
    note("leaves", (p, *fast.values()))
    used = fast
    if computed:
        used = {name: one[None].expand(2, *one.shape)[0] if stacked else one * 2 for name, one in fast.items()}
    y = torch.func.functional_call(m, used, (p * 1,))
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *[one.grad for one in fast.values()]])


def called_with_copies(checkpoint: Any, note: Any, device: str, *, leaf: bool, initialised: bool, twice: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(2, device=device, dtype=torch.float64))
            if initialised:  # in place, which counts as a change
                torch.nn.init.normal_(self.weight)

        def forward(self, h):
            return checkpoint(lambda h: h * self.weight * self.weight, h)

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    m = Model()
    w = m.weight.detach().clone().requires_grad_() if leaf else m.weight.clone()
    note("leaves", (p, w) if leaf else (p, m.weight))
    y = torch.func.functional_call(m, {"weight": w}, (p * 1,))
    if twice:
        first = torch.autograd.grad(y, [p, w], torch.ones_like(y), create_graph=True)
        note("first", first)
        y = first[0] * first[1]
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad if leaf else m.weight.grad])


def alike(checkpoint: Any, note: Any, device: str, *, kind: str, nested: bool) -> None:
    def values():
        return torch.randn(2, 2, device=device, dtype=torch.float64)

    p, w = values().requires_grad_(), torch.nn.Parameter(values())
    note("leaves", (p, w))
    kept = {"table": values(), "all": [], "full": w.data}

    def inner(h):
        if kind == "a mask that is kept":
            kept["mask"] = (h.detach() > 0).double()
            return h * kept["mask"]
        if kind == "masks that are kept":
            kept["all"].append((h.detach() > 0).double())
            return h * kept["all"][-1]
        if kind == "a cache":
            return h * kept["table"][:1]
        if kind == "data for a while":
            w.data = kept["full"].clone()
            h = (h * w[:]).sin()
            w.data = kept["full"] * 0
            return h
        return (h @ w).sin()

    def outer(h):
        return (checkpoint(inner, h.cos()) if nested else inner(h)).tanh()

    y = checkpoint(outer, p)
    note("forward", y)
    if kind == "a cache":
        kept["table"] = torch.cat((kept["table"], kept["table"]))
    if kind == "moved and back":
        w.data = w.data.float().double() * 0 + w.data
    if kind == "freed and filled":
        full, memory = w.detach().clone(), w.untyped_storage()
        memory.resize_(0)
        memory.resize_(full.untyped_storage().nbytes())
        w.data.copy_(full)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad])


def stored(checkpoint: Any, note: Any, device: str, *, flat: bool, nested: bool) -> None:
    def values():
        return torch.randn(2, 2, device=device, dtype=torch.float64)

    p, w = values().requires_grad_(), torch.nn.Parameter(values())
    note("leaves", (p, w))
    kept = {"full": w.data, "bits": values().view(torch.uint8).view(torch.bits8), "runs": 0}

    class WithBits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, bits):
            ctx.save_for_backward(h, bits)
            return h.sin()

        @staticmethod
        def backward(ctx, grad):
            h, bits = ctx.saved_tensors
            return grad * h.cos() * bits.view(torch.uint8)[:, :2], None

    def inner(h):
        if not flat:
            return WithBits.apply(h @ w, kept["bits"])
        w.data = kept["full"].clone()
        h = (h @ w).sin()
        kept["runs"] += 1
        if kept["runs"] == 1:
            w.data = w.data.view(-1)
        return h

    def outer(h):
        return (checkpoint(inner, h.cos()) if nested else inner(h)).tanh()

    y = checkpoint(outer, p)
    note("forward", y)
    kept["bits"] = kept["bits"].clone()
    w.data = w.data.view(2, 2)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad])


def cached(checkpoint: Any, note: Any, device: str, *, layers: int, calls: int, nested: bool) -> None:
    from torch.nn.utils import parametrize

    class Exponential(torch.nn.Module):
        def forward(self, w):
            return w.exp()

    ms = [torch.nn.Linear(2, 2, bias=False).to(device, torch.float64) for _ in range(layers)]
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    for m in ms:
        m.weight = torch.nn.Parameter(torch.randn_like(p))
        parametrize.register_parametrization(m, "weight", Exponential())
    ws = [m.parametrizations.weight.original for m in ms]
    note("leaves", (p, *ws))
    h = p * 1
    with parametrize.cached():
        for _ in range(calls):
            for m in ms:
                h = checkpoint(lambda h, m=m: checkpoint(m, h * 2) if nested else m(h), h)
    note("forward", h)
    h.backward(torch.ones_like(h))
    note("gradients 0", [p.grad, *[w.grad for w in ws]])


def replaced_inside(checkpoint: Any, note: Any, device: str, *, where: str, kept: bool, calls: int, nested: bool) -> None:
    def values():
        return torch.rand(2, device=device, dtype=torch.float64) + 0.5

    class Averaging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2).to(device, torch.float64)
            if where == "buffer":
                self.register_buffer("average", values())
            else:
                self.average = values()

        def forward(self, h):
            y = self.linear(h) * self.average
            self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
            return y.sin()

    m = Averaging()
    box = {"average": values()}
    p = torch.randn(3, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p, *m.parameters()))

    def in_a_dict(h):
        y = m.linear(h) * box["average"]
        box["average"] = 0.9 * box["average"] + 0.1 * y.detach().mean(0)
        return y.sin()

    def of_a_module(h):
        return m(h)

    inner = in_a_dict if where == "dict" else of_a_module
    held, y = [], p
    for _ in range(calls):
        if kept:
            held.append(box["average"] if where == "dict" else m.average)
        y = checkpoint((lambda h: checkpoint(inner, h.cos()).tanh()) if nested else inner, y)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(one.grad for one in m.parameters())])
