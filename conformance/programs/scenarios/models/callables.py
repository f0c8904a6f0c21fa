"""Programs whose regions are callables of every kind: modules with hooks, methods, partials, builtins, scripted functions."""

from __future__ import annotations

import torch


def passed(checkpoint, note, device, *, kind, nested):  # noqa: C901 - of its branches one is printed
    import functools
    import operator
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []
    def scaled(factor, h, power=1):
        ran.append(1)
        return (h * factor).tanh() ** power
    class Scaled:
        def __init__(self, factor):
            self.factor = factor
        def method(self, h):
            return scaled(self.factor, h)
        def __call__(self, h):
            return scaled(self.factor, h, power=2)
        @staticmethod
        def static(h):
            return scaled(2, h)
    class Module(torch.nn.Module):
        def __init__(self, factor=2):
            super().__init__()
            self.factor = factor
        def forward(self, h):
            return scaled(self.factor, h)
        def features(self, h):
            return scaled(self.factor, h, power=2)
    class Made:
        def __new__(cls, h):
            return scaled(2, h)
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            ran.append(1)
            ctx.save_for_backward(h.exp())
            return h.exp() * 2
        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 2
    if kind == "lambda":
        f = lambda h: scaled(2, h)  # noqa: E731 - what it is about
    if kind == "partial":
        f = functools.partial(scaled, 2, power=3)
    if kind == "method":
        f = Scaled(2).method
    if kind == "static method":
        f = Scaled.static
    if kind == "callable object":
        f = Scaled(2)
    if kind == "class":
        f = Made
    if kind == "module":
        f = Module(3)
    if kind == "method of a module":
        f = Module(3).features
    if kind == "autograd function":
        f = Doubled.apply
    if kind == "builtin":
        f = torch.tanh
    if kind == "method of tensors":
        f = torch.Tensor.tanh
    if kind == "method caller":
        f = operator.methodcaller("tanh")
    if kind == "scripted":
        f = torch.jit.CompilationUnit("def f(h):\n    return (h * 2).tanh()").f
    if kind == "traced module":
        f = torch.jit.trace(Module(), torch.zeros(2, 2, device=device))
    y = checkpoint(lambda h, f=f: checkpoint(f, h.cos()), p) if nested else checkpoint(f, p)
    f = None
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("cost calls", len(ran))


def hooked(checkpoint, note, device, *, kind, where, nested):  # noqa: C901 - of its branches one is printed
    p = torch.randn(2, 2, device=device, requires_grad=True)
    ran = []
    class Layer(torch.nn.Linear):
        def forward(self, h):
            ran.append(1)
            return super().forward(h).tanh()
    m = Layer(2, 2).to(device)
    note("leaves", (p, *m.parameters()))
    if kind == "forward pre-hook":
        m.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    if kind == "forward hook":
        m.register_forward_hook(lambda module, args, y: y * 2)
    if kind == "forward hook with kwargs":
        m.register_forward_hook(lambda module, args, kwargs, y: y * args[0], with_kwargs=True)
    if kind == "tensor hook":
        def doubled(module, args, y):
            if y.requires_grad:
                y.register_hook(lambda grad: grad * 2)
        m.register_forward_hook(doubled)
    if kind == "full backward hook":
        m.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 2,))
    if kind == "full backward pre-hook":
        m.register_full_backward_pre_hook(lambda module, outer: (outer[0] * 2,))
    if where == "function":
        f = m
    if where == "child":
        f = torch.nn.Sequential(torch.nn.Tanh(), m)
    if where == "inside":
        def f(h):
            return m(h.cos())
    def outer(h):
        return checkpoint(f, h.cos())
    y = checkpoint(outer if nested else f, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(q.grad for q in m.parameters())])
    note("cost calls", len(ran))


def hooked_everywhere(checkpoint, note, device, *, kind, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    ran = []
    class Layer(torch.nn.Linear):
        def forward(self, h):
            ran.append(1)
            return super().forward(h).tanh()
    m = Layer(2, 2).to(device)
    note("leaves", (p, *m.parameters()))
    of = torch.nn.modules.module
    if kind == "forward pre-hook":
        handle = of.register_module_forward_pre_hook(lambda module, args: (args[0] * 2,) if module is m else None)
    if kind == "forward hook":
        handle = of.register_module_forward_hook(lambda module, args, y: y * 2 if module is m else None)
    if kind == "full backward hook":
        handle = of.register_module_full_backward_hook(lambda module, inner, outer: (inner[0] * 2,) if module is m else None)
    def outer(h):
        return checkpoint(m, h.cos())
    try:
        y = checkpoint(outer if nested else m, p)
        note("forward", y)
        y.backward(torch.ones_like(y))
    finally:
        handle.remove()
    note("gradients 0", [p.grad, *(q.grad for q in m.parameters())])
    note("cost calls", len(ran))


def hooked_once(checkpoint, note, device, *, kind, where, nested):
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).to(device, torch.float64)
    p = torch.randn(3, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p, *m.parameters()))
    one = m if where == "module" else m[0]

    def before(module, args):
        handle.remove()
        return args[0] * 2

    def after(module, args, y):
        handle.remove()
        return y * 2

    handle = one.register_forward_pre_hook(before) if kind == "forward pre-hook" else one.register_forward_hook(after)

    def inner(h):
        return m(h.cos()).sin()

    y = checkpoint((lambda h: checkpoint(inner, h.sin()).sin()) if nested else inner, p)
    y = y.sin()
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(one.grad for one in m.parameters())])


def decorated_and_copied(checkpoint, note, device, *, way, steps):
    import copy
    import pickle
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).to(device)
    m.forward = checkpoint(preserve_rng_state=False)(m.forward)
    twin = pickle.loads(pickle.dumps(m)) if way == "pickle" else copy.deepcopy(m)
    ran = []
    twin[0].register_forward_hook(lambda *_: ran.append(1))
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    with torch.no_grad():
        m[0].weight.mul_(2)  # the copy has its own
    for _ in range(steps):
        y = twin(p)
        y.backward(torch.ones_like(y))
    note("seen gradients", [p.grad, *(q.grad for q in twin.parameters())])
    note("seen calls of the copy", len(ran))
    note("seen gradient of what was copied", m[0].weight.grad)
    x, w, b = (one.detach().requires_grad_() for one in (p, *twin.parameters()))
    for _ in range(steps):
        y = torch.nn.functional.linear(x, w, b).tanh()
        y.backward(torch.ones_like(y))
    note("expected gradients", [x.grad, w.grad, b.grad])
    note("expected calls of the copy", 2 * steps)
    note("expected gradient of what was copied", None)
    note("gradients 0", [p.grad])
