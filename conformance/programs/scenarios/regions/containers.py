"""Programs about containers that functions are passed: known by their identity, or with more than their tensors."""

from __future__ import annotations

import torch


def identified(checkpoint, note, device, *, kind, holds, keyword, nested):
    import weakref
    from dataclasses import dataclass
    @dataclass(eq=False)
    class Box:
        value: object
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    value = p.detach().exp() if holds else "no tensor"
    boxes = {"list": [value], "empty": [], "dict": {"a": value}, "tuple": (value, 1), "deep": [[value]]}
    box = Box(value) if kind == "dataclass" else boxes[kind]
    factors = weakref.WeakKeyDictionary({box: 3.0}) if kind == "dataclass" else {id(box): 3.0}
    def inner(h, box=None):
        return (h * factors.get(box if kind == "dataclass" else id(box), 1.0)).sin()
    def outer(h, box=None):
        return (checkpoint(inner, h.cos(), box) if nested else inner(h.cos(), box)).exp()
    y = checkpoint(outer, p, box=box) if keyword else checkpoint(outer, p, box)
    note("forward", y)
    for number in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [p.grad])


def identified_and_changed(checkpoint, note, device, *, kind, holds, puts, by, for_a_while, nested):
    import weakref
    from collections import deque
    from dataclasses import dataclass
    @dataclass(eq=False)
    class Box:
        value: object
        count: object = 0
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    value = p.detach().exp() if holds else 1.0
    box = {"list": [value], "deque": deque([value]), "dict": {0: value}, "dataclass": Box(value)}[kind]
    factors = weakref.WeakKeyDictionary({box: 3.0}) if kind == "dataclass" else {id(box): 3.0}
    def put(box, value):
        if kind == "dataclass":
            box.count = value
        elif kind == "dict":
            box[1] = value
        else:
            box.append(value)
    def f(h, box):
        if by == "the function":
            put(box, 2 if puts == "a number" else h.cos())
        return (h * factors.get(box if kind == "dataclass" else id(box), 1.0)).sin().exp()
    def outer(h, box):
        return (checkpoint(f, h.cos(), box) if nested else f(h.cos(), box)).exp()
    y = checkpoint(outer, p, box)
    if by == "the caller":
        put(box, 2 if puts == "a number" else p.cos())
    if for_a_while:
        checkpoint(lambda h, others: h.cos(), p, [1.0])
        if kind == "dataclass":
            box.count = 0
        else:
            box.pop(*(1,) if kind == "dict" else ())
    note("forward", y)
    for number in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [p.grad])


def identified_under_hooks(checkpoint, note, device, *, kind):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    box = [p.detach().exp()] if kind == "list" else {0: p.detach().exp()}
    factors = {id(box): 3.0}
    def f(h, box):
        return (h * factors.get(id(box), 1.0)).sin()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y = checkpoint(f, p, box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def changed_around_a_region(checkpoint, note, device, *, kind, known, meanwhile, ends):
    from collections import deque
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    box = {"list": [2.0, 3.0], "deque": deque([2.0, 3.0]), "dict": {0: 2.0, 1: 3.0}}[kind]
    factors = {id(box): 3.0}
    def put(box, value):
        if kind == "dict":
            box[1] = value
        else:
            box.append(value)
    def take(box):
        return box.pop(*(1,) if kind == "dict" else ())
    def f(h, given):
        last = take(given)
        h = h.cos()
        if meanwhile == "a result":
            put(given, h)
        h = checkpoint(lambda h, others: h.sin(), h, [2.0])
        if meanwhile == "a result":
            take(given)
        y = (h * (len(box) if known == "by another name" else factors.get(id(given), 1.0))).tanh()
        put(given, h if ends == "a result" else last)
        return y.exp()
    y = checkpoint(f, p, box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def keyed_by_tensors(checkpoint, note, device, *, kind, passes):
    from collections import OrderedDict, defaultdict
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    first, second = torch.ones(2), torch.ones(2)
    box = {"dict": {}, "OrderedDict": OrderedDict(), "defaultdict": defaultdict(float)}[kind]
    box[first] = 3.0
    def f(h, box):
        (factor,) = box.values()
        if first in box:
            del box[first]
            box[second] = 5.0
        return (h * factor).sin().exp()
    y = checkpoint(f, p, box)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])


def what_is_beside_tensors(checkpoint, note, device, *, kind, around):
    from collections import OrderedDict, namedtuple
    from contextlib import nullcontext
    from dataclasses import dataclass, field

    from torch.utils._pytree import register_pytree_node
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    if kind == "class":
        class Batch:
            def __init__(self, x):
                self.x = x
        register_pytree_node(Batch, lambda batch: ([batch.x], None), lambda children, _: Batch(*children))
    if kind == "dataclass":
        @dataclass
        class Batch:
            x: torch.Tensor
            scale: float = field(init=False, default=1.0)
        register_pytree_node(Batch, lambda batch: ([batch.x], None), lambda children, _: Batch(*children))
    if kind == "named tuple":
        class Batch(namedtuple("Batch", "x")):
            pass
    if kind == "OrderedDict":
        class Batch:
            def __new__(cls, x):
                return OrderedDict(x=x)
    def f(h, batch):
        x = batch["x"] if kind == "OrderedDict" else batch.x
        return (h * x * getattr(batch, "scale", 1.0)).sin().exp()
    batch = Batch(torch.full((2, 2), 2.0, device=device))
    batch.scale = 3.0
    with torch.autograd.graph.save_on_cpu() if around == "save_on_cpu" else nullcontext():
        y = checkpoint(lambda h: checkpoint(f, h.sin(), batch), p) if around == "a region" else checkpoint(f, p, batch)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def what_flattening_makes(checkpoint, note, device, *, makes, count, around):
    from contextlib import nullcontext
    from types import SimpleNamespace

    from torch.utils._pytree import register_pytree_node
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    class Cache:
        def __init__(self, k):
            self.store = SimpleNamespace(k=k)
    if makes == "tuples":
        register_pytree_node(Cache, lambda cache: ([(cache.store.k,)], None), lambda children, _: Cache(*children[0]))
    if makes == "views":
        register_pytree_node(Cache, lambda cache: ([cache.store.k[:]], None), lambda children, _: Cache(*children))
    def f(h, *caches):
        for cache in caches:
            h = h * cache.store.k
        return h.sin()
    caches = [Cache(torch.full((2, 2), one + 0.5, device=device)) for one in range(count)]
    with torch.autograd.graph.save_on_cpu() if around == "save_on_cpu" else nullcontext():
        y = checkpoint(lambda h: checkpoint(f, h, *caches), p) if around == "a region" else checkpoint(f, p, *caches)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def looked_through(checkpoint, note, device, *, kind, found):
    from collections import deque
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    looks = []
    if kind == "dict":
        class Counted(dict):
            def items(self):
                looks.append("items")
                return super().items()
        near = Counted({0: 2.0})
    else:
        class Counted({"list": list, "deque": deque}[kind]):
            def __iter__(self):
                looks.append("iter")
                return super().__iter__()
        near = Counted([2.0])
    def owner():
        return near
    def f(h, box, other=near if found == "default" else None):
        box.append(3.0)
        factor = owner()[0] if found == "closure" else other[0]
        return (h * factor).sin().exp()
    y = checkpoint(f, p, [1.0])
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("left", looks)
