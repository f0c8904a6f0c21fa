"""Programs whose modules compute their weights, get others for a call, or are given others between forward and backward."""

from __future__ import annotations

import torch


def parametrized(checkpoint, note, device, *, kind, inside, steps, nested):
    import warnings
    ran = []
    class Layer(torch.nn.Linear):
        def forward(self, h):
            ran.append(1)
            return super().forward(h).tanh()
    class Exponential(torch.nn.Module):
        def forward(self, w):
            return w.exp()
    m = Layer(2, 2).to(device)
    if kind == "parametrization":
        torch.nn.utils.parametrize.register_parametrization(m, "weight", Exponential())
    if kind == "parametrized weight norm":
        torch.nn.utils.parametrizations.weight_norm(m)
    if kind == "weight norm":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.nn.utils.weight_norm(m)
    if kind == "spectral norm in eval":
        torch.nn.utils.parametrizations.spectral_norm(m).eval()
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, *m.parameters()))
    def inner(h):
        return m(h.cos())
    f = inner if inside else m
    def outer(h):
        return checkpoint(f, h.cos())
    for step in range(steps):
        y = checkpoint(outer if nested else f, p)
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(q.grad for q in m.parameters())])
    note("buffers", [*m.buffers()])
    note("cost calls", len(ran))


def called_inside(checkpoint, note, device, *, weight, copied, nested):
    import copy
    m = torch.nn.Linear(2, 2).to(device)
    if copied:  # the versions of its weights begin anew
        m = copy.deepcopy(m)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, w, *m.parameters()))
    def f(h, w):
        if weight == "computed inside":
            w = m.weight * w
        return torch.func.functional_call(m, {"weight": w}, (h,)).tanh()
    def outer(h, w):
        return checkpoint(f, h.cos(), w)
    y = checkpoint(outer if nested else f, p, w * m.weight if weight == "computed outside" else w)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad, *(q.grad for q in m.parameters())])


def fast_weights(checkpoint, note, device, *, inner, nested):
    m = torch.nn.Linear(2, 2).to(device)
    p = torch.randn(2, 2, device=device)
    note("leaves", (*m.parameters(),))
    def f(w, b):
        return torch.func.functional_call(m, {"weight": w, "bias": b}, (p,)).tanh()
    def outer(w, b):
        return checkpoint(f, w, b)
    w, b = m.weight, m.bias
    for step in range(inner):
        y = checkpoint(outer if nested else f, w, b)
        grads = torch.autograd.grad(y, (w, b), torch.ones_like(y), create_graph=True)
        note(f"first {step}", grads)
        w, b = w - grads[0], b - grads[1]
    y = checkpoint(outer if nested else f, w, b)
    y.backward(torch.ones_like(y))
    note("gradients 0", [q.grad for q in m.parameters()])


def given_others(checkpoint, note, device, *, how, inside, nested):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.register_buffer("scale", torch.full((2,), 2.0))
        def forward(self, h):
            return self.linear(h.tanh() * self.scale)
    m = Scaled().to(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, *m.parameters()))
    weights = [*m.parameters()]
    def inner(h):
        return m(h.cos())
    f = inner if inside else m
    def outer(h):
        return checkpoint(f, h.cos())
    y = checkpoint(outer if nested else f, p)
    note("forward", y)
    if how == "assigned":
        m.load_state_dict({name: value * 3 for name, value in m.state_dict().items()}, assign=True)
    if how == "loaded":
        m.load_state_dict({name: value * 3 for name, value in m.state_dict().items()})
    if how == "other dtype":
        m.to(torch.bfloat16)
    if how == "replaced":
        m.linear = torch.nn.Linear(2, 2).to(device)
    if how == "pruned":
        torch.nn.utils.prune.l1_unstructured(m.linear, "weight", amount=2)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(q.grad for q in weights)])


def lazy(checkpoint, note, device, *, nested, steps):
    m = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Tanh()).to(device)
    p = torch.randn(3, 4, device=device, requires_grad=True)
    def outer(h):
        return checkpoint(m, h.cos())
    for step in range(steps):
        y = checkpoint(outer if nested else m, p)
        if not step:  # its weights have a shape now
            note("leaves", (p, *m.parameters()))
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(q.grad for q in m.parameters())])
