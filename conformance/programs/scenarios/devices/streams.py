"""Programs on streams of a device, under delays that are drawn anew for each turn."""

from __future__ import annotations

from typing import Any

import torch


def on_side_streams(checkpoint: Any, note: Any, device: str, *, first: int, seeds: int, back: bool, nested: bool) -> None:
    import random

    module, delays = torch.get_device_module(device), random.Random(0)
    sleep = getattr(module, "_sleep", lambda cycles: None)  # a simulated device delays copies as long as it may anyway
    p = torch.randn(4, 4, device=device, requires_grad=True)
    away = torch.randn(4, 4).pin_memory().requires_grad_()
    note("leaves", (p, away))
    seen = []

    def delay():
        sleep(delays.choice([0, 10**5, 10**6, 10**7]))

    def inner(h):
        delay()
        return torch.nn.functional.dropout(h.sin(), 0.3)

    def outer(h):
        seen.append(module.current_stream() == forth)
        h = checkpoint(inner, h) if nested else inner(h)
        delay()
        return h * away.to(device, non_blocking=True)

    for turn in range(first, first + seeds):
        delays.seed(turn)
        p.grad = away.grad = None
        forth = module.Stream()
        forth.wait_stream(module.current_stream())
        with module.stream(forth):
            y = checkpoint(outer, p * 1)
            delay()
        module.current_stream().wait_stream(forth)
        other = module.Stream() if back else module.current_stream()
        other.wait_stream(module.current_stream())
        with module.stream(other):
            y.backward(torch.ones_like(y))
        module.synchronize()
        note(f"forward {turn}", y)
        note(f"gradients {turn}", [p.grad, away.grad])
    note("functions saw the stream of their forward", str(sorted(set(seen))))


def on_two_streams(checkpoint: Any, note: Any, device: str, *, first: int, seeds: int, last: str) -> None:
    import random

    module, delays = torch.get_device_module(device), random.Random(0)
    sleep = getattr(module, "_sleep", lambda cycles: None)
    p = torch.randn(4, 4, device=device, requires_grad=True)
    away = torch.randn(4, 4).pin_memory()
    note("leaves", (p,))
    side = module.Stream()

    def delay():
        sleep(delays.choice([0, 10**5, 10**6, 10**7]))

    def f(h):
        current = module.current_stream()
        side.wait_stream(current)
        delay()
        here = h.exp() * away.to(device, non_blocking=True)
        with module.stream(side):
            delay()
            there = (h * away.to(device, non_blocking=True)).cos()
            h.record_stream(side)
        current.wait_stream(side)
        there.record_stream(current)
        return here, there

    for turn in range(first, first + seeds):
        delays.seed(turn)
        p.grad = None
        here, there = checkpoint(f, p * 1)
        y = here + there if last == "there" else there + here
        y.backward(torch.ones_like(y))
        module.synchronize()
        note(f"forward {turn}", y)
        note(f"gradients {turn}", [p.grad])


def saved_under_delays(
    graph: Any, note: Any, device: str, *, first: int, seeds: int, depth: int, side: bool
) -> None:
    import random
    from contextlib import nullcontext

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device)
    module, delays = torch.get_device_module(device), random.Random(0)
    sleep = getattr(module, "_sleep", lambda cycles: None)
    getattr(module, "forget_hazards", tuple)()
    p = torch.randn(8, 8, device=device, requires_grad=True)
    note("leaves", (p,))

    def delay():
        sleep(delays.choice([0, 10**5, 10**6, 10**7]))

    for turn in range(first, first + seeds):
        delays.seed(turn)
        p.grad = None
        stream = module.Stream() if side else module.current_stream()
        stream.wait_stream(module.current_stream())
        with module.stream(stream) if side else nullcontext():
            with pinnable(device), graph.save_on_cpu(pin_memory=True, device_type=torch.device(device).type):
                y = p * 1
                for _ in range(depth):
                    delay()
                    y = y.sin().exp()
            delay()
        module.current_stream().wait_stream(stream)
        y.backward(torch.ones_like(y))
        module.synchronize()
        note(f"gradients {turn}", [p.grad])
    note("hazards", getattr(module, "hazards", tuple)())
