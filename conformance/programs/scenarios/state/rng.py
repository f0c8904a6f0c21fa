"""Programs in which random numbers are drawn."""

from __future__ import annotations

from typing import Any

import torch


def state(checkpoint: Any, note: Any, device: str, *, draws: int, regions: int) -> None:
    kind = torch.device(device).type
    source = torch if kind == "cpu" else torch.get_device_module(kind)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        return (h * torch.randn(draws, device=device).sum()).sin()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(f, y)
    note("forward", y)
    note("state after forward", source.get_rng_state())
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("state after backward", source.get_rng_state())


def reseeding(checkpoint: Any, note: Any, device: str, *, seed: int, where: str, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    dropout = torch.nn.functional.dropout

    def inner(h):
        if where != "outer":
            torch.manual_seed(seed)
        return dropout(h).sin()

    def outer(h):
        h = dropout(h.cos())
        if where != "inner":
            torch.manual_seed(seed)
        return dropout(checkpoint(inner, h) if nested else inner(h))

    y = checkpoint(outer, p * 1)
    note("forward", y)
    note("stream after forward", torch.rand(2, device=device))
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("stream after backward", torch.rand(2, device=device))


def forking(checkpoint: Any, note: Any, device: str, *, seed: int | None, regions: int, before: bool, after: bool) -> None:
    kind = torch.device(device).type
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    dropout = torch.nn.functional.dropout

    def f(h):
        h = dropout(h.exp()) if before else h.exp()
        with torch.random.fork_rng([] if kind == "cpu" else [0], device_type="cuda" if kind == "cpu" else kind):
            if seed is not None:
                torch.manual_seed(seed)
            h = dropout(h.cos())
        return dropout(h.sin()).exp() if after else h.sin().exp()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(f, y)
    note("forward", y)
    note("stream after forward", torch.rand(2, device=device))
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("stream after backward", torch.rand(2, device=device))


def partly(checkpoint: Any, note: Any, device: str, *, before: int, after: int, nested: bool) -> None:
    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))
    dropout = torch.nn.functional.dropout

    def inner(h):
        for _ in range(before):
            h = dropout(h.sin(), 0.3)
        aside = h.cos()
        for _ in range(after):
            h = dropout(h.exp(), 0.3)
        return aside, h.sin()

    def outer(h):
        aside, h = checkpoint(inner, dropout(h, 0.3)) if nested else inner(h)
        return aside, dropout(h, 0.3)

    aside, y = checkpoint(outer, p * 1)
    note("forward", (aside, y))
    note("stream after forward", torch.rand(2, device=device))
    aside.backward(torch.ones_like(aside), retain_graph=True)
    note("gradients 0", [p.grad])
    torch.autograd.backward([aside, y], [torch.ones_like(aside), torch.ones_like(y)])
    note("gradients 1", [p.grad])
    note("stream after backward", torch.rand(2, device=device))


def unpreserved(checkpoint: Any, note: Any, device: str, *, regions: int, draws: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def noise():
        return torch.rand(draws, 2, device=device).sum(0)

    def f(h):
        return (h * noise()).sin()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(f, y)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    after = [torch.rand(2, device=device)]
    # What the stream holds after the same draws were made once and twice, as in forward and in recomputation.
    for times in (1, 2):
        torch.manual_seed(0)
        torch.randn(2, 2, device=device)
        for _ in range(times * regions):
            noise()
        after.append(torch.rand(2, device=device))
    note("drawn once", torch.equal(after[0], after[1]))
    note("drawn twice", torch.equal(after[0], after[2]))


def explicit(checkpoint: Any, note: Any, device: str, *, form: str, regions: int, nested: bool, again: bool) -> None:
    generator, second = (torch.Generator(device).manual_seed(seed) for seed in (5, 6))
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h, box=None, source=None):
        source = box[0] if form in ("list", "two") else box["deep"][0] if form == "dict" else source
        last = box[-1] if form == "two" else source
        h = h * torch.rand(2, 2, generator=source, device=device)
        h = checkpoint(leaf, h, source) if nested else h.exp()
        return (h * torch.rand(2, 2, generator=last, device=device)).sin()

    def leaf(h, source):
        return (h * torch.randn(3, generator=source, device=device).sum()).cos()

    y = p * 1
    for _ in range(regions):
        if form == "keyword":
            y = checkpoint(f, y, source=generator)
        elif form == "positional":
            y = checkpoint(f, y, None, generator)
        else:
            y = checkpoint(f, y, {"list": [generator], "two": [generator, second], "dict": {"deep": (generator,)}}[form])
        torch.rand(1, generator=generator, device=device)
    note("forward", y)
    note("generators after forward", [generator.get_state(), second.get_state()])
    for number in range(1 + again):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [p.grad])
    note("generators after backward", [generator.get_state(), second.get_state()])
    note("stream after backward", torch.rand(2, device=device))


def failing(checkpoint: Any, note: Any, device: str, *, error: str, before: int, nested: bool) -> None:
    from contextlib import suppress

    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))
    kind = {"RuntimeError": RuntimeError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    failing = []

    def inner(h):
        for _ in range(before):
            h = torch.nn.functional.dropout(h.sin(), 0.3)
        if failing:
            raise kind("program")
        return torch.nn.functional.dropout(h.cos(), 0.3)

    def outer(h):
        return torch.nn.functional.dropout(checkpoint(inner, h) if nested else inner(h), 0.3)

    y = checkpoint(outer, p * 1)
    note("forward", y)
    failing.append(True)
    with suppress(kind):
        y.backward(torch.ones_like(y), retain_graph=True)
    note("stream after the error", torch.rand(2, device=device))
    failing.clear()
    p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("stream after backward", torch.rand(2, device=device))


def threads(checkpoint: Any, note: Any, device: str, *, draws: int, retain: bool) -> None:
    import concurrent.futures
    import threading

    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    note("leaves", leaves)
    inside, drawn, over = (threading.Event() for _ in range(3))  # the first recomputes, the second has drawn, the first is over
    calls = []

    def f(h):
        for _ in range(draws):
            h = torch.nn.functional.dropout(h.cos(), 0.3)
        calls.append(None)
        if len(calls) == 3:  # it waits for the second, if both can be inside at all
            inside.set()
            drawn.wait(0.2)
        elif len(calls) == 4:
            drawn.set()
            over.wait(0.2)
        return torch.nn.functional.dropout(h.sin(), 0.3).exp()

    def back(y):
        y.backward(torch.ones_like(y), retain_graph=retain)
        inside.set()
        over.set()

    outputs = [checkpoint(f, leaf * 1) for leaf in leaves]
    note("forward", outputs)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(back, outputs[0])
        inside.wait(10)
        second = pool.submit(back, outputs[1])
        for each in (first, second):
            each.result()
    note("gradients 0", [leaf.grad for leaf in leaves])
    note("stream after backward", torch.rand(2, device=device))


def devices(checkpoint: Any, note: Any, device: str, *, source: str, where: str, regions: int, nested: bool) -> None:
    kind = torch.device(device).type
    count = 1 if kind == "cpu" else torch.get_device_module(kind).device_count()
    devices = [f"{kind}:{index}" for index in range(count)][:3]
    drawing = {"current": devices[:1], "last": devices[-1:], "all": devices, "host too": ["cpu", *devices]}[where]
    p = torch.randn(2, 2, device={"host": "cpu", "first": devices[0], "last": devices[-1]}[source], requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        for place in drawing:
            h = h * torch.rand(2, 2, device=place).to(h.device)
        return h.sin()

    def outer(h):
        h = torch.nn.functional.dropout(h.exp())
        return (checkpoint(inner, h) if nested else inner(h)).cos()

    y = p * 1
    for _ in range(regions):
        y = checkpoint(outer, y)
    note("forward", y)
    note("streams after forward", [torch.rand(2, device=place) for place in ("cpu", *devices)])
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("streams after backward", [torch.rand(2, device=place) for place in ("cpu", *devices)])


def another_thread(checkpoint, note, device, *, draws, nested):
    from concurrent.futures import ThreadPoolExecutor
    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))
    def inner(h):
        return torch.nn.functional.dropout(h.sin(), 0.5)
    def outer(h):
        for _ in range(draws):
            h = checkpoint(inner, h) if nested else inner(h)
        return h.exp()
    y = checkpoint(outer, p * 1)
    note("forward", y)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(y.backward, torch.ones_like(y)).result()
    note("gradients 0", [p.grad])
    note("stream after backward", torch.rand(2, device=device))


def repeated(checkpoint: Any, note: Any, device: str, *, passes: int, nested: bool) -> None:
    p = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p,))
    dropout = torch.nn.functional.dropout

    def inner(h):
        return dropout(h.sin(), 0.5)

    def outer(h):
        return (checkpoint(inner, h.exp()) if nested else inner(h.exp())).cos()

    y = checkpoint(outer, p)
    note("forward", y)
    for turn in range(passes):
        note(f"stream {turn}", torch.rand(2, device=device))
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])


def kept_by_a_policy(checkpoint: Any, note: Any, device: str, *, kept: int, drawn: str, nested: bool) -> None:
    p = torch.randn(4, 4, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        h = h.sin()
        h = (
            torch.nn.functional.dropout(h, 0.5) if drawn == "dropout"
            else h * torch.rand_like(h) if drawn == "uniform"
            else h * torch.randn_like(h)
        )  # fmt: skip
        return h.exp()

    def outer(h):
        for _ in range(kept):
            h = h * (torch.bernoulli(torch.full_like(h, 0.5)) + 1)
        return checkpoint(inner, h).sin() if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("after", torch.rand(2, device=device))
