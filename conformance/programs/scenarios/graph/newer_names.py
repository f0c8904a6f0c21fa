"""Programs about names of the graph tools that not every release of torch has, and that an implementation may lack."""

from __future__ import annotations

from typing import Any

import torch


def created(graph: Any, note: Any, device: str, *, steps: Any, contexts: int, twice: bool) -> None:
    import contextlib

    if not hasattr(graph, "node_creation_hook"):
        raise NotImplementedError("node_creation_hook is missing, which is as good as a refusal")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    p = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    seen, due, made, h = [], [], ["AccumulateGrad"], p

    def watch(number):
        def hook(node):
            seen.append((number, node, [below.name() for below, _ in node.next_functions if below is not None]))

        return graph.node_creation_hook(hook)

    with contextlib.ExitStack() as stack:
        for number in range(contexts):
            stack.enter_context(watch(number))
        for step in steps:
            h, names = (
                (h.sin(), ["SinBackward0"]) if step == "sin"
                else (h.exp(), ["ExpBackward0"]) if step == "exp"
                else (h.view(3, 1)[:, 0], ["ViewBackward0", "SelectBackward0"]) if step == "view"
                else (Twice.apply(h), ["TwiceBackward"])
            )
            for name in [*made, *names]:
                due += [(number, name) for number in range(contexts)]
            made = []
            with torch.no_grad():
                h.cos()
        note("expected the node of the result", True)
        note("seen the node of the result", seen[-1][1] is h.grad_fn)
        forward = len(seen)
        (grad,) = torch.autograd.grad(h.sum(), p, create_graph=twice)
    p.cos()
    note("expected nodes", due)
    note("seen nodes", [(number, node.name().rpartition("::")[2]) for number, node, _ in seen[:forward]])
    note("expected what is below", [[below.name() for below, _ in node.next_functions if below] for _, node, _ in seen])
    note("seen what is below", [below for _, _, below in seen])
    note("expected each once", contexts * len({node for _, node, _ in seen}))
    note("seen each once", len(seen))
    note("expected nodes of gradients", twice and bool(grad.requires_grad))
    note("seen nodes of gradients", grad.grad_fn in {node for _, node, _ in seen[forward:]} if twice else False)


def creation_fails(graph: Any, note: Any, device: str, *, wrong: str) -> None:
    if not hasattr(graph, "node_creation_hook"):
        raise NotImplementedError("node_creation_hook is missing, which is as good as a refusal")
    p = torch.randn(3, device=device, requires_grad=True)
    note("leaves", (p,))
    calls = []

    def raising(node):
        calls.append(node)
        raise KeyError("the program's")

    def making(node):
        calls.append(node)
        torch.ones(1, requires_grad=True).sin()

    note("expected error", "KeyError" if wrong == "raises" else "RuntimeError" if wrong == "makes a node" else "TypeError")
    try:
        with graph.node_creation_hook(raising if wrong == "raises" else making if wrong == "makes a node" else 3):
            p.sin()
        note("seen error", "none")
    except NotImplementedError:
        raise
    except Exception as error:
        note("seen error", type(error).__name__)
    before = len(calls)
    p.cos().sum().backward()
    note("expected later calls", 0)
    note("seen later calls", len(calls) - before)


def called_back(graph: Any, note: Any, device: str, *, where: str, inner: bool, further: bool, passes: int) -> None:
    if not hasattr(graph, "queue_callback"):
        raise NotImplementedError("queue_callback is missing, which is as good as a refusal")
    p, q = (torch.randn(3, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    order = []

    def first():
        order.append(("first", p.grad is not None))
        if further:
            graph.queue_callback(lambda: order.append("further"))

    def hook(*_):
        graph.queue_callback(first)
        graph.queue_callback(lambda: order.append(("second", p.grad is not None)))
        if inner:
            with torch.enable_grad():
                handle = q.register_hook(lambda grad: graph.queue_callback(lambda: order.append("inner")))
                (q * q).sum().backward()
            handle.remove()
            order.append("after inner")

    class Calling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            hook()
            return grad * 2

    h = Calling.apply(p) if where == "function" else p.sin()
    places = {"leaf": p.register_hook, "accumulated": p.register_post_accumulate_grad_hook, "node": h.grad_fn.register_prehook}
    if where in places:
        places[where](hook)
    for turn in range(passes):
        p.grad = None
        h.sum().backward(retain_graph=turn < passes - 1)
        order.append("after")
    once = [*(["inner", "after inner"] if inner else []), ("first", True), ("second", True)]
    note("expected order", [*once, *(["further"] if further else []), "after"] * passes)
    note("seen order", order)
    note("gradients 0", [p.grad])


def not_called_back(graph: Any, note: Any, device: str, *, wrong: str) -> None:
    if not hasattr(graph, "queue_callback"):
        raise NotImplementedError("queue_callback is missing, which is as good as a refusal")
    p = torch.randn(3, device=device, requires_grad=True)
    note("leaves", (p,))
    order = []

    def hook(grad):
        try:
            graph.queue_callback(3 if wrong == "not callable" else lambda: order.append("called"))
        except TypeError:
            order.append("refused")
        if wrong == "the backward fails":
            raise KeyError("the program's")

    note("expected order", {"outside": ["refused"], "not callable": ["refused", "after"]}.get(wrong, ["failed", "after"]))
    if wrong == "outside":
        try:
            graph.queue_callback(lambda: order.append("called"))
        except NotImplementedError:
            raise
        except RuntimeError as error:
            order.append("refused" if "backward" in str(error) else str(error))
    else:
        handle = p.register_hook(hook)
        try:
            p.sin().sum().backward()
        except KeyError:
            order.append("failed")
        except TypeError:
            order.append("failed too late")
        handle.remove()
        p.sin().sum().backward()
        order.append("after")
    note("seen order", order)


def budget_refused(graph: Any, note: Any, device: str, *, wrong: str) -> None:
    if not hasattr(graph, "region_activation_memory_budget"):
        raise NotImplementedError("region_activation_memory_budget is missing, which is as good as a refusal")
    given = {"more than all": 1.5, "less than nothing": -0.1, "text": "half", "a flag": True, "nothing": None}.get(wrong, 0.5)
    kinds = {"more than all": ValueError, "less than nothing": ValueError, "not compiled": RuntimeError}
    note("expected refusal", kinds.get(wrong, TypeError).__name__)
    try:
        with graph.region_activation_memory_budget(given):
            torch.ones(2, device=device).sin()
        note("seen refusal", "none")
    except NotImplementedError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        note("seen refusal", type(error).__name__ if "budget" in str(error) else str(error))


def budget_compiled(graph: Any, note: Any, device: str, *, budget: float) -> None:
    if not hasattr(graph, "region_activation_memory_budget"):
        raise NotImplementedError("region_activation_memory_budget is missing, which is as good as a refusal")
    p = torch.randn(3, device=device, requires_grad=True)
    note("leaves", (p,))
    torch.compiler.reset()

    def function(t):
        with graph.region_activation_memory_budget(budget):
            return t.sin().exp().cos()

    y = torch.compile(function, backend="eager", fullgraph=True)(p)
    y.sum().backward()
    seen, p.grad = p.grad, None
    p.sin().exp().cos().sum().backward()
    note("expected gradient", p.grad)
    note("seen gradient", seen)
    torch.compiler.reset()


def settings(graph: Any, note: Any, device: str, *, name: str, values: Any) -> None:
    read = getattr(torch._C, name.removeprefix("set"), None)
    if read is None or not hasattr(graph, name):
        raise NotImplementedError(f"{name} is missing, which is as good as a refusal")
    before = read()
    seen = []
    try:
        for value in values:
            getattr(graph, name)(value)
            seen.append(read())
    finally:
        getattr(graph, name)(before)
    note("expected values", [*values, before])
    note("seen values", [*seen, read()])
