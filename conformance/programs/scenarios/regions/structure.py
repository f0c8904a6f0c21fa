"""Programs about how a function is called, and how often."""

from __future__ import annotations

import torch


def keywords(checkpoint, note, device, *, flag, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def inner(h, *, flag=True, **factors):
        return h.sin() if flag is True else h.cos() * (3 if flag is None else next(iter(factors.values())))
    def outer(h, *, flag=True, **factors):
        h = h.exp()
        return (checkpoint(inner, h, flag=flag, **factors) if nested else inner(h, flag=flag, **factors)).tanh()
    y = checkpoint(outer, p, flag=flag, second=2.0, first=0.5)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def called_again(checkpoint, note, device, *, times, onward, keyword, draws):
    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))
    calls = []
    def f(h):
        calls.append(None)
        return torch.nn.functional.dropout(h.sin(), 0.5) if draws else h.sin() * h
    outputs = [p]
    for _ in range(times):
        h = outputs[-1] if onward else p
        outputs.append(checkpoint(f, h=h) if keyword else checkpoint(f, h))
    y = sum(outputs[1:])
    note("forward", outputs)
    note("calls in forward", len(calls))
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def sentinel(checkpoint, note, device, *, kind, nested):
    import dataclasses
    import enum
    @dataclasses.dataclass(frozen=True)
    class Setting:
        power: int
    class Mode(Setting, enum.Enum):
        CUBIC = (3,)
    value = Mode.CUBIC if kind == "enum" else Setting(3)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def inner(h, setting):
        return (h ** 3 if setting is value else h.cos()).sin()
    def outer(h, setting):
        return (checkpoint(inner, h.exp(), setting) if nested else inner(h.exp(), setting)).tanh()
    y = checkpoint(outer, p, value)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def emptied(checkpoint, note, device, *, kind, passes):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    box = [p.cos(), p.exp()] if kind == "list" else {1: p.exp(), 0: p.cos()}
    def f(box):
        return (box.pop(1) * box.pop(0)).sin()
    y = checkpoint(f, box)
    note("forward", y)
    note("left", box)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])


def passed_twice(checkpoint, note, device, *, kind, inside, keyword, nested):
    from dataclasses import dataclass
    @dataclass
    class Box:
        value: object
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    box = {"list": lambda: [p.cos()], "dict": lambda: {0: p.cos()}, "dataclass": lambda: Box(p.cos())}[kind]()
    def inner(one, other):
        one = one["deep"] if inside else one
        h = one.value if kind == "dataclass" else one[0]
        return h * h if one is other else h.sin()
    def outer(one, other):
        if not nested:
            return inner(one, other).exp()
        return (checkpoint(inner, one, other=other) if keyword else checkpoint(inner, one, other)).exp()
    one = {"deep": box} if inside else box
    y = checkpoint(outer, one, other=box) if keyword else checkpoint(outer, one, box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def constructed(checkpoint, note, device, *, watched, nested):
    from contextlib import nullcontext
    from dataclasses import dataclass, field
    @dataclass
    class Box:
        value: object
        made: int = field(default=0, init=False)
        def __post_init__(self):
            self.made += 1
            self.scale = 2
            self.value = self.value * 2
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    seen = []
    def inner(box):
        seen.append((type(box).__name__, box.made, getattr(box, "scale", None)))
        return box.value.sin() * getattr(box, "scale", 1)
    def outer(box):
        return (checkpoint(inner, box) if nested else inner(box)).exp()
    box = Box(p.cos())
    box.made, box.scale = 5, 3
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t) if watched else nullcontext():
        y = checkpoint(outer, box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(set(seen))))


def hooking(checkpoint, note, device, *, form, leaf, accumulated, passes, fails, nested):
    from contextlib import suppress
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    fired, failing = [], []
    def inner(h):
        if failing:
            raise ValueError("program")
        return h.cos() * h
    def f(first, h=None):
        h = first[0] if form == "list" else first if form == "alone" else h
        for _ in range(2):
            if accumulated:
                h.register_post_accumulate_grad_hook(lambda leaf: fired.append(None))
            else:
                h.register_hook(lambda grad: grad * 2)
        return (checkpoint(inner, h) if nested else inner(h)).tanh()
    x = p if leaf or accumulated else p.exp()
    first = [x] if form == "list" else x if form == "alone" else torch.ones(2, 2, device=device)
    if form in ("keyword", "second"):
        y = checkpoint(f, first, h=x) if form == "keyword" else checkpoint(f, first, x)
    else:
        y = checkpoint(f, first)
    note("forward", y)
    if fails:
        failing.append(True)
        with suppress(ValueError):
            y.backward(torch.ones_like(y), retain_graph=True)
        failing.clear()
        fired.clear()
        p.grad = None
    for step in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {step}", [p.grad])
        note(f"hooks fired {step}", len(fired))


def rehooking(checkpoint, note, device, *, leaf, accumulated, steps, passes, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    handles, fired = [], []
    def inner(h):
        return h.cos() * h
    def f(h):
        h.register_hook(lambda grad: grad * 3)
        while handles:
            handles.pop().remove()
        if accumulated:
            handles.append(h.register_post_accumulate_grad_hook(lambda leaf: fired.append(None)))
        else:
            handles.append(h.register_hook(lambda grad: grad + 1))
        return (checkpoint(inner, h) if nested else inner(h)).tanh()
    for step in range(steps):
        y = checkpoint(f, p if leaf or accumulated else p.exp())
        note(f"forward {step}", y)
        for number in range(passes):
            y.backward(torch.ones_like(y), retain_graph=True)
            note(f"gradients {step} {number}", [p.grad])
            note(f"hooks fired {step} {number}", len(fired))
    handles.pop().remove()
    y.backward(torch.ones_like(y))
    note("gradients without", [p.grad])
    note("hooks fired without", len(fired))


def hooked_for_a_while(checkpoint, note, device, *, leaf):
    import threading
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x = p if leaf else p.exp()
    again, found, failed, inside, over = [], [], [], threading.Event(), threading.Event()
    def there():
        try:
            found.append(torch.autograd.grad(z.sum(), x))
        except Exception as error:
            failed.append(error.with_traceback(None))
        inside.set()
    thread = threading.Thread(target=there, daemon=True)
    def first(h):
        handle = h.register_hook(lambda grad: grad * 2)
        if again:
            thread.start()
            inside.wait(10)
        handle.remove()
        return h.cos() * h
    def second(h):
        h.register_hook(lambda grad: grad * 2).remove()
        if again:
            inside.set()
            over.wait(10)
        return h.sin() * h
    y, z = checkpoint(first, x), checkpoint(second, x)
    note("forward", [y, z])
    again.append(None)
    note("grad 0", torch.autograd.grad(y.sum(), x))
    over.set()
    thread.join() if thread.ident else there()
    if failed:
        raise failed[0]
    note("grad 1", found)
    x.square().sum().backward()
    note("gradients 0", [p.grad])


def hooking_nodes(checkpoint, note, device, *, kind, leaf, passes, nested):
    from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    fired = []
    def inner(h):
        return h.cos() * h
    def f(h):
        node = get_gradient_edge(h).node
        if kind == "before":
            node.register_prehook(lambda gradients: tuple(grad * 2 for grad in gradients))
        elif kind == "after":
            node.register_hook(lambda gradients, outputs: fired.append(None))
        else:
            register_multi_grad_hook([h], lambda gradients: fired.append(None))
        return (checkpoint(inner, h) if nested else inner(h)).tanh()
    y = checkpoint(f, p if leaf else p.exp())
    note("forward", y)
    for number in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [p.grad])
        note(f"hooks fired {number}", len(fired))


def asking_for_modes(checkpoint, note, device, *, hooked, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    layer = torch.nn.Linear(2, 2, device=device)
    note("leaves", (p, *layer.parameters()))
    if hooked == "module":
        layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    def inner(h):
        h = h.exp()
        if hooked == "result" and h.requires_grad:
            h.register_hook(lambda grad: grad * 2)
        factor = 2 if torch.overrides.has_torch_function((h,)) else 3
        return (layer(h) * factor).sin()
    def outer(h):
        return (checkpoint(inner, h.cos()) if nested else inner(h.cos())).exp()
    y = checkpoint(outer, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, layer.weight.grad, layer.bias.grad])


def borrowed(checkpoint, note, device, *, kind, holds, nested):
    from collections import deque
    from dataclasses import dataclass
    @dataclass
    class Box:
        value: object
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    value = p.detach().exp() if holds else 2.0
    box = {"list": [value], "deque": deque([value]), "dict": {0: value}, "dataclass": Box(value)}[kind]
    def f(h, box):
        if kind == "dataclass":
            before, box.value = box.value, 5.0
        elif kind == "dict":
            box[1] = 5.0
        else:
            box.append(5.0)
        h = h.exp()
        if kind == "dataclass":
            box.value = before
        else:
            box.popitem() if kind == "dict" else box.pop()
        return h + 1
    y = checkpoint(lambda h: checkpoint(f, h.sin(), box).tanh(), p) if nested else checkpoint(f, p, box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("left", box.value if kind == "dataclass" else [*box])


def changed_after_the_call(checkpoint, note, device, *, kind, holds, during, steps):
    from collections import deque
    from dataclasses import dataclass
    @dataclass
    class Box:
        value: object
        count: int = 0
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    value = p.detach().exp() if holds else 2.0
    box = {"list": [value], "deque": deque([value]), "dict": {p: value}, "dataclass": Box(value)}[kind]
    def change(grad=None):
        if kind == "dataclass":
            box.value, box.count = 3.0, box.count + 1
        elif kind == "dict":
            box.pop(p, None)
            box[p.detach().cos()] = 3.0
        else:
            box.append(3.0)
    def f(h, box):
        value = box.value if kind == "dataclass" else box[p] if kind == "dict" else box[0]
        return (h.sin() * value).exp() * (1 if kind == "dataclass" else len(box))
    for step in range(steps):
        if kind == "dict":
            box[p] = value
        y = checkpoint(f, p, box)
        if during:
            y.register_hook(change)
        else:
            change()
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad])
        note(f"left {step}", [box.value, box.count] if kind == "dataclass" else [*getattr(box, "values", lambda: box)()])


def borrowed_around_regions(checkpoint, note, device, *, kind, regions, others):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    box = [2.0] if kind == "list" else {0: 2.0}
    def inner(h, factors):
        return (h * factors[0]).sin()
    def f(h, box):
        value = box.pop(0)
        for _ in range(regions):
            h = checkpoint(inner, h, [value])
        box.append(value) if kind == "list" else box.update({0: value})
        return h
    earlier = [checkpoint(inner, p, [3.0]) for _ in range(others)]
    y = checkpoint(f, p, box)
    note("forward", [*earlier, y])
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("left", [*box])


def decorated(checkpoint, note, device, *, kind, early, calls):
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p,))
    ends = []
    decorator = checkpoint(early_stop=early)
    def body(h, factor, debug):
        h = (h * factor).sin() * debug.sin()
        ends.append(None)
        return h
    if kind == "function":
        @decorator
        def f(h, *, debug):
            """What it does."""
            return body(h, 3, debug)
    elif kind == "callable":
        named = decorator(lambda h, *, self, debug: body(h, self, debug))
        def f(h, *, debug):
            return named(h, self=3, debug=debug)
    else:
        class Layer:
            def __init__(self, factor):
                self.factor = factor
            @decorator
            def f(self, h, *, debug):
                """What it does."""
                return body(h, self.factor, debug)
        f = Layer(3).f if kind == "method" else lambda h, *, debug: Layer.f(Layer(3), h, debug=debug)
    y = p
    for _ in range(calls):
        y = f(y, debug=q)
    y.backward(torch.ones_like(y))
    note("seen gradients", [p.grad, q.grad])
    note("seen calls that came to their end", len(ends))
    if kind in ("function", "method"):
        note("expected name and documentation", ("f", "What it does."))
        note("seen name and documentation", (f.__name__, f.__doc__))
    x, w = (one.detach().requires_grad_() for one in (p, q))
    y = x
    for _ in range(calls):
        y = (y * 3).sin() * w.sin()
    note("expected gradients", list(torch.autograd.grad(y, (x, w), torch.ones_like(y))))
    note("expected calls that came to their end", calls if early else 2 * calls)
    note("gradients 0", [p.grad])
