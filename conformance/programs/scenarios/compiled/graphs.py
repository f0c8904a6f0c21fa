"""Programs that look at what a compiler makes of regions: its graphs, what passes between them, and what runs again."""

from __future__ import annotations

from typing import Any

import torch


def counted_graphs(
    checkpoint: Any, note: Any, device: str, *, rows: tuple[int, ...], regions: int, dynamic: bool | None
) -> None:
    inputs = [torch.randn(each, 3, device=device, requires_grad=True) for each in rows]
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def f(h):
        return h.sin()

    @torch.compile(backend=backend, fullgraph=True, dynamic=dynamic)
    def step(h):
        for _ in range(regions):
            h = checkpoint(f, h)
        return h

    for turn, x in enumerate(inputs):
        y = step(x)
        y.backward(torch.ones_like(y))
        note(f"gradients {turn}", [x.grad])
    shapes = len(set(rows))
    note("expected number of graphs", shapes if dynamic is False else 1 if dynamic else min(shapes, 2))
    note("seen number of graphs", len(graphs))


def kept_tensors(checkpoint: Any, note: Any, device: str, *, blocks: int, policy: str) -> None:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    weights = [torch.randn(3, 3, device=device, requires_grad=True) for _ in range(blocks)]
    x = torch.randn(2, 3, device=device, requires_grad=True)
    kept = {"nothing": [], "products": [torch.ops.aten.mm.default], "sines": [torch.ops.aten.sin.default]}[policy]
    options = {"context_fn": lambda: create_selective_checkpoint_contexts(kept)} if kept else {}

    def f(h, w):
        h = (h @ w).sin().exp()
        return h * h

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(h):
        for w in weights:
            h = checkpoint(f, h, w, **options)
        return h

    y = step(x)
    leaves = {leaf.untyped_storage()._cdata for leaf in (*weights, x)}
    saved = {one.untyped_storage()._cdata for one in y.grad_fn.saved_tensors}
    # Each region keeps what its policy says. Each but the first keeps what it is passed, too; but where the policy keeps the
    # product, which alone reads that, it is computed again from the product before.
    passed = 0 if policy == "products" else blocks - 1
    note("expected number of tensors", passed + (blocks if kept else 0))
    note("seen number of tensors", len(saved - leaves))
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad])


def kernels_again(checkpoint: Any, note: Any, device: str, *, blocks: int, policy: str) -> None:
    from collections import Counter

    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    x = torch.randn(2, 3, device=device, requires_grad=True)
    aten = torch.ops.aten
    kept = {"nothing": None, "sines": aten.sin.default, "exponentials": aten.exp.default}[policy]

    def keep(context, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operator is kept else CheckpointPolicy.PREFER_RECOMPUTE

    options = {"context_fn": lambda: create_selective_checkpoint_contexts(keep)} if kept else {}

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    found = Counter()

    def f(h):
        h = h.sin().exp()
        return h * h

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(h):
        for _ in range(blocks):
            h = checkpoint(f, h, **options)
        return h

    y = step(x)
    with Count():
        y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad])
    # The derivative of the product takes the result of exp, and that takes the one of sin, unless one of them is kept.
    note("expected sines", 0 if kept else blocks)
    note("seen sines", found["sin"])
    note("expected exponentials", 0 if policy == "exponentials" else blocks)
    note("seen exponentials", found["exp"])


def budgets(checkpoint: Any, note: Any, device: str, *, regions: int) -> None:
    from torch._functorch import config

    x = torch.randn(4, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)

    def f(h):
        return (h @ w).sin().exp()

    def whole(region):
        h = x.sin().exp()  # beside regions, or a budget would have nothing to decide
        for _ in range(regions):
            h = region(f, h)
        return h

    def backward(y):
        y.backward(torch.ones_like(y))
        found = [y, x.grad, w.grad]
        x.grad = w.grad = None
        return found

    due = backward(whole(lambda g, h: g(h)))
    note("gradients 0", due[1:])
    sizes = []
    for budget in (1.0, 0.75, 0.5, 0.25, 0.0):
        torch.compiler.reset()
        with config.patch(activation_memory_budget=budget):
            y = torch.compile(lambda: whole(checkpoint), backend="aot_eager", fullgraph=True)()
        leaves = {leaf.untyped_storage()._cdata for leaf in (x, w)}
        kept = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in y.grad_fn.saved_tensors}
        sizes.append(sum(size for storage, size in kept.items() if storage not in leaves))
        note(f"expected with {budget}", due)
        note(f"seen with {budget}", backward(y))
    note("expected order", sorted(sizes, reverse=True))
    note("seen order", sizes)
    note("expected less at last", True)
    note("seen less at last", sizes[0] > sizes[-1])


def peaks(checkpoint: Any, note: Any, device: str, *, regions: int) -> None:
    """The backend is aot_eager, which runs graphs operator by operator, with a meter around each of the two."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    x = torch.randn(4, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    alive, sizes = {}, []

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for one in result if isinstance(result, tuple) else (result,):
                storage = one.untyped_storage()
                alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            sizes.append(sum(size for storage, size in alive.values() if not storage.expired()))
            return result

    def metered(graph, inputs):
        run = boxed_nop(graph, inputs)

        def inside(args):
            with Alive():
                return run(args)

        inside._boxed_call = True
        return inside

    def step():
        h = x.sin().exp()
        for _ in range(regions):
            h = checkpoint(lambda h: (h @ w).sin().exp(), h)
        return h

    found = []
    backend = aot_autograd(fw_compiler=metered, partition_fn=min_cut_rematerialization_partition)
    for budget in (1.0, 0.75, 0.5, 0.25, 0.0):
        torch.compiler.reset()
        alive.clear()
        sizes.clear()
        with config.patch(activation_memory_budget=budget):
            y = torch.compile(step, backend=backend, fullgraph=True)()
        y.backward(torch.ones_like(y))
        found.append(max(sizes))
    note("gradients 0", [x.grad, w.grad])
    note("expected order", sorted(found, reverse=True))
    note("seen order", found)
