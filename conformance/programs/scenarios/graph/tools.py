"""Programs about nodes and edges of the graph, version counters, and the log of a backward."""

from __future__ import annotations

from typing import Any

import torch


def edge(graph: Any, note: Any, device: str, *, kind: str, role: str, dies: bool) -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * 2, t.exp()

        @staticmethod
        def backward(ctx, one, two):
            (t,) = ctx.saved_tensors
            return one * 2 + two * t.exp()

    p = torch.randn(3, 3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))

    def make():
        return (
            p if kind == "leaf"
            else torch.nn.Parameter(p.detach()) if kind == "parameter"
            else p.sin() if kind == "result"
            else p.sin()[1:, ::2] if kind == "view"
            else p[0] if kind == "view of a leaf"
            else (p * 1).mul_(2) if kind == "changed"
            else p.sin().unbind(0)[1] if kind == "one of several"
            else p.sort(0).values if kind == "sorted"
            else Two.apply(p)[1] if kind == "function"
            else Two.apply(p.sin())[0].cos()
        )

    t = make()
    assert role == "input" or not t.is_leaf
    found = graph.get_gradient_edge(t)
    note("expected kind", [True, True, t.output_nr])
    note("seen kind", [isinstance(found, graph.GradientEdge), isinstance(found.node, graph.Node), found.output_nr])
    ones = torch.ones_like(t)
    if role == "input":
        loss = (t * t).sum()
        note("expected gradients", torch.autograd.grad(loss, t, retain_graph=True))
        t = None if dies else t
        note("seen gradients", torch.autograd.grad(loss, found))
    else:
        note("expected gradients", torch.autograd.grad(t, p, ones, retain_graph=True))
        t = None if dies else t
        note("seen gradients", torch.autograd.grad(found, p, ones))


def edge_in_a_mode(graph: Any, note: Any, device: str, *, mode: str, leaf: bool) -> None:
    p = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    t = p if leaf else p.sin()
    with {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "enable_grad": torch.enable_grad}[mode]():
        found = graph.get_gradient_edge(t)
    loss = (t * t).sum()
    note("expected gradient", torch.autograd.grad(loss, t, retain_graph=True))
    note("seen gradient", torch.autograd.grad(loss, found))


def edge_freed(graph: Any, note: Any, device: str, *, kind: str, used: bool) -> None:
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t.exp())
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    t = p.exp() if kind == "result" else Save.apply(p) if kind == "function" else Save.apply(p.exp()).exp()
    found = graph.get_gradient_edge(t)
    ones = torch.ones(2, 2, device=device)
    del t
    if used:
        note("grad", torch.autograd.grad(found, p, ones, retain_graph=True))
    del found, ones
    note("empty", [])
    p.sin().sum().backward()
    note("gradients 0", [p.grad])


def edge_refused(graph: Any, note: Any, device: str, *, wrong: str) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected refused", True)
    try:
        graph.get_gradient_edge(
            p.detach() if wrong == "no grad"
            else torch.ones(2, dtype=torch.long, device=device) if wrong == "integer"
            else None if wrong == "none"
            else 3 if wrong == "number"
            else [p] if wrong == "list"
            else p.sin().grad_fn
        )
        note("seen refused", False)
    except Exception as error:
        named = any(name in str(error) for name in ("Tensor", "a tensor", "require"))
        note("seen refused", isinstance(error, (RuntimeError, TypeError, ValueError)) and named)


def nodes(graph: Any, note: Any, device: str, *, kind: str) -> None:
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    h = p.sin()
    y = Save.apply(h) if kind == "function" else h  # held: torch 2.11 lets a Function's node die with what it returned
    node = (
        h.grad_fn if kind == "result"
        else h.grad_fn.next_functions[0][0] if kind == "leaf"
        else y.grad_fn if kind == "function"
        else h[0].grad_fn if kind == "view"
        else h.sum().grad_fn if kind == "sum"
        else h if kind == "tensor"
        else p.grad_fn
    )
    note("expected node", kind not in ("tensor", "none"))
    note("seen node", isinstance(node, graph.Node))
    if kind not in ("tensor", "none"):
        calls = []
        handle = node.register_prehook(lambda grads: calls.append(len(grads)))
        note("expected name and metadata", [type(node).__name__, "dict"])
        note("seen name and metadata", [node.name().rpartition("::")[2], type(node.metadata).__name__])
        handle.remove()
        note("expected below", all(below is None or isinstance(below, graph.Node) for below, _ in node.next_functions))
        note("seen below", True)


def versions(graph: Any, note: Any, device: str, *, form: str, times: int, view: bool) -> None:
    p = torch.randn(4, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x, y, z = (p * 1 for _ in range(3))
    before = [x._version, y._version, z._version]
    both = form not in ("tensor", "nothing")
    note("expected versions", [times * (form != "nothing"), times * both, 0])
    note("expected backward", "a value" if form == "nothing" else "RuntimeError")
    loss = (x * x + y * y).sum()
    for _ in range(times):
        t = x.detach()[1:] if view else x
        if form == "tensor":
            graph.increment_version(t)
        elif form == "list":
            graph.increment_version([t, y])
        elif form == "tuple":
            graph.increment_version((t, y))
        elif form == "generator":
            graph.increment_version(one for one in (t, y))
        elif form == "set":
            graph.increment_version({y, t})
        elif form == "nothing":
            graph.increment_version([])
    note("seen versions", [now - then for now, then in zip([x._version, y._version, z._version], before, strict=True)])
    try:
        loss.backward()
        note("seen backward", "a value")
    except RuntimeError as error:
        note("seen backward", type(error).__name__)


def versions_refused(graph: Any, note: Any, device: str, *, wrong: Any, first: bool, alone: bool) -> None:
    x = torch.randn(2, 2, device=device)
    before = x._version
    note("expected refused", True)
    try:
        graph.increment_version(wrong if alone else [wrong, x] if first else [x, wrong])
        note("seen refused", False)
    except Exception as error:
        named = any(name in str(error) for name in ("Tensor", "a tensor", "require"))
        note("seen refused", isinstance(error, (RuntimeError, TypeError, ValueError)) and named)
    note("expected version", before)
    note("seen version", x._version)


def versions_of_inference(graph: Any, note: Any, device: str, *, form: str) -> None:
    with torch.inference_mode():
        made = torch.randn(2, 2, device=device)
    x = torch.randn(2, 2, device=device)
    before = x._version
    graph.increment_version([made, x] if form == "list" else made)
    note("expected version", before + (form == "list"))
    note("seen version", x._version)


def logged(graph: Any, note: Any, device: str, *, steps: Any, order: str, level: str, error: bool) -> None:
    import contextlib
    import unittest.mock

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    p = torch.randn(2, 3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    y, due = p, [("AccumulateGrad", [2, 3], 64)]
    for step in steps:
        y, name = (
            (y.sin(), "Sin") if step == "sin"
            else (y.t(), "T") if step == "t"
            else (y.to(torch.float32 if due[-1][2] == 64 else torch.float64), "ToCopy") if step == "dtype"
            else (y.unsqueeze(0), "Unsqueeze") if step == "unsqueeze"
            else (y.squeeze(0), "Squeeze") if step == "squeeze"
            else (Twice.apply(y), "TwiceBackward")
        )
        due += [(name, list(y.shape), torch.finfo(y.dtype).bits)]
    loss = y.sum()
    due = [("Sum", [], torch.finfo(y.dtype).bits), *due[::-1]]
    inside, elsewhere = [], []

    def keeping(lines):
        return unittest.mock.patch.object(graph.log, "handle", lambda record: lines.append(record.getMessage()))

    def backward(output, lines):
        with keeping(lines), contextlib.suppress(ZeroDivisionError):
            output.backward(retain_graph=True)

    before = graph.log.level
    graph.log.setLevel(level)
    if error:
        failing = p.register_hook(lambda grad: 1 / 0)
        due.pop()  # the leaf's node is not reached
    if order == "outside first":
        backward(loss, elsewhere)
    with keeping(elsewhere), graph.logged_backward(loss):
        if order == "other first":
            backward(torch.randn(2, device=device, requires_grad=True).cos().sum(), elsewhere)
        backward(loss, inside)
        if error:
            failing.remove()
        if order == "twice":
            backward(loss, elsewhere)
    backward(loss, elsewhere)
    graph.log.setLevel(before)

    def tells(line, name, shape, bits):
        return name in line and str(shape) in line and (f"f{bits}" in line or f"float{bits}" in line)

    expected = due if level == "DEBUG" else []
    note("expected nodes", expected)
    note("seen nodes", [node if tells(line, *node) else line for line, node in zip(inside, expected, strict=False)])
    note("expected lines", len(expected))
    note("seen lines", len(inside))
    note("expected elsewhere", 0)
    note("seen elsewhere", len(elsewhere))


def logged_several(graph: Any, note: Any, device: str, *, forms: Any, shared: str) -> None:
    import unittest.mock

    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    outputs = list(p.sin().unbind()) if shared == "node" else [p.sin(), (p if shared == "leaf" else q).cos()]
    marked = [graph.get_gradient_edge(t) if form == "edge" else t for t, form in zip(outputs, forms, strict=True)]
    lines = []
    before = graph.log.level
    graph.log.setLevel("DEBUG")
    keeping = unittest.mock.patch.object(graph.log, "handle", lambda record: lines.append(record.getMessage()))
    with keeping, graph.logged_backward(*marked):
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    graph.log.setLevel(before)
    names = ("AccumulateGrad", "SinBackward", "UnbindBackward" if shared == "node" else "CosBackward")
    note("expected nodes", sorted((*names, "AccumulateGrad") if shared == "nothing" else names))
    note("seen nodes", sorted(name for line in lines for name in names if name in line))
