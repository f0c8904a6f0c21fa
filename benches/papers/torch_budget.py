"""PyTorch's activation memory budget for compiled functions, and selective checkpointing by a policy on operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import config
from torch.nn import functional
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from benches.papers.meters.live import Live
from benches.papers.paper import Claim, Curve, Figure, Paper, Said, derived, exact
from impls import nested

SIZE, DEPTH = 64, 5
BUDGETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EXPECTED = ((0, 15), (1, 14), (2, 13), (3, 12), (4, 11), (5, 10), (5, 10), (5, 10), (5, 10), (5, 10), (10, 10))
TEST = "test/functorch/test_ac.py, test_matmul_even_chain"


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


@functools.cache
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


def selective(name: str) -> int:
    """Matrix products in backward of product, GELU, product, sine: plain, recomputed in full, or with products kept.

    Raises RuntimeError when a gradient is not that of plain, to the last bit, or zero.
    """

    def function(value: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.mm(functional.gelu(torch.mm(value, first)), second).sin()

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    runs: dict[str, Callable[..., Any]] = {
        "plain": function,
        "full": functools.partial(nested.checkpoint, function),
        "selective": functools.partial(nested.checkpoint, function, context_fn=contexts),
    }
    counts, gradients = [], []
    for run in (function, runs[name]):
        leaves = _leaves(3)
        counts.append(_backward(run(*leaves).sum()))
        gradients.append([leaf.grad for leaf in leaves if leaf.grad is not None])
    if not all(torch.equal(a, b) and a.any() for a, b in zip(*gradients, strict=True)):
        raise RuntimeError(f"gradients of {name} are not those of plain")
    return counts[1]


def claims() -> Iterator[Claim]:
    """Saved matrices and products at each budget, and products under a selective policy."""
    for budget, counts in zip(BUDGETS, EXPECTED, strict=True):
        yield exact(
            f"budget {budget}: saved matrices, matrix products in backward",
            says=Said(_stated(budget), TEST),
            expected=counts,
            measure=functools.partial(compiled, budget),
        )
    yield derived("eager: saved matrices, matrix products in backward", expected=(10, 10), measure=eager)
    for name, products in (("plain", 4), ("full", 6), ("selective", 4)):
        yield derived(
            f"product, GELU, product, sine, {name}: products in backward",
            expected=products,
            measure=functools.partial(selective, name),
        )


def _stated(budget: float) -> str:
    """What PyTorch's test asserts: matrices of memory, and products more than those of eager's backward."""
    matrices, products = EXPECTED[BUDGETS.index(budget)]
    more = products - 2 * DEPTH
    return f"{matrices} matrices of memory, work eager's" + (f" + {more} products" if more else "")


def figures() -> Iterator[Figure]:
    """Saved matrices and products against the budget."""
    ran = [compiled(budget) for budget in BUDGETS]
    names = "saved matrices", "matrix products in backward"
    curves = [
        Curve(f"{name}, PyTorch's test", BUDGETS, tuple(float(one[place]) for one in EXPECTED), "stated")
        for place, name in enumerate((names[0], "eager's 10 and more products"))
    ]
    curves += [Curve(name, BUDGETS, tuple(float(one[place]) for one in ran), "measured") for place, name in enumerate(names)]
    title = "Compiled chain of 5 products: memory budget against work"
    yield Figure("torch_budget", title, "activation_memory_budget (fraction)", "count", tuple(curves))


PAPER = Paper(
    "torch_budget",
    "PyTorch's memory budget and selective checkpointing",
    "torch.compile's partitioner, `torch._functorch.config.activation_memory_budget`; `create_selective_checkpoint_contexts`",
    "Products are the mm kernels that ran during backward; saved matrices are distinct storages that the graph holds beside "
    "the inputs. Backend aot_eager_decomp_partition; selective policies run by `impls.nested`. PyTorch's test counts bytes of "
    "a GPU's allocator and FLOPs, in matrices of 512 × 512 and products of two of them.",
    claims,
    figures=figures,
)
