"""Programs about pairs of hooks for saved tensors: what they are asked, in which order, and what comes back."""

from __future__ import annotations

from typing import Any

import torch


def order(graph: Any, note: Any, device: str, *, steps: Any, reads: int, passes: int) -> None:
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.save_for_backward(*[x + number for number in range(count)])
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            for _ in range(reads):
                ctx.saved_tensors  # noqa: B018
            return grad * 2, None

    p = torch.tensor([0.5], device=device, requires_grad=True)
    note("leaves", (p,))
    kept, unpacked, due = [], [], []

    def pack(t):
        kept.append(t.detach())
        return len(kept) - 1

    def unpack(index):
        unpacked.append(index)
        return kept[index]

    y = p
    with graph.saved_tensors_hooks(pack, unpack):
        for step in steps:
            x, y = y, getattr(torch, step)(y) if isinstance(step, str) else Save.apply(y, step)
            saved = [y if step == "exp" else x] if isinstance(step, str) else [x + number for number in range(step)]
            due.append([t.detach() for t in saved])
    note("expected packed", [t.tolist() for saved in due for t in saved])
    note("seen packed", [t.tolist() for t in kept])
    for turn in range(passes):
        y.backward(retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])
    first, backward = 0, []
    for step, saved in zip(steps, due, strict=True):
        backward[:0] = list(range(first, first + len(saved))) * (1 if isinstance(step, str) else reads)
        first += len(saved)
    note("expected unpacked", backward * passes)
    note("seen unpacked", unpacked)


def ragged(graph: Any, note: Any, device: str, *, how: str, lengths: Any, layout: Any, passes: int) -> None:
    parts = [torch.randn(length, 3, device=device, requires_grad=True) for length in lengths]
    note("leaves", tuple(parts))
    context = {
        "kept": lambda: graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        "copied": lambda: graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t),
        "on the CPU": lambda: graph.save_on_cpu(),
        "changed": lambda: graph.allow_mutation_on_saved_tensors(),
    }[how]
    with context():
        x = torch.nested.as_nested_tensor(parts, layout=layout) * 2
        y = torch.nested.to_padded_tensor((x * x).cos(), 0.0).sum()
        if how == "changed":
            with torch.no_grad():
                x.mul_(3)
        for turn in range(passes):
            y.backward(retain_graph=turn < passes - 1)
            note(f"gradients {turn}", [part.grad for part in parts])


def pairs(graph: Any, note: Any, device: str, *, depth: int, error: Any, after: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked = []

    def pair(name):
        def pack(t):
            asked.append(f"pack {name}")
            return t.detach()

        def unpack(t):
            asked.append(f"unpack {name}")
            return t

        return graph.saved_tensors_hooks(pack, unpack)

    class Planned(Exception):
        pass

    raised = Planned if error == "Exception" else KeyboardInterrupt if error == "KeyboardInterrupt" else None
    came = []

    def inside(y, level):
        try:
            with pair(level):
                y = y.sin()
                if level < depth:
                    y = inside(y, level + 1)
                    for _ in range(after):
                        y = y.sin()
                elif raised:
                    raise raised("program")
        except (Planned, KeyboardInterrupt) as one:
            came.append([type(one).__name__, str(one)])
        return y

    y = inside(p, 1).sin()
    due = [*range(1, depth + 1), *(level for level in range(depth - 1, 0, -1) for _ in range(after))]
    if error and depth == 1:
        due = [1]
    note("expected asked in forward", [f"pack {level}" for level in due])
    note("seen asked in forward", asked[:])
    note("expected errors", [[raised.__name__, "program"]] if raised else [])
    note("seen errors", came)
    asked.clear()
    y.sum().backward()
    note("gradients 0", [p.grad])
    note("expected asked in backward", [f"unpack {level}" for level in reversed(due)])
    note("seen asked in backward", asked)


def reentered(graph: Any, note: Any, device: str, *, pattern: str) -> None:
    from contextlib import ExitStack

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked = []
    one, two = (graph.saved_tensors_hooks(lambda t, name=name: asked.append(name) or t.detach(), lambda t: t) for name in "ab")
    y, due, inside = p, [], []
    with ExitStack() as stack:
        for letter in pattern:  # a and b enter a pair, - leaves the innermost
            if letter == "-":
                if inside:
                    inside.pop().close()
            else:
                inside.append(stack.enter_context(ExitStack()))
                inside[-1].enter_context({"a": one, "b": two}[letter])
                inside[-1].name = letter
            y = y.sin()
            due += [inside[-1].name] if inside else []
    y = y.sin()
    y.sum().backward()
    note("gradients 0", [p.grad])
    note("expected asked", due)
    note("seen asked", asked)


def left(graph: Any, note: Any, device: str, *, order: Any) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked, due, inside = [], [], sorted(order)
    pairs = [graph.saved_tensors_hooks(lambda t, name=name: asked.append(name) or t.detach(), lambda t: t) for name in inside]
    for pair in pairs:
        pair.__enter__()
    y = p
    for name in order:
        y = y.sin()
        due.append(inside[-1])
        pairs[name].__exit__(None, None, None)
        inside.remove(name)
    y = y.sin()
    y.sum().backward()
    note("gradients 0", [p.grad])
    note("expected asked", due)
    note("seen asked", asked)


def threads(graph: Any, note: Any, device: str, *, main: bool, other: bool, waits: bool) -> None:
    import threading
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked = []

    def pair(name, wanted):
        if not wanted:
            return nullcontext()
        return graph.saved_tensors_hooks(lambda t: asked.append(name) or t.detach(), lambda t: t)

    here, there = threading.Event(), threading.Event()
    made = []

    def work():
        try:
            with pair("other", other):
                made.append(p.cos())
                if waits:
                    there.set()
                    here.wait(10)
        finally:
            there.set()

    thread = threading.Thread(target=work, daemon=True)
    with pair("main", main):
        thread.start()
        there.wait(10)
        made.append(p.sin())
        here.set()
        thread.join()
    sum(made).sum().backward()
    note("gradients 0", [p.grad])
    note("expected asked", ["other"] * other + ["main"] * main)
    note("seen asked", asked)


def later(graph: Any, note: Any, device: str, *, around: bool, create: bool) -> None:
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    asked = set()

    def pair(name):
        return graph.saved_tensors_hooks(
            lambda t: asked.add(f"{name} packs") or (name, t.detach()),
            lambda packed: asked.add(f"{name} unpacks what {packed[0]} packed") or packed[1],
        )

    def phase(name, *due):
        note(f"expected {name}", sorted(due))
        note(f"seen {name}", sorted(asked))
        asked.clear()

    with pair("first"):
        y = p.sin()
    phase("forward", "first packs")
    with pair("second") if around else nullcontext():
        (g,) = torch.autograd.grad(y.sum(), p, create_graph=create)
    phase("backward", "first unpacks what first packed", *(["second packs"] if create and around else []))
    note("grad", g)
    if create:
        g.sum().backward()
        note("gradients 0", [p.grad])
        phase("second order", *(["second unpacks what second packed"] if around else []))


def unlike(graph: Any, note: Any, device: str, *, kind: str, hooks: str, reader: str) -> None:
    pack, unpack = (
        (lambda t: t, lambda t: t) if hooks == "identity"
        else (lambda t: t.detach(), lambda t: t) if hooks == "detach"
        else (lambda t: [t], lambda box: box[0]) if hooks == "box"
        else (lambda t: t.detach().clone(), lambda t: t)
    )
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
        else p[0, 0].to_sparse() if kind == "sparse"
        else p[0, 0].to_sparse_csr() if kind == "csr"
        else (p > 0).long() if kind == "integer"
        else p * 1
    )

    def look(label, t):
        flags = [t.requires_grad, t.grad_fn is None, t.is_conj(), t.is_neg(), str(t.layout), str(t.device)]
        note(
            label,
            [t.to_dense() if t.layout is not torch.strided else t, t.stride() if t.layout is torch.strided else None, flags],
        )

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, q):
            result = q * 2
            ctx.save_for_backward(t, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            for number, t in enumerate(ctx.saved_tensors):
                look(f"read {number}", t)
            return None, grad * 2

    with graph.saved_tensors_hooks(pack, unpack):
        y = Reads.apply(x, p) if reader == "function" else x.exp() if reader == "result" else x * x.detach()
    if reader == "function":
        y.sum().abs().backward()
    else:
        node = y.grad_fn
        for name in ("_saved_result",) if reader == "result" else ("_saved_self", "_saved_other"):
            for again in range(2):
                t = getattr(node, name, None)
                if t is not None:
                    look(f"{name} {again}", t)
        y.sum().abs().backward()
    note("gradients 0", [p.grad])
