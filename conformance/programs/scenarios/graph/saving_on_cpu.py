"""Programs whose saved tensors live on the CPU until backward."""

from __future__ import annotations

from typing import Any

import torch


def returns(graph: Any, note: Any, device: str, *, kind: str, pinned: bool, place: str) -> None:
    from contextlib import nullcontext

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device) if place == "second" else "cpu"
    p = torch.randn(2, 3, 4, 4, dtype=torch.complex64 if kind in ("conj", "neg") else None, device=device)
    p = (p.bfloat16() if kind == "bfloat16" else p).requires_grad_()
    note("leaves", (p,))
    x = (
        p if kind == "leaf"
        else p.detach() if kind == "detached"
        else p.sum() if kind == "scalar"
        else p[:0] if kind == "empty"
        else p.transpose(1, 3) if kind == "transposed"
        else p[:, 1:, ::2] if kind == "slice"
        else p[:, :, :1].expand(2, 3, 5, 4) if kind == "expanded"
        else p.contiguous(memory_format=torch.channels_last) if kind == "channels last"
        else p.conj() if kind == "conj"
        else p.conj().imag if kind == "neg"
        else p.as_strided((3, 4), (1, 2)) if kind == "overlapping"
        else p[0, 0].to_sparse() if kind == "sparse"
        else p[0, 0].to_sparse_csr() if kind == "csr"
        else p[0, 0].to_sparse_csc() if kind == "csc"
        else (p > 0).long() if kind == "integer"
        else p > 0 if kind == "boolean"
        else p * 1
    )

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, q):
            ctx.save_for_backward(t)
            return q * 2

        @staticmethod
        def backward(ctx, grad):
            (t,) = ctx.saved_tensors
            flags = [t.requires_grad, t.grad_fn is None, t.is_conj(), t.is_neg(), str(t.layout), t.device.type, t.dtype]
            strided = t.layout is torch.strided
            note("read", [t if strided else t.to_dense(), t.shape, t.stride() if strided else None, flags])
            return None, grad * 2

    options = {"pin_memory": True, "device_type": torch.device(device).type if place == "second" else "cuda"} if pinned else {}
    with pinnable(device) if pinned else nullcontext(), graph.save_on_cpu(**options):
        y = Reads.apply(x, p)
        y.sum().abs().backward()
    note("gradients 0", [p.grad])


def small(graph: Any, note: Any, device: str, *, sizes: Any, least: int, views: bool) -> None:
    from conformance.simulated_device.device import Moves, second

    device = second(device)
    leaves = [torch.randn(size, device=device, requires_grad=True) for size in sizes]
    note("leaves", tuple(leaves))
    tensors = [(p * 1)[: len(p) // 2] if views else p * 1 for p in leaves]
    with Moves() as moves:
        with graph.save_on_cpu(min_bytes=least):
            y = sum(t.sin().sum() for t in tensors)
        y.backward()
    note("gradients 0", [p.grad for p in leaves])
    sizes = [t.numel() * 4 for t in tensors]
    note("expected bytes", [size for size in sizes if size >= least])
    note("seen bytes", [move.bytes for move in moves.seen if move.kind.endswith("cpu")])


def small_refused(graph: Any, note: Any, device: str, *, wrong: Any) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    note("expected error", True)
    with graph.save_on_cpu(min_bytes=0):
        p.sin()
    try:
        with graph.save_on_cpu(min_bytes=wrong):
            note("seen inside", True)
    except (TypeError, ValueError) as error:
        note("seen error", "min_bytes" in str(error))


def changed(graph: Any, note: Any, device: str, *, operator: str, change: str, pinned: bool) -> None:
    from contextlib import nullcontext, suppress

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    function = torch.sin if operator == "sin" else torch.exp if operator == "exp" else torch.square
    note("expected right or none", True)
    expected = torch.autograd.grad(function(p * 1).sum(), p)[0]
    x = p * 1
    options = {"pin_memory": True, "device_type": device} if pinned else {}
    with pinnable(device) if pinned else nullcontext(), graph.save_on_cpu(**options):
        y = function(x)
    loss = y.sum()
    for t in (x.detach(), y.detach()):
        t.mul_(2) if change == "method" else t[0].zero_() if change == "part" else t.copy_(torch.ones_like(t))
    with suppress(RuntimeError):
        loss.backward()
    note("seen right or none", p.grad is None or bool(torch.equal(p.grad, expected)))


def parts(graph: Any, note: Any, device: str, *, kind: str, pinned: bool) -> None:
    from contextlib import nullcontext

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    class Sub(torch.Tensor):
        pass

    x = (p * 1).as_subclass(Sub) if kind == "rows of a subclass" else p * 1
    column = slice(None), 0
    one, other = {"columns": (column, (slice(None), 1)), "row and column": (0, column)}.get(kind, (0, 1))
    options = {"pin_memory": True, "device_type": device} if pinned else {}
    with pinnable(device) if pinned else nullcontext(), graph.save_on_cpu(**options):
        # The first part is gone when the second one is made, maybe in its place.
        y = x[one].sin() + x[other].cos()
    y = y.as_subclass(torch.Tensor)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def changed_unseen(graph: Any, note: Any, device: str, *, what: str, pinned: bool) -> None:
    """Saves a weight or statistics twice, and changes them in between where no version tells."""
    from contextlib import nullcontext

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device)
    layer, norm = torch.nn.Linear(2, 2).to(device), torch.nn.BatchNorm1d(2).to(device)
    p = torch.randn(4, 2, device=device, requires_grad=True)
    note("leaves", (p, *layer.parameters(), *norm.parameters()))
    options = {"pin_memory": True, "device_type": device} if pinned else {}
    norm.eval()
    with pinnable(device) if pinned else nullcontext(), graph.save_on_cpu(**options):
        earlier = norm(p).sin() if what == "statistics" else layer(p).sin()
        if what == "statistics":
            norm.train()
            norm(p.detach())
            norm.eval()
        elif what == "a weight":
            layer.weight.data.add_(1)
        else:
            layer.weight.data.copy_(torch.ones_like(layer.weight))
        y = norm(p).sin() if what == "statistics" else layer(p).sin()
    y.backward(torch.ones_like(y))
    note("gradients 0", [one.grad for one in (p, *layer.parameters(), *norm.parameters())])
    note("earlier", earlier)


def again(graph: Any, note: Any, device: str, *, saves: int, between: str, passes: int) -> None:
    from conformance.simulated_device.device import second

    device = second(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x = p * 1
    made = []
    with graph.save_on_cpu():
        for number in range(saves):
            made.append(x.sin() if number % 2 else x.cos())
            if between == "change":
                with torch.no_grad():
                    x.copy_(x.detach())  # the values stay, but nobody can know that
            elif between == "drop":
                del made[:]
    y = torch.stack([t.sum() for t in made]).sum() if made and between != "change" else p.sin().sum()
    for turn in range(passes):
        y.backward(retain_graph=True)
        note(f"gradients {turn}", [p.grad])


def reused(graph: Any, note: Any, device: str, *, count: int, pinned: bool) -> None:
    from contextlib import nullcontext

    from conformance.programs.scenarios.graph.pinning import pinnable
    from conformance.simulated_device.device import second

    device = second(device)
    p = torch.randn(512, 512, device=device, requires_grad=True)  # large memory is given out again at once
    note("leaves", (p,))
    options = {"pin_memory": True, "device_type": device} if pinned else {}
    with pinnable(device) if pinned else nullcontext(), graph.save_on_cpu(**options):
        # What is saved dies at once, and the next one may be made in its place.
        made = [(p + number).sin() for number in range(count)]
    torch.autograd.backward(made, [torch.ones_like(one) for one in made])
    note("gradients 0", [p.grad])
