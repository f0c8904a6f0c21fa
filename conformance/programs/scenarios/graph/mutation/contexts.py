"""Programs about where a context that allows changes of saved tensors begins and ends, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import torch


def nested(graph: Any, note: Any, device: str, *, depth: int, saved: bool) -> None:
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected errors", ["RuntimeError"] * depth)
    note("expected gradients", torch.autograd.grad((p * 1).sin().sum(), p))
    errors = []
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        y = x.sin() if saved else None
        for _ in range(depth):
            try:
                with graph.allow_mutation_on_saved_tensors():
                    errors.append("nothing")
            except Exception as error:
                errors.append(type(error).__name__)
        y = x.sin() if y is None else y
        x.detach().mul_(2)
        note("seen errors", errors)
        note("seen gradients", torch.autograd.grad(y.sum(), p))


def left(graph: Any, note: Any, device: str, *, change: str, other: bool) -> None:
    from contextlib import nullcontext

    p = torch.rand(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected error", ["RuntimeError", "names the context: True"])
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        y = x.sin()
        if change == "inside":
            x.detach().mul_(2)
    if change == "after":
        x.detach().mul_(2)
    with graph.allow_mutation_on_saved_tensors() if other else nullcontext():
        try:
            y.sum().backward()
        except Exception as error:
            named = "allow_mutation_on_saved_tensors" in str(error)
            note("seen error", [type(error).__name__, f"names the context: {named}"])
    note("expected gradient", None)
    note("seen gradient", p.grad)


def failed(graph: Any, note: Any, device: str, *, error: str, where: str, rounds: int) -> None:
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    class Planned(Exception):
        pass

    raised = Planned if error == "Exception" else KeyboardInterrupt

    def fail(*_):
        raise raised("program")

    def attempt(armed):
        with graph.allow_mutation_on_saved_tensors():
            x = p * 1
            y = x.sin()
            if armed and where == "forward":
                fail()
            x.detach().mul_(2)
            if armed and where == "backward":
                x.register_hook(fail)
            y.sum().backward()

    for turn in range(rounds):
        try:
            attempt(True)
        except (Planned, KeyboardInterrupt) as came:
            note(f"came {turn}", str(came))
        p.grad = None
        attempt(False)
        note(f"gradients {turn}", [p.grad])
        note(f"grad outside {turn}", torch.autograd.grad((p * 1).sin().sum(), p))
        x = p * 1
        y = x.sin()
        x.detach().mul_(2)
        try:
            y.sum().backward()
            note(f"outside {turn}", "a value")
        except RuntimeError:
            note(f"outside {turn}", "refused")  # the context is over
        p.grad = None


def several(graph: Any, note: Any, device: str, *, contexts: int, change: str) -> None:
    p = torch.rand(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    for turn in range(contexts):
        with graph.allow_mutation_on_saved_tensors():
            x = p * 1
            y = (x * x).exp()
            if change in ("input", "both"):
                x.detach().mul_(2)
            if change in ("result", "both"):
                y.detach().zero_()
            y.sum().backward()
        note(f"gradients {turn}", [p.grad])


def threads(graph: Any, note: Any, device: str, *, first: int, backward: Any) -> None:
    import concurrent.futures

    leaves = [torch.rand(2, 2, device=device, requires_grad=True) for _ in range(2)]
    note("leaves", tuple(leaves))
    expected = [torch.autograd.grad((p * 1).exp().sin().sum(), p) for p in leaves]
    note("expected threads", [["inside", grad if runs else None] for grad, runs in zip(expected, backward, strict=True)])

    def work(leaf, runs):
        try:
            with graph.allow_mutation_on_saved_tensors():
                h = (leaf * 1).exp()
                y = h.sin()
                yield "inside"
                h.detach().mul_(2)
                yield torch.autograd.grad(y.sum(), leaf) if runs else None
        except Exception as error:
            yield repr(error)

    works = [work(leaf, runs) for leaf, runs in zip(leaves, backward, strict=True)]
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in works]
    seen = [[thread.submit(next, one).result()] for thread, one in zip(threads, works, strict=True)]
    for index in (first, 1 - first):  # both are inside; one leaves after the other
        seen[index] += threads[index].submit(list, works[index]).result()
    note("seen threads", seen)


def freed(graph: Any, note: Any, device: str, *, operators: Any, change: str, steps: Any, inside: bool) -> None:
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def forward():
        x = y = p * 1
        for name in operators:
            y = y @ y if name == "matmul" else getattr(torch, name)(y)
        if change != "nothing":
            (x if change == "input" else y).detach().mul_(2)
        return y

    with graph.allow_mutation_on_saved_tensors():
        y = forward()
        for number, step in enumerate(steps):
            if step == "backward":
                y.backward(torch.ones_like(y), retain_graph=True)
                note(f"gradients {number}", [p.grad])
            elif step == "grad":
                note(f"grad {number}", torch.autograd.grad(y, p, torch.ones_like(y), retain_graph=True))
            elif step == "change":
                y.detach().add_(1)
            else:
                y = None
                note(f"empty {number}", [])
                y = forward()
        if inside:
            y = None
            note("empty inside", [])
    y = None
    note("empty", [])


def grows(graph: Any, note: Any, device: str, *, change: bool) -> None:
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    with graph.allow_mutation_on_saved_tensors():
        for _ in range(8):
            x = p * 1
            y = x.exp() * x
            if change:
                x.detach().mul_(2)
            y.sum().backward()
            note("gradients", [p.grad])
            p.grad = x = y = None
            note("step")


def unseen(graph: Any, note: Any, device: str, *, how: str, result: bool, again: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx, grad):
            (t,) = ctx.saved_tensors
            slope = grad * 2 * t
            with torch.no_grad():
                t.add_(1)
            return slope

    p = torch.rand(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    function = Twice.apply if how == "in backward" else torch.exp if result else torch.sin
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        y = function(x)
        t = (y if result and how != "in backward" else x).detach()
        if how == "in backward":
            t.mul_(2)  # so that it is a clone that backward changes
            y.sum().backward(retain_graph=True)
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(t.mul_, 2).result()
        note("expected end", "refused")
        try:
            y.sum().backward()
            note("seen end", "a value")
        except RuntimeError:
            note("seen end", "refused")
        if again:  # it is saved once more, as it is now
            x = t.requires_grad_()
            note("expected gradients", x.detach().cos())
            note("seen gradients", torch.autograd.grad(x.sin().sum(), x)[0])
