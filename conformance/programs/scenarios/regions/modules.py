"""Programs about modules that have more than parameters: modes, buffers, hooks."""

from __future__ import annotations

from typing import Any

import torch


def stateful(checkpoint, note, device, *, kind, steps):
    import copy
    p = torch.randn(4, 3, device=device, requires_grad=True)
    if kind == "spectral norm":
        m = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3, device=device))
    else:
        m = torch.nn.BatchNorm1d(3, momentum=None if kind == "average" else 0.1, device=device)
    note("leaves", (p, *m.parameters()))
    twice = copy.deepcopy(m)
    for step in range(steps):
        with torch.no_grad():
            twice(p), twice(p)
        note(f"cost buffers of two runs {step}", [*twice.buffers()])
        y = checkpoint(m, p)
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(each.grad for each in m.parameters())])
        note(f"buffers {step}", [*m.buffers()])


def module(checkpoint: Any, note: Any, device: str, *, training: bool, rate: float, anomaly: bool) -> None:
    model = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(rate), torch.nn.Tanh()).to(device).train(training)
    )
    x = torch.randn(2, 4, device=device, requires_grad=True)
    note("leaves", (x, *model.parameters()))
    before = torch.is_anomaly_enabled()
    try:
        torch.autograd.set_detect_anomaly(anomaly)
        y = checkpoint(model, checkpoint(model, x))
        note("forward", y)
        y.backward(torch.ones_like(y))
        note("anomaly mode after backward", torch.is_anomaly_enabled())
    finally:
        torch.autograd.set_detect_anomaly(before)
    note("gradients 0", [x.grad, *(q.grad for q in model.parameters())])


def flipped(checkpoint: Any, note: Any, device: str, *, flip: Any, after: int) -> None:
    layer, training = flip
    made = {"dropout": torch.nn.Dropout(0.5), "norm": torch.nn.BatchNorm1d(4)}[layer]
    model = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), made, *[torch.nn.Tanh() for _ in range(after)])
        .to(device)
        .train(training)
    )
    x = torch.randn(3, 4, device=device, requires_grad=True)
    note("leaves", (x, *model.parameters()))
    y = checkpoint(model, x)
    note("forward", y)
    model.train(not training)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad, *(q.grad for q in model.parameters())])


def switched(checkpoint: Any, note: Any, device: str, *, what: str, saves_later: bool, nested: bool) -> None:
    m = torch.nn.Linear(2, 2).to(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        m.eval() if what == "eval" else m.requires_grad_(False)
        y = m(h).relu()
        m.train() if what == "eval" else m.requires_grad_(True)
        return y.sin() if saves_later else y

    y = checkpoint((lambda h: checkpoint(f, h)) if nested else f, p)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("switched back", [m.training, m.weight.requires_grad])


def always_called(checkpoint: Any, note: Any, device: str, *, of_all: bool, saves_later: bool, nested: bool) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).to(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, *m.parameters()))
    entered, of = [], torch.nn.modules.module
    before = of.register_module_forward_pre_hook if of_all else m.register_forward_pre_hook
    after = of.register_module_forward_hook if of_all else m.register_forward_hook
    enter = before(lambda module, *_: entered.append(1) if module is m else None)  # a checkpoint may have modules of its own
    leave = after(lambda module, *_: entered.clear() if module is m else None, always_call=True)

    def f(h):
        y = m(h * (1 + len(entered)))
        return y.sin() if saves_later else y

    for step in range(2):
        y = checkpoint((lambda h: checkpoint(f, h)) if nested else f, p)
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(q.grad for q in m.parameters())])
        note(f"entered and not left {step}", len(entered))
    for handle in (enter, leave):
        handle.remove()


def relaxed(checkpoint: Any, note: Any, device: str, *, by: str, change: str, steps: int, nested: bool) -> None:
    """A function finds a perturbation by gradients of its own, which it changes in place, and is not left early."""
    layer = torch.nn.Linear(2, 2).to(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, *layer.parameters()))

    class Relaxed(torch.nn.Module):
        def forward(self, h):
            d = torch.full_like(h, 0.5).requires_grad_()
            for _ in range(steps):
                (g,) = torch.autograd.grad(layer(h.detach() + d * d).tanh().sum(), d)
                if change == ".data":
                    d.data.add_(g)
                else:
                    with torch.no_grad():
                        d.add_(g)
            return layer(h + d.detach()).sin()

    m = Relaxed()

    def with_mode(h):
        torch.set_default_dtype(torch.float64)
        try:
            return m(h)
        finally:
            torch.set_default_dtype(torch.float32)

    f = m if by == "a hook" else with_mode
    if by == "a hook":
        m.register_forward_hook(lambda *_: None, always_call=True)
    y = checkpoint((lambda h: checkpoint(f, h.cos())) if nested else f, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(q.grad for q in layer.parameters())])


def saved_as_it_is(checkpoint: Any, note: Any, device: str, *, by: str, what: str, nested: bool) -> None:
    """Backward reads the attributes, class or strides of what a Function has saved, and the run is not left early."""
    class Kind(torch.Tensor):
        pass

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, w):
            ctx.save_for_backward(h, w)
            return h * w

        @staticmethod
        def backward(ctx, grad):
            _, w = ctx.saved_tensors
            factor = getattr(w, "scale", 1.0) if what == "attribute" else w.stride()[0] if what == "strides" else 2.0
            factor = factor if what != "class" or isinstance(w, Kind) else 1.0
            return grad * w.as_subclass(torch.Tensor) * factor, None

    p, table = torch.randn(2, 2, device=device, requires_grad=True), torch.randn(2, 4, device=device)
    note("leaves", (p,))
    w = table.chunk(2, -1)[0]
    w = w.clone() if what == "attribute" else w.clone().as_subclass(Kind) if what == "class" else w
    w.scale = 3.0

    class Scaling(torch.nn.Module):
        def forward(self, h):
            return Scaled.apply(h.exp(), w).as_subclass(torch.Tensor).sin()

    m = Scaling()

    def with_mode(h):
        torch.set_default_dtype(torch.float64)
        try:
            return m(h)
        finally:
            torch.set_default_dtype(torch.float32)

    f = m if by == "a hook" else with_mode
    if by == "a hook":
        m.register_forward_hook(lambda *_: None, always_call=True)
    y = checkpoint((lambda h: checkpoint(f, h.cos())) if nested else f, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
