"""PyTorch's activation memory budget for compiled functions, and selective checkpointing by a policy on operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import config
from torch.nn import functional
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from benches.papers.live import Live
from benches.papers.paper import Curve, Figure, Paper, Row, exact
from impls import nested

SIZE, DEPTH = 64, 5
BUDGETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SAYS = ((0, 15), (1, 14), (2, 13), (3, 12), (4, 11), (5, 10), (5, 10), (5, 10), (5, 10), (5, 10), (10, 10))


def chain(value: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A cosine, then a matrix product and a cosine for each weight, and the sum."""
    value = value.cos()
    for weight in weights:
        value = torch.mm(value, weight).cos()
    return value.sum()


def _leaves(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SIZE, SIZE, generator=generator).requires_grad_() for _ in range(count)]


def _backward(output: torch.Tensor) -> int:
    """The matrix products of a backward."""
    with Live() as live:
        output.backward()
    return live.kernels["mm"]


def compiled(budget: float) -> tuple[int, int]:
    """Matrices that the chain, compiled within ``budget``, saves beside its inputs, and products in its backward.

    Raises RuntimeError when a gradient is not that of the chain as it stands, to within rounding.
    """
    expected, leaves = _leaves(DEPTH + 1), _leaves(DEPTH + 1)
    chain(*expected).backward()
    torch.compiler.reset()
    with config.patch(activation_memory_budget=budget):
        output = torch.compile(chain, backend="aot_eager_decomp_partition")(*leaves)
    node: Any = output.grad_fn
    inputs = {leaf.untyped_storage()._cdata for leaf in leaves}
    saved = {tensor.untyped_storage()._cdata for tensor in node.saved_tensors} - inputs
    products = _backward(output)
    for leaf, other in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, other.grad)
    return len(saved), products


def eager() -> tuple[int, int]:
    """The same for the chain as it stands."""
    leaves, saved = _leaves(DEPTH + 1), list[torch.Tensor]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = chain(*leaves)
    inputs = {leaf.untyped_storage()._cdata for leaf in leaves}
    return len({tensor.untyped_storage()._cdata for tensor in saved} - inputs), _backward(output)


def selective() -> dict[str, int]:
    """Matrix products in backward of product, GELU, product, sine: plain, recomputed, and with products kept."""

    def function(value: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.mm(functional.gelu(torch.mm(value, first)), second).sin()

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    runs: dict[str, Callable[..., Any]] = {
        "plain": function,
        "full": functools.partial(nested.checkpoint, function),
        "selective": functools.partial(nested.checkpoint, function, context_fn=contexts),
    }
    counts, gradients = {}, {}
    for name, run in runs.items():
        leaves = _leaves(3)
        counts[name] = _backward(run(*leaves).sum())
        gradients[name] = [leaf.grad for leaf in leaves if leaf.grad is not None]
        if not all(torch.equal(a, b) and a.any() for a, b in zip(gradients[name], gradients["plain"], strict=True)):
            raise RuntimeError(f"gradients of {name} are not those of plain")
    return counts


def rows() -> Iterator[Row]:
    """Saved matrices and products at each budget, and products under a selective policy."""
    for budget, says in zip(BUDGETS, SAYS, strict=True):
        yield exact(f"budget {budget}: saved matrices, matrix products in backward", says=says, measured=compiled(budget))
    yield exact("eager: saved matrices, matrix products in backward", says=(10, 10), measured=eager())
    counts = selective()
    for name, products in (("plain", 4), ("full", 6), ("selective", 4)):
        yield exact(f"product, GELU, product, sine, {name}: products in backward", says=products, measured=counts[name])


def figures() -> Iterator[Figure]:
    """Saved matrices and products against the budget."""
    measured = [compiled(budget) for budget in BUDGETS]
    curves = [
        Curve("saved matrices", BUDGETS, tuple(float(saved) for saved, _ in SAYS), "paper"),
        Curve("matrix products in backward", BUDGETS, tuple(float(products) for _, products in SAYS), "paper"),
        Curve("saved matrices, measured", BUDGETS, tuple(float(saved) for saved, _ in measured)),
        Curve("matrix products in backward, measured", BUDGETS, tuple(float(products) for _, products in measured)),
    ]
    title = "Compiled chain of 5 products: memory budget against work"
    yield Figure("torch_budget", title, "activation_memory_budget (fraction)", "count", tuple(curves))


PAPER = Paper(
    "torch_budget",
    "PyTorch's memory budget and selective checkpointing",
    "torch.compile's partitioner, `torch._functorch.config.activation_memory_budget`; `create_selective_checkpoint_contexts`",
    "Products are the mm kernels that ran during backward; saved matrices are distinct storages that the graph holds beside "
    "the inputs. Backend aot_eager_decomp_partition; selective policies run by `impls.nested`.",
    rows,
    figures=figures,
)
