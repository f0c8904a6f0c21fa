"""Programs that compare what compiled regions compute with what eager functions do."""

from __future__ import annotations

from typing import Any

import torch


def calls(checkpoint: Any, note: Any, device: str, *, backend: str, rows: tuple[int, ...], dynamic: bool | None) -> None:
    w = torch.randn(3, 3, device=device, requires_grad=True)
    inputs = [torch.randn(each, 3, device=device, requires_grad=True) for each in rows]

    def f(h):
        return (h @ w).sin()

    def backward(y, x):
        y.backward(torch.ones_like(y))
        found = [y, w.grad, x.grad]
        w.grad = x.grad = None
        return found

    due = [backward(f(x), x) for x in inputs]
    step = torch.compile(lambda x: checkpoint(f, x), backend=backend, fullgraph=True, dynamic=dynamic)
    for turn, x in enumerate(inputs):
        note(f"expected call {turn}", due[turn])
        y = step(x)
        note(f"seen call {turn}", backward(y, x))
        note(f"gradients {turn}", due[turn][1:])


def dropout(checkpoint: Any, note: Any, device: str, *, backend: str, regions: int, budget: float, outside: bool) -> None:
    from torch._functorch import config

    p = torch.randn(3, 3, device=device, requires_grad=True)

    def f(h):
        return torch.nn.functional.dropout(h.sin(), 0.5)

    def all_of_them(region):
        h = torch.nn.functional.dropout(p, 0.5) if outside else p
        for _ in range(regions):
            h = region(f, h)
        return h

    def seeded(run):
        torch.manual_seed(1)
        y = run()
        after = torch.rand(2, device=device)
        y.backward(torch.ones_like(y))
        found = [y, p.grad, after, torch.rand(2, device=device)]
        p.grad = None
        return found

    due = seeded(lambda: all_of_them(lambda g, h: g(h)))
    note("expected gradient", due[:2])
    note("expected stream", due[2:])
    note("gradients 0", [due[1]])
    with config.patch(activation_memory_budget=budget):
        found = seeded(torch.compile(lambda: all_of_them(checkpoint), backend=backend, fullgraph=True))
    note("seen gradient", found[:2])
    note("seen stream", found[2:])


def exported(checkpoint: Any, note: Any, device: str, *, strict: bool, regions: str, random: bool) -> None:
    w = torch.randn(3, 3, device=device)
    inputs = [torch.randn(2, 3, device=device, requires_grad=True) for _ in range(2)]

    class Model(torch.nn.Module):
        def __init__(self, region):
            super().__init__()
            self.region, self.w = region, torch.nn.Parameter(w)

        def f(self, h):
            h = (h @ self.w).sin()
            return torch.nn.functional.dropout(h, 0.5) if random else h

        def forward(self, h):
            outer = (lambda h: self.region(self.f, h).exp()) if regions == "nested" else self.f
            h = self.region(outer, h)
            return self.region(self.f, h) if regions == "two" else h

    def backward(model, x):
        torch.manual_seed(1)
        y = model(x)
        if y.requires_grad:
            y.backward(torch.ones_like(y))
        found = [y, x.grad, *(each.grad for each in model.parameters())]
        for each in (x, *model.parameters()):
            each.grad = None
        return found

    eager = Model(lambda g, h: g(h))
    due = [backward(eager, x) for x in inputs]
    program = torch.export.export(Model(checkpoint), (inputs[0],), strict=strict).module()
    for turn, x in enumerate(inputs):
        note(f"expected input {turn}", due[turn])
        note(f"seen input {turn}", backward(program, x))
        note(f"gradients {turn}", due[turn][1:])


def shared_weight(checkpoint: Any, note: Any, device: str, *, backend: str, autocast: bool, dynamic: bool | None) -> None:
    w = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(2, 4, device=device, requires_grad=True)

    def f(h):
        return (h @ w).sin()

    def both(region):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            return region(f, x).float(), region(f, 2 * x).float()

    def backward(outputs):
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        found = [*outputs, w.grad, x.grad]
        w.grad = x.grad = None
        return found

    due = backward(both(lambda g, h: g(h)))
    note("expected both", due)
    note("gradients 0", due[2:])
    note("seen both", backward(torch.compile(lambda: both(checkpoint), backend=backend, fullgraph=True, dynamic=dynamic)()))


def wrapped(
    checkpoint: Any, note: Any, device: str, *, backend: str, order: str, rows: tuple[int, ...], policy: bool
) -> None:
    import functools

    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    contexts = lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # noqa: E731 - as scripts show it
    options = {"context_fn": contexts} if policy else {}
    w = torch.randn(3, 3, device=device, requires_grad=True)
    inputs = [torch.randn(each, 3, device=device, requires_grad=True) for each in rows]

    def f(h):
        return (h @ w).sin()

    def backward(outputs):
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        found = [*outputs, w.grad, *(x.grad for x in inputs)]
        for leaf in (w, *inputs):
            leaf.grad = None
        return found

    due = backward([f(x).tanh() for x in inputs])
    note("expected outputs", due)
    note("gradients 0", due[len(inputs) :])
    inside = torch.compile(f, backend=backend) if order in ("around", "both") else f
    step = lambda x: checkpoint(inside, x, **options).tanh()  # noqa: E731 - as a lambda is what scripts show in a line
    if order != "around":
        step = torch.compile(step, backend=backend)
    if order == "nested":
        step = functools.partial(checkpoint, step)
    note("seen outputs", backward([step(x) for x in inputs]))


def broken(checkpoint: Any, note: Any, device: str, *, backend: str, where: str, random: bool) -> None:
    p = torch.randn(3, 3, device=device, requires_grad=True)

    def f(h):
        if random:
            h = torch.nn.functional.dropout(h, 0.5)
        if where == "inside":
            h = h.sin()
            torch._dynamo.graph_break()
        return h.exp()

    def all_of_it(region):
        h = region(f, p)
        if where == "after":
            torch._dynamo.graph_break()
        return region(f, h)

    def seeded(run):
        torch.manual_seed(1)
        y = run()
        y.backward(torch.ones_like(y))
        found = [y, p.grad, torch.rand(2, device=device)]
        p.grad = None
        return found

    due = seeded(lambda: all_of_it(lambda g, h: g(h)))
    note("expected call", due)
    note("gradients 0", [due[1]])
    note("seen call", seeded(torch.compile(lambda: all_of_it(checkpoint), backend=backend)))


def mutated(checkpoint: Any, note: Any, device: str, *, backend: str, what: str) -> None:
    p = torch.randn(3, 3, device=device, requires_grad=True)
    count = torch.zeros(1, device=device)

    def f(h):
        if what == "buffer":
            count.add_(1)
            return (h.sin() * 2).exp()
        return (h.sin().mul_(2) if what == "result" else h.mul_(2)).exp()

    def once(run):
        count.zero_()
        x = p.sin()
        y = run(x)
        y.backward(torch.ones_like(y))
        found = [y, p.grad, x, count.clone()]
        p.grad = None
        return found

    due = once(f)
    note("expected call", due)
    note("gradients 0", [due[1]])
    note("seen call", once(torch.compile(lambda h: checkpoint(f, h), backend=backend, fullgraph=True)))


def in_place_under_a_policy(checkpoint: Any, note: Any, device: str, *, backend: str, keeps: bool) -> None:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    p = torch.randn(3, 3, device=device, requires_grad=True)
    kept = [torch.ops.aten.sin.default] if keeps else []

    def f(h):
        return h.sin().mul_(2).exp()

    def once(run):
        y = run(p)
        y.backward(torch.ones_like(y))
        found = [y, p.grad]
        p.grad = None
        return found

    due = once(f)
    note("expected call", due)
    note("gradients 0", [due[1]])
    policy = lambda: create_selective_checkpoint_contexts(kept)  # noqa: E731 - as a lambda is what scripts show in a line
    note("seen call", once(torch.compile(lambda h: checkpoint(f, h, context_fn=policy), backend=backend, fullgraph=True)))


def with_compiled_autograd(
    checkpoint: Any, note: Any, device: str, *, backend: str, passes: int, random: bool, eager: bool
) -> None:
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    p = torch.randn(3, 3, device=device, requires_grad=True)
    w = torch.randn(3, 3, device=device, requires_grad=True)

    def f(h):
        return torch.nn.functional.dropout(h * w, 0.5) if random else h * w

    def backward(y):  # it must be called in what is compiled, or compiled autograd does not see it
        y.backward(torch.ones_like(y))
        return y

    def seeded(step):
        torch.manual_seed(1)
        found = [[step() for _ in range(passes)][-1], p.grad, w.grad]
        p.grad = w.grad = None
        return found

    due = seeded(lambda: backward(f(p)))
    note("expected call", due)
    note("gradients 0", due[1:])
    counters.clear()
    with config.patch(compiled_autograd=True):
        if eager:
            compiled = torch.compile(backward, backend=backend)
            note("seen call", seeded(lambda: compiled(checkpoint(f, p))))
        else:
            note("seen call", seeded(torch.compile(lambda: backward(checkpoint(f, p)), backend=backend)))
    note("expected a captured backward", True)
    note("seen a captured backward", counters["compiled_autograd"]["captures"] > 0)


def hooked(checkpoint: Any, note: Any, device: str, *, backend: str, change: bool) -> None:
    packed = []
    p = torch.randn(3, 3, device=device, requires_grad=True)

    def f(h):
        return (h.sin() * h).exp()

    def pack(t):
        packed.append(t.shape)
        return t.clone() if change else t

    def once(run):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = run(p)
        y.backward(torch.ones_like(y))
        found = [y, p.grad, len(packed) > 0]
        p.grad = None
        return found

    due = once(f)
    note("expected call", due)
    note("gradients 0", [due[1]])
    note("seen call", once(torch.compile(lambda h: checkpoint(f, h), backend=backend, fullgraph=True)))


def options(checkpoint: Any, note: Any, device: str, *, backend: str, option: str) -> None:
    """Two steps in a graph do with an option what two eager ones do."""
    from contextlib import contextmanager

    p = torch.randn(3, 3, device=device, requires_grad=True)

    @contextmanager
    def log(name):
        entered.append(name)
        yield

    given = {
        "debug": {"debug": True},
        "determinism_check": {"determinism_check": "none"},
        "context_fn": {"context_fn": lambda: (log("forward"), log("recomputation"))},
    }

    def step(h):
        return checkpoint(lambda h: h.sin().exp(), h, **given[option])

    def twice(run):
        for _ in range(2):
            p.grad, y = None, run(p)
            y.backward(torch.ones_like(y))
        return [y, p.grad, *entered]

    entered = []
    try:
        due = twice(step)
    except TypeError:
        due = ["no such option"]
    note("expected call", due)
    entered.clear()
    note("seen call", twice(torch.compile(step, backend=backend, fullgraph=True)))


def not_replayed(checkpoint: Any, note: Any, device: str, *, backend: str, option: str) -> None:
    """Dropout without replay draws other numbers in the recomputation, in a graph as eagerly."""
    p = torch.randn(3, 3, device=device, requires_grad=True)

    def step(h):
        return checkpoint(lambda h: torch.nn.functional.dropout(h, 0.5), h, **{option: False})

    def seeded(run):
        torch.manual_seed(1)
        p.grad, y = None, run(p)
        y.backward(torch.ones_like(y))
        return [y, p.grad, torch.rand(2, device=device)]

    try:
        due = seeded(step)
    except TypeError:
        due = ["no such option"]
    note("expected call", due)
    note("seen call", seeded(torch.compile(step, backend=backend, fullgraph=True)))


def not_stopped(checkpoint: Any, note: Any, device: str, *, backend: str, option: str) -> None:
    """Without early stop a region runs again to its end, in a graph as eagerly."""
    from torch.utils._python_dispatch import TorchDispatchMode

    p = torch.randn(3, 3, device=device, requires_grad=True)

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            copies.append(1) if func is torch.ops.aten.clone.default else None
            return func(*args, **(kwargs or {}))

    def step(h):
        return checkpoint(lambda h: h.sin().exp().clone(), h, **{option: False})

    def counted(run):
        y = run(p)
        copies.clear()
        with Count():
            y.backward(torch.ones_like(y))
        return len(copies)

    copies = []
    try:
        due = counted(step)
    except TypeError:
        due = "no such option"
    note("expected copies", due)
    note("seen copies", counted(torch.compile(step, backend=backend, fullgraph=True)))
