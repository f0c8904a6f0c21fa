"""Programs about what a device has and a CPU has not: generators, graphs of kernels, an allocator, initialisation."""

from __future__ import annotations

from typing import Any

import torch


def offsets(checkpoint: Any, note: Any, device: str, *, draws: int, regions: int, nested: bool) -> None:
    module = torch.get_device_module(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def where():
        generators = getattr(module, "default_generators", ())
        return [module.get_rng_state(), [generator.get_offset() for generator in generators]]

    def inner(h):
        for _ in range(draws):
            h = torch.nn.functional.dropout(h, 0.3)
        return h

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)) * torch.randn(3, device=device).sum()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(outer, y)
    note("forward", y)
    note("offsets after forward", where())
    for turn in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
        note(f"offsets after backward {turn}", where())


def several(checkpoint: Any, note: Any, device: str, *, regions: int, nested: bool) -> None:
    module = torch.get_device_module(device)
    kind = torch.device(device).type
    places = [f"{kind}:{index}" for index in range(module.device_count())]
    sources = [torch.Generator(place).manual_seed(index) for index, place in enumerate(places)]
    p = torch.randn(2, 2, device=places[0], requires_grad=True)
    note("leaves", (p,))

    def inner(h, sources):
        for place, source in zip(places, sources, strict=True):
            drawn = torch.rand(2, 2, generator=source, device=place) * torch.rand(2, 2, device=place)
            h = h * drawn.to(h.device)
        return h.sin()

    def outer(h, sources):
        return (checkpoint(inner, h, sources) if nested else inner(h, sources)).cos()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(outer, y, sources)
    note("forward", y)
    note("own generators after forward", [source.get_offset() for source in sources])
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("own generators after backward", [source.get_state() for source in sources])
    note("default generators after backward", [module.get_rng_state(place) for place in places])


def autocasts(
    checkpoint: Any, note: Any, device: str, *, on_device: str, on_host: str, backward: str, nested: bool
) -> None:
    from contextlib import ExitStack

    kind = torch.device(device).type
    p, q = torch.randn(4, 4, device=device, requires_grad=True), torch.randn(4, 4)
    note("leaves", (p,))
    seen = []

    def inner(h):
        h = h @ p
        seen.append((h.dtype, (q @ q).dtype))
        return h.sin()

    def outer(h):
        h = (checkpoint(inner, h) if nested else inner(h)) @ p
        seen.append((h.dtype, (q @ q).dtype))
        return h.cos()

    def entered(one, other):
        stack = ExitStack()
        for place, name in ((kind, one), ("cpu", other)):
            if name != "off":
                stack.enter_context(torch.autocast(place, getattr(torch, name)))
        return stack

    with entered(on_device, on_host):
        y = checkpoint(outer, p * 1)
    note("forward", y)
    with entered(backward, backward):
        y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("what the functions saw", str(sorted(map(str, set(seen)))))


def started_inside(checkpoint: Any, note: Any, device: str, *, before: bool, nested: bool) -> None:
    module = torch.get_device_module(device)
    note("started", module.is_initialized())
    p = torch.randn(2, 2, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return (h * torch.rand(2, 2, device=device).cpu()).sin()

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)).cos()

    y = checkpoint(torch.sin, p * 1) if before else p * 1
    note("started by a region on the CPU", module.is_initialized())
    y = checkpoint(outer, y)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("stream after backward", torch.rand(2, device=device).cpu())


def not_started(checkpoint: Any, note: Any, device: str, *, regions: int, nested: bool) -> None:
    module = torch.get_device_module(device)
    p = torch.randn(2, 2, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return torch.nn.functional.dropout(h.sin())

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)).exp()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(outer, y)
    note("forward", y)
    note("started by forward", module.is_initialized())
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("started by backward", module.is_initialized())


def captured(checkpoint: Any, note: Any, device: str, *, how: str, regions: int) -> None:
    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4, device=device))

        def forward(self, x):
            for _ in range(regions):
                x = checkpoint(lambda h: (h @ self.weight).sin(), x)
            return x

    chain, x = Chain(), torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (x, chain.weight))
    if how == "callables":
        chain = torch.cuda.make_graphed_callables(chain, (x,))
        for turn in range(2):
            y = chain(torch.randn(4, 4, device=device, requires_grad=True))
            y.sum().backward()
            note(f"forward {turn}", y)
            note(f"gradients {turn}", [x.grad, chain.weight.grad])
    else:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                torch.autograd.grad(chain(x).sum(), [x, chain.weight])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = chain(x)
            grads = torch.autograd.grad(y.sum(), [x, chain.weight])
        for turn in range(2):
            with torch.no_grad():
                x.copy_(torch.randn(4, 4, device=device))
            graph.replay()
            torch.cuda.synchronize()
            note(f"forward {turn}", y)
            note(f"grad {turn}", list(grads))


def unsynchronised(checkpoint: Any, note: Any, device: str, *, regions: int, draws: bool, nested: bool) -> None:
    module = torch.get_device_module(device)
    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return torch.nn.functional.dropout(h.sin(), 0.3) if draws else h.sin()

    def outer(h):
        return (checkpoint(inner, h) if nested else inner(h)) @ p

    before = module.get_sync_debug_mode()
    for turn in range(2):
        p.grad = None
        module.set_sync_debug_mode("error" if turn else before)  # libraries may synchronise once, as they start
        try:
            y = p * 1
            for _ in range(regions):
                y = checkpoint(outer, y)
            y.backward(torch.ones_like(y))
        finally:
            module.set_sync_debug_mode(before)
        note(f"forward {turn}", y)
        note(f"gradients {turn}", [p.grad])


def peak(checkpoint: Any, note: Any, device: str, *, regions: Any, rest: int, elements: int) -> None:
    module, softplus = torch.get_device_module(device), torch.nn.functional.softplus
    p = torch.linspace(-1, 1, elements, device=device).requires_grad_()
    note("leaves", (p,))

    def run(count):
        def f(h):
            for _ in range(count):
                h = softplus(h)
            return h

        return f

    for turn in range(2):  # the first loads what is loaded once
        y = p.grad = None
        module.synchronize()
        module.reset_peak_memory_stats()
        before = module.memory_allocated()
        y = p
        for count in regions:
            y = checkpoint(run(count), y)
        y = run(max(regions) + rest)(y)  # so that the peak is where the gradient that is held here is needed
        y.backward(torch.ones_like(y))
        module.synchronize()
        most = module.max_memory_allocated() - before
        note(f"gradients {turn}", [p.grad])
    note("cost peak", most)
