"""Programs whose functions know a container that they are passed by its identity."""

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
