"""Arguments of classes that pytree knows: what such a class finds or makes, and what an object has beside its tensors."""

from __future__ import annotations

import torch


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
