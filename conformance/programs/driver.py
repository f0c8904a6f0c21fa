"""The driver of a program: the lines that ask for gradients and note them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from conformance.programs.builder import Author
    from conformance.programs.program import Leaf


def _list(names: tuple[str, ...]) -> str:
    return f"[{', '.join(names)}]"


def _ones(outputs: tuple[str, ...]) -> str:
    return f"[{', '.join(f'torch.ones_like({name})' for name in outputs)}]"


def backward(outputs: tuple[str, ...], options: str = "") -> str:
    """One call of backward with a gradient of ones for each output."""
    if len(outputs) == 1:
        return f"{outputs[0]}.backward(torch.ones_like({outputs[0]}){options})"
    return f"torch.autograd.backward({_list(outputs)}, {_ones(outputs)}{options})"


def grad(outputs: tuple[str, ...], inputs: tuple[str, ...], options: str = "") -> str:
    """One call of torch.autograd.grad; inputs that are not reached give None."""
    return f"torch.autograd.grad({_list(outputs)}, {_list(inputs)}, {_ones(outputs)}, allow_unused=True{options})"


def _subset(author: Author, leaves: tuple[str, ...]) -> tuple[str, ...]:
    """The leaves that a request is for."""
    if not author.has("through-regions"):
        return tuple(author.draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True)))
    *others, passed = leaves  # the first region is passed the last one
    return (passed, *(author.draw(st.lists(st.sampled_from(others), unique=True)) if others else ()))


def lines(author: Author, outputs: tuple[str, ...], asked: tuple[Leaf, ...]) -> tuple[str, ...]:
    """The driver's lines: what the features demand, then a plain backward of all outputs."""
    noted = _list(tuple(leaf.gradients for leaf in asked))
    leaves = tuple(leaf.tensors for leaf in asked)
    text: list[str] = []
    subset = functools.partial(_subset, author, leaves)

    def step(call: str) -> None:
        text.extend((call, f"note('gradients {len(text) // 2}', {noted})"))

    if author.has("stream"):
        text += ["note('stream after forward', torch.rand(2, device=device))", ""]
    if author.has("grad"):
        text += [f"gradients = {grad(outputs, subset(), ', retain_graph=True')}", f"note('grad {len(text)}', gradients)"]
    if author.has("create-graph"):
        text += [
            f"gradients = {grad(outputs, leaves, ', create_graph=True')}",
            f"note('first order {len(text)}', gradients)",
            "squares = sum((g * g.conj()).real.sum() for g in gradients if g is not None and g.requires_grad)",
            "if isinstance(squares, torch.Tensor): squares.backward(retain_graph=True)",
            f"note('gradients of second order', {noted})",
            "",
        ]
    if author.has("inputs"):
        step(backward(outputs, f", retain_graph=True, inputs={_list(subset())}"))
    if "partial" in author.used:
        step(backward(outputs[-1:], ", retain_graph=True"))
    if author.has("retain"):
        for _ in range(author.draw(st.integers(1, 2))):
            step(backward(outputs, ", retain_graph=True"))
    step(backward(outputs))
    if author.has("again"):
        step(backward(outputs))
    if author.has("stream"):
        text.append("note('stream after backward', torch.rand(2, device=device))")
    return tuple(line for line in text if line)
