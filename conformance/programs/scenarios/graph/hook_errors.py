"""Programs in which hooks for saved tensors fail, are of no use, or are switched off."""

from __future__ import annotations

from typing import Any

import torch


def failing(graph: Any, note: Any, device: str, *, where: str, error: str, turn: int, around: bool) -> None:
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    class Planned(Exception):
        pass

    raised = Planned if error == "Exception" else ValueError if error == "ValueError" else KeyboardInterrupt
    calls, asked = [], []

    def pack(t):
        calls.append("pack")
        if where == "pack" and calls.count("pack") == turn:
            raise raised("program")
        return t.detach()

    def unpack(t):
        calls.append("unpack")
        if where == "unpack" and calls.count("unpack") == turn:
            raise raised("program")
        return t

    def forward():
        with graph.saved_tensors_hooks(pack, unpack):
            return (p * 1).sin().exp().cos()

    note("expected gradients", torch.autograd.grad((p * 1).sin().exp().cos().sum(), p))
    note("expected error", [raised.__name__, "program"])
    outer = graph.saved_tensors_hooks(lambda t: asked.append("outer") or t.detach(), lambda t: t)
    y = None
    with outer if around else nullcontext():
        try:
            y = forward()
            torch.autograd.grad(y.sum(), p, retain_graph=True)
        except (Planned, ValueError, KeyboardInterrupt) as came:
            note("seen error", [type(came).__name__, str(came)])
        asked.clear()
        p.sin()
    note("expected asked around", ["outer"] * around)
    note("seen asked around", asked)
    y = forward() if y is None else y
    note("seen gradients", torch.autograd.grad(y.sum(), p))


def returned(graph: Any, note: Any, device: str, *, wrong: Any, operator: str) -> None:
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected error", "TypeError")
    with graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: [t] if wrong == "tensor" else wrong):
        y = Save.apply(p) if operator == "function" else getattr(torch, operator)(p)
    try:
        y.backward(torch.ones_like(y))
    except TypeError as error:
        note("seen error", type(error).__name__)
    note("expected gradients", None)
    note("seen gradients", p.grad)


def modifying(graph: Any, note: Any, device: str, *, operator: str, change: str) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x = p * 1
    change = (
        (lambda t: t.detach().add_(1)) if change == "add"
        else (lambda t: t.detach().zero_()) if change == "zero"
        else (lambda t: t.detach()[0].mul_(2))
    )
    note("expected error", "RuntimeError")
    with graph.saved_tensors_hooks(lambda t: change(t), lambda t: t):
        try:
            getattr(torch, operator)(x)
        except RuntimeError as error:
            note("seen error", type(error).__name__)


def copied_early(graph: Any, note: Any, device: str, *, inplace: bool, rows: int) -> None:
    p = torch.randn(rows, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected error", ["RuntimeError", "names the operator: True"])
    with graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = torch.nn.functional.rrelu(p * 1, training=True, inplace=inplace).sum()
    try:
        y.backward()
    except RuntimeError as error:
        note("seen error", [type(error).__name__, f"names the operator: {'rrelu' in str(error)}"])
    note("expected gradient", [None])
    note("seen gradient", [p.grad])


def uncallable(graph: Any, note: Any, device: str, *, wrong: Any, first: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected error", "TypeError")
    asked = []
    with graph.saved_tensors_hooks(lambda t: asked.append("outer") or t.detach(), lambda t: t):
        try:
            with graph.saved_tensors_hooks(*((wrong, torch.neg) if first else (torch.neg, wrong))):
                note("seen inside", True)
        except TypeError as error:
            note("seen error", type(error).__name__)
        p.sin()
    note("expected asked", ["outer"])
    note("seen asked", asked)


def derived(graph: Any, note: Any, device: str, *, base: str, nested: bool) -> None:
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    class Doubled(graph.saved_tensors_hooks):
        def __init__(self):
            super().__init__(lambda t: t * 2, lambda t: t / 2)

    class OnHost(graph.save_on_cpu):
        pass

    context = (Doubled if base == "hooks" else OnHost)()
    note("expected kind", True)
    note("seen kind", isinstance(context, graph.saved_tensors_hooks))
    packed = context.pack_hook(torch.ones(2, device=device))
    note("expected hooks", torch.ones(2, device=device))
    note("seen hooks", context.unpack_hook(packed))
    note("expected gradients", torch.autograd.grad(p.sin().sum(), p))
    with Doubled() if nested else nullcontext(), context:
        y = p.sin()
    note("seen gradients", torch.autograd.grad(y.sum(), p))


def disabled(graph: Any, note: Any, device: str, *, depth: int, error: Any, context: str) -> None:
    from contextlib import suppress

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    heard, asked = [], []

    class Planned(Exception):
        pass

    def attempt():
        hooks = graph.saved_tensors_hooks(lambda t: asked.append(1) or t.detach(), lambda t: t)
        try:
            with hooks if context == "hooks" else graph.save_on_cpu():
                p.sin()
            heard.append("hooks are on")
        except RuntimeError as refused:
            heard.append(str(refused))
        p.cos()

    def inside(level):
        with graph.disable_saved_tensors_hooks(f"no hooks at level {level}"):
            attempt()
            if level < depth:
                with suppress(Planned, KeyboardInterrupt):
                    inside(level + 1)
                attempt()
            elif error:
                raise (Planned if error == "Exception" else KeyboardInterrupt)("program")

    with suppress(Planned, KeyboardInterrupt):
        inside(1)
    attempt()
    levels = [*range(1, depth + 1), *range(depth - 1, 0, -1)]
    note("expected heard", [*(f"no hooks at level {level}" for level in levels), "hooks are on"])
    note("seen heard", heard)
    note("expected asked", [1] if context == "hooks" else [])
    note("seen asked", asked)


def disabled_elsewhere(graph: Any, note: Any, device: str, *, before: bool) -> None:
    import threading

    heard = []

    def attempt(name):
        try:
            with graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
                heard.append(f"{name}: on")
        except RuntimeError as refused:
            heard.append(f"{name}: {refused}")

    def work():
        attempt("other")
        with graph.disable_saved_tensors_hooks("off in the other thread"):
            attempt("other")
        attempt("other")

    def other():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()

    if before:
        other()
    with graph.disable_saved_tensors_hooks("off in the main thread"):
        other()
        attempt("main")
    attempt("main")
    there = ["other: on", "other: off in the other thread", "other: on"]
    note("expected heard", [*(there if before else []), *there, "main: off in the main thread", "main: on"])
    note("seen heard", heard)


def disabled_inside(graph: Any, note: Any, device: str, *, depth: int, context: str) -> None:
    from contextlib import ExitStack

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked = []
    note("expected refused", "no hooks here")
    with ExitStack() as stack:
        for level in range(depth):
            hooks = graph.saved_tensors_hooks(lambda t, level=level: asked.append(level) or t.detach(), lambda t: t)
            stack.enter_context(graph.save_on_cpu() if context == "save_on_cpu" and level < depth - 1 else hooks)
        try:
            with graph.disable_saved_tensors_hooks("no hooks here"):
                note("seen refused", "nothing")
        except RuntimeError as refused:
            note("seen refused", str(refused))
        p.sin()
        note("expected asked", [depth - 1])
        note("seen asked", asked)
    with graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = p.sin()
    y.sum().backward()
    note("gradients 0", [p.grad])
