"""Programs that change tensors in place after autograd has saved them, where that is allowed."""

from __future__ import annotations

from typing import Any

import torch


def mutated(graph: Any, note: Any, device: str, *, operator: str, saved: str, mutation: str, grad: bool, passes: int) -> None:
    from torch.nn import functional

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, s, t):
            result = s * t
            ctx.save_for_backward(s, t, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            s, t, result = ctx.saved_tensors
            return grad * t * result, grad * s * result

    p, q = (torch.rand(3, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    base = torch.stack([q.detach(), q.detach()])  # a view of it is saved, at an offset
    index = torch.tensor([[0, 2, 1], [1, 1, 0], [2, 0, 2]], device=device)
    flags = torch.tensor([[True, False, True]] * 3, device=device)
    with graph.allow_mutation_on_saved_tensors():
        a, b = (p, q) if saved == "leaf" else (p * 1, q * 1)
        b = base[1] if saved == "view" else b
        y = (
            b.sin() + a.cos() if operator == "sin"
            else (a * 2).exp() * b if operator == "exp"
            else a * b if operator == "mul"
            else a * a + b * b * a if operator == "square"
            else a**b if operator == "pow"
            else a / b if operator == "div"
            else a @ b if operator == "matmul"
            else functional.linear(a, b, b[0]) if operator == "linear"
            else a.softmax(0) * b if operator == "softmax"
            else functional.layer_norm(a, (3,), b[0], b[1]) if operator == "layer_norm"
            else (a * b).gather(0, index).exp() if operator == "gather"
            else torch.where(flags, a, b) ** 2 if operator == "where"
            else a.max(0).values * b if operator == "max"
            else Save.apply(a, b)
        )
        loss = y * y
        t = (
            a if saved == "first"
            else y if saved == "result"
            else index if saved == "index"
            else flags if saved == "condition"
            else b
        )
        if not grad or t.is_leaf:
            t = t.detach()
        swapped = [(a.detach(), b.detach().clone()), (b.detach(), a.detach().clone())]
        for turn in range(passes):
            (
                t.mul_(2) if mutation == "method"
                else t.zero_() if mutation == "zero"
                else t.copy_(torch.flip(t.detach(), [0])) if mutation == "copy"
                else t.__setitem__((0, slice(None)), 1) if mutation == "item"
                else t.index_copy_(0, torch.tensor([0], device=device), t.detach()[1:2].clone()) if mutation == "index"
                else t.masked_fill_(torch.ones_like(t, dtype=torch.bool), 1) if mutation == "masked"
                else t[1:, 1:].zero_() if mutation == "part"
                else t.select(1, 2).zero_() if mutation == "column"
                else t.view(-1)[4:].zero_() if mutation == "flat"
                else base.zero_() if mutation == "base"
                else t.t().copy_(t.detach().clone()) if mutation == "transposed"
                else t.data.zero_() if mutation == "data"
                else t.random_(0, 2) if mutation == "random"
                else [one.copy_(other) for one, other in swapped]
            )
            loss.backward(torch.ones_like(loss), retain_graph=turn < passes - 1)
            note(f"gradients {turn}", [p.grad, q.grad])
    note("changed", t.detach())


def written(graph: Any, note: Any, device: str, *, operator: str, mutation: str) -> None:
    p, q = (torch.rand(3, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    with graph.allow_mutation_on_saved_tensors():
        a, b, k = p * 1, q * 1, torch.arange(9, device=device).view(3, 3) % 3
        y = (
            a * b if operator == "mul"
            else (a * a) @ (b * b) if operator == "square"
            else (a * b).exp() if operator == "exp"
            else a.gather(0, k) * b if operator == "gather"
            else torch.stack([a.sin(), b.cos(), a * b, a / b])
        )
        loss = (y * y).sum()
        s, t = a.detach(), b.detach()
        other = torch.ones_like(t)
        (
            torch.add(s, 1, out=t) if mutation == "add out"
            else torch.mul(s, s, out=s) if mutation == "mul out"
            else torch.mm(other, other, out=t) if mutation == "mm out"
            else torch.sort(other, dim=0, out=(t, k)) if mutation == "sort out"
            else torch.max(other, dim=0, out=(t[0], k[0])) if mutation == "max out"
            else torch.topk(other, 3, out=(s, k)) if mutation == "topk out"
            else torch.frexp(other * 8, out=(t, torch.empty(3, 3, dtype=torch.int32, device=device))) if mutation == "frexp out"
            else torch.cat([other[:1], other[:2]], out=s) if mutation == "cat out"
            else torch._foreach_mul_([s, t], 2.0) if mutation == "foreach mul"
            else torch._foreach_add_([s, t], [other, other], alpha=2) if mutation == "foreach add"
            else torch._foreach_copy_([t, s], [other, other]) if mutation == "foreach copy"
            else torch._foreach_zero_([s]) if mutation == "foreach zero"
            else torch._foreach_mul_([s[1:], t.t()[2]], 3.0)
        )
        loss.backward()
    note("gradients 0", [p.grad, q.grad])
    note("changed", [s, t, k])


def saved_again(graph: Any, note: Any, device: str, *, change: str, times: int) -> None:
    p, q = (torch.rand(3, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    with graph.allow_mutation_on_saved_tensors():
        h = p * 1
        products = [h * q]
        for _ in range(times):
            (
                h.add_(1) if change == "method"
                else h[1:].add_(1) if change == "view"
                else torch._foreach_add_([h], [1.0]) if change == "foreach add"
                else torch._foreach_mul_([q.detach(), h], 3.0)
            )
            products.append(h * q)
        torch.autograd.backward(products, [torch.ones_like(product) for product in products])
    note("gradients 0", [p.grad, q.grad])


def stepped(graph: Any, note: Any, device: str, *, optimizer: str, foreach: Any, steps: int) -> None:
    layer, last = torch.nn.Linear(2, 3).to(device), torch.nn.Linear(3, 2).to(device)
    parameters = [*layer.parameters(), *last.parameters()]
    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, *parameters))
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    stepper = getattr(torch.optim, optimizer)(parameters, lr=0.1, foreach=foreach, **options)
    with graph.allow_mutation_on_saved_tensors():
        for turn in range(steps):
            y = last(layer(x).tanh()).exp()
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            stepper.step()  # before the backward that needs what the weights were
            for parameter in (x, *parameters):
                parameter.grad = None
            y.sum().backward()
            note(f"gradients {turn}", [leaf.grad for leaf in (x, *parameters)])
    note("weights", parameters)


def normalised(graph: Any, note: Any, device: str, *, by: str, passes: int, later: int) -> None:
    p = torch.randn(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    norm = torch.nn.BatchNorm1d(2, dtype=torch.float64, device=device).eval()
    note("expected gradients", [torch.autograd.grad((norm(p) ** 2).sum(), p)] * passes)
    with graph.allow_mutation_on_saved_tensors():
        loss = (norm(p) ** 2).sum()
        for _ in range(later):
            if by == "module":
                norm.train()(p.detach() * 3 + 1)
            else:
                torch.batch_norm_update_stats(p.detach() * 3 + 1, norm.running_mean, norm.running_var, 0.1)
        note("seen gradients", [torch.autograd.grad(loss, p, retain_graph=True) for _ in range(passes)])


def drawn_late(graph: Any, note: Any, device: str, *, inplace: bool, times: int) -> None:
    p = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))

    def gradients():
        torch.manual_seed(1)
        x = p * 1
        for _ in range(times):
            x = torch.nn.functional.rrelu(x.sin(), training=True, inplace=inplace)
        return torch.autograd.grad((x * x).sum(), p)

    note("expected gradients", gradients())
    with graph.allow_mutation_on_saved_tensors():
        note("seen gradients", gradients())


def grown(graph: Any, note: Any, device: str, *, size: int, offset: int) -> None:
    import warnings

    p = torch.randn(2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    base = torch.rand(6, dtype=torch.float64, device=device)
    note("expected gradient", base[offset : offset + 2].clone())
    with graph.allow_mutation_on_saved_tensors(), warnings.catch_warnings(action="ignore"):
        y = p * base[offset : offset + 2]
        torch.neg(torch.ones(size, dtype=torch.float64, device=device), out=base[:1])
        note("seen gradient", torch.autograd.grad(y, p, torch.ones_like(y))[0])


def counted(graph: Any, note: Any, device: str, *, events: Any) -> None:
    leaves = [torch.rand(4, 3, device=device, requires_grad=True) for _ in range(2)]
    note("leaves", tuple(leaves))
    graphs, versions, cloned = [], [0, 0], set()
    seen, expected = [], []
    with graph.allow_mutation_on_saved_tensors() as kept:
        for event, which in events:
            x = leaves[which]
            if event in ("sin", "square", "result"):
                y = x.sin() if event == "sin" else x * x if event == "square" else (x + 0).exp()
                graphs.append((which, versions[which] if event != "result" else None, y))
            elif event == "drop":
                graphs = [one for one in graphs if one[0] != which]
            elif event == "backward":
                for _, _, y in (one for one in graphs if one[0] == which):
                    y.sum().backward()
                graphs = [one for one in graphs if one[0] != which]
            elif event == "unrelated":
                x.detach()[1:].sum().mul_(2)
            else:
                with torch.no_grad():
                    (x.mul_(2) if event == "change" else x[1:, 1].add_(1) if event == "view" else torch.neg(x, out=x))
                cloned |= {(one[0], one[1]) for one in graphs if one[0] == which and one[1] is not None}
                versions[which] += 1
            y = None
            alive = {(one[0], one[1]) for one in graphs if one[1] is not None}
            results = sum(one[1] is None for one in graphs)
            cloned &= alive
            expected.append((event, len(cloned), len(alive - cloned) + results))
            seen.append((event, len(getattr(kept, "cloned", ())), len(getattr(kept, "original", ()))))
    note("expected clones and originals", expected)
    note("seen clones and originals", seen)


def beside(graph: Any, note: Any, device: str, *, saved: Any, changed: Any) -> None:
    p = torch.rand(8, device=device)
    note("leaves", (p,))
    with graph.allow_mutation_on_saved_tensors() as kept:
        x = p.clone()
        w = torch.rand(saved[1] - saved[0], device=device, requires_grad=True)
        y = x[saved[0] : saved[1]] * w
        x[changed[0] : changed[1]].zero_()
        overlap = max(saved[0], changed[0]) < min(saved[1], changed[1])
        note("expected clones", int(overlap))
        note("seen clones", len(getattr(kept, "cloned", ())))
        y.sum().backward()
        note("expected gradients", p[saved[0] : saved[1]])
        note("seen gradients", w.grad)


def mixed(graph: Any, note: Any, device: str, *, regions: str, change: str, order: str, passes: int) -> None:
    import impls

    checkpoint = impls.get(regions).checkpoint
    p, q = (torch.rand(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))

    def inner(h):
        return h * h

    def region(h):
        return checkpoint(inner, h.cos()).exp()

    with graph.allow_mutation_on_saved_tensors():
        a = q * 1
        y = checkpoint(region, p * 1) * a if order == "before" else checkpoint(region, a.sin() * p) + a.exp()
        for turn in range(passes):
            with torch.no_grad():
                (a.mul_(2) if change == "method" else a[1].zero_() if change == "view" else torch._foreach_add_([a], 1.0))
            y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
            note(f"gradients {turn}", [p.grad, q.grad])


def sparse(graph: Any, note: Any, device: str, *, layout: str, way: str, passes: int) -> None:
    p = torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64, device=device)
    x = x.to_sparse_csr() if layout == "csr" else x.to_sparse_csc() if layout == "csc" else x.to_sparse().coalesce()
    expected = torch.autograd.grad((x @ p).sum(), p)[0]
    with graph.allow_mutation_on_saved_tensors():
        y = (x @ p).sum()
        for turn in range(passes):
            if way == "values":
                x.values().mul_(2)
            else:
                x.mul_(2)
            y.backward(retain_graph=True)
            note(f"expected {turn}", expected)
            note(f"seen {turn}", p.grad)
            p.grad = None
