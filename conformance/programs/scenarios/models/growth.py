"""Programs about what grows: calls of Python, the memory of the process, and what a module is left with."""

from __future__ import annotations

import torch


def more_of_it(checkpoint, note, device, *, what, count):  # noqa: C901 - of its branches one is printed
    import sys
    from concurrent.futures import ThreadPoolExecutor
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def forward(length, *arguments):
        def f(h, *others):
            for _ in range(length):
                h = h.sin()
            for other in others:
                h = h * other
            return h
        return checkpoint(f, p, *arguments)
    def backward(y, **options):
        p.grad = None  # so that an error leaves no sum of those before it
        y.sum().backward(**options)
    def step(number):
        if what == "saved tensors":
            return backward(forward(number))
        if what == "arguments":
            return backward(forward(1, *[p * 1 for _ in range(number)]))
        if what == "regions":
            return backward(sum(forward(1) for _ in range(number)))
        if what == "backward passes":
            y = forward(1)
            return [backward(y, retain_graph=True) for _ in range(number)]
        return [backward(forward(1)) for _ in range(number)]  # steps, one after the other
    def calls(number):
        made = []
        def profile(frame, event, arg):
            if event == "call" or event == "c_call":
                made.append(1)
        def measured():
            sys.setprofile(profile)
            step(number)
            sys.setprofile(None)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(measured).result()
        return len(made)
    calls(2)  # what is only made once
    few, many, few_again = calls(count), calls(4 * count), calls(count)
    note("gradients 0", [p.grad])
    note("expected to grow in proportion", True)
    note("seen to grow in proportion", many < 6 * few)
    note("expected to take as many calls again", True)
    note("seen to take as many calls again", few_again < 1.2 * few)


def resident(checkpoint, note, device, *, nested):
    import os
    import tracemalloc
    p = torch.ones(9_000_000, requires_grad=True)  # a block of memory that goes back to the system when it is freed
    note("leaves", (p,))
    tells = os.path.exists("/proc/self/statm")  # noqa: PTH110 - as users do
    def megabytes():
        if not tells:  # then what numpy and Python make is seen alone
            return tracemalloc.get_traced_memory()[0] / 1e6
        with open("/proc/self/statm") as file:  # noqa: PTH123 - as users do
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    def f(h):
        return h.sin().sin().sin()
    def outer(h):
        return checkpoint(f, h)
    checkpoint(f, p[:2]).sum().backward()  # what is only loaded once
    p.grad = None
    if not tells:
        tracemalloc.start()
    before = megabytes()
    y = checkpoint(outer if nested else f, p)
    grown = megabytes() - before
    tracemalloc.stop()
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad[:2]])
    note("expected growth of the process by one output", True)
    note("seen growth of the process by one output", grown < 54)  # of 36 MB


def left(checkpoint, note, device, *, where, nested):
    import contextlib
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    armed = []
    def check(grad):
        if armed:
            raise ValueError(armed.pop())
    class Block(torch.nn.Module):
        def forward(self, h):
            h = h.sin()
            if where == "inside" and h.requires_grad:
                h.register_hook(check)
            return h.cos()
    m = Block()
    class Outer(torch.nn.Module):
        def forward(self, h):
            return checkpoint(m, h.exp())
    outer = Outer() if nested else m
    h = p * 1
    if where == "before":
        h.register_hook(check)
    y = checkpoint(outer, h)
    armed.append("program")
    with contextlib.suppress(ValueError):
        y.backward(torch.ones_like(y), retain_graph=True)
    armed.clear()
    p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    del y, h
    note("empty", [])
