"""Programs in which the backward of a custom Function returns, reads or writes the very leaf that its forward saved."""

from __future__ import annotations

from typing import Any

import torch


def returned(checkpoint: Any, note: Any, device: str, *, then: str, nested: bool) -> None:
    class Score(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or (x * w).sum())
        backward = staticmethod(lambda ctx, grad: ctx.saved_tensors[::-1])

    x, w = (torch.tensor([1.0, number], device=device, requires_grad=True) for number in (2.0, 3.0))
    note("leaves", (x, w))

    def inner(x):
        return Score.apply(x, w)

    for turn in range(2 if then == "another backward" else 1):
        y = checkpoint((lambda x: checkpoint(inner, x)) if nested else inner, x)
        note(f"forward {turn}", y)
        y.backward()
        note(f"gradients {turn}", [x.grad, w.grad])
    if then == "clipping":
        torch.nn.utils.clip_grad_norm_([x, w], 0.5)
    elif then == "zeroing":
        w.grad.zero_()
    note("parameters", [x, w])


def returned_under_hooks(graph: Any, note: Any, device: str, *, context: str, then: str) -> None:
    class Score(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or (x * w).sum())
        backward = staticmethod(lambda ctx, grad: ctx.saved_tensors[::-1])

    x, w = (torch.tensor([1.0, number], device=device, requires_grad=True) for number in (2.0, 3.0))
    note("leaves", (x, w))
    if context == "hooks":
        opened = graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    else:
        opened = graph.save_on_cpu() if context == "save_on_cpu" else graph.allow_mutation_on_saved_tensors()
    with opened:
        for turn in range(2 if then == "another backward" else 1):
            y = Score.apply(x, w)
            y.backward()
            note(f"gradients {turn}", [x.grad, w.grad])
    if then == "clipping":
        torch.nn.utils.clip_grad_norm_([x, w], 0.5)
    elif then == "zeroing":
        w.grad.zero_()
    note("parameters", [x, w])


def returned_offloaded(OffloadModel, note, device, place, *, then, checkpoint):  # noqa: N803
    class Score(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or (x * w).sum())
        backward = staticmethod(lambda ctx, grad: ctx.saved_tensors[::-1])

    class Owner(torch.nn.Linear):
        forward = lambda self, x: Score.apply(x, self.weight)  # noqa: E731

    model = OffloadModel([Owner(2, 1, bias=False)], place, num_slices=1, checkpoint_activation=checkpoint)
    x = torch.tensor([[1.0, 2.0]], device=place, requires_grad=True)
    (w,) = model.parameters()
    for turn in range(2 if then == "another backward" else 1):
        model(x).backward()
        note(f"gradients {turn}", [x.grad.cpu(), w.grad.cpu()])
    if then == "clipping":
        torch.nn.utils.clip_grad_norm_([x, w], 0.5)
    elif then == "zeroing":
        x.grad.zero_()
        w.grad.zero_()
    note("parameters", [x.detach().cpu(), w.detach().cpu()])


def itself(checkpoint: Any, note: Any, device: str, *, use: str, nested: bool) -> None:
    class Multiply(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or x * w)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            if use == "an attribute":
                return grad * w, grad * x * getattr(w, "rate", 1.0)
            w.grad = grad * x if w.grad is None else w.grad + grad * x
            return grad * w, None

    x, w = (torch.tensor([1.0, number], device=device, requires_grad=True) for number in (2.0, 3.0))
    note("leaves", (x, w))
    w.rate = 10.0

    def inner(x):
        return Multiply.apply(x, w).sin()

    y = checkpoint((lambda x: checkpoint(inner, x).cos()) if nested else inner, x)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad, w.grad])


def itself_under_hooks(graph: Any, note: Any, device: str, *, context: str, use: str) -> None:
    class Multiply(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or x * w)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            if use == "an attribute":
                return grad * w, grad * x * getattr(w, "rate", 1.0)
            w.grad = grad * x if w.grad is None else w.grad + grad * x
            return grad * w, None

    x, w = (torch.tensor([1.0, number], device=device, requires_grad=True) for number in (2.0, 3.0))
    note("leaves", (x, w))
    w.rate = 10.0
    if context == "hooks":
        opened = graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    else:
        opened = graph.save_on_cpu() if context == "save_on_cpu" else graph.allow_mutation_on_saved_tensors()
    with opened:
        Multiply.apply(x, w).sin().sum().backward()
    note("gradients 0", [x.grad, w.grad])


def itself_offloaded(OffloadModel, note, device, place, *, use, checkpoint):  # noqa: N803
    class Multiply(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or x * w)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            if use == "an attribute":
                return grad * w, grad * x * getattr(w, "rate", 1.0)
            w.grad = grad * x if w.grad is None else w.grad + grad * x
            return grad * w, None

    class Owner(torch.nn.Linear):
        forward = lambda self, x: Multiply.apply(x, self.weight).sin()  # noqa: E731

    owner = Owner(2, 1, bias=False)
    owner.weight.rate = 10.0
    model = OffloadModel([owner], place, num_slices=1, checkpoint_activation=checkpoint)
    x = torch.tensor([[1.0, 2.0]], device=place, requires_grad=True)
    model(x).sum().backward()
    (w,) = model.parameters()
    note("gradients 0", [x.grad.cpu(), None if w.grad is None else w.grad.cpu()])
