"""The leaves of a drawn program: tensors, tensors of another shape or dtype, and modules with parameters."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.programs.generator.builder import Author
from conformance.programs.generator.layers import MODULES
from conformance.programs.program import Leaf

# Modules by their texts, {0} is the width and {1} the dtype; the second one has parameters of the first.
_MODULES = ("torch.nn.Linear({0}, {0}, {1})", "torch.nn.LayerNorm({0}, {1})")
_AROUND = ("torch.nn.Sequential(m1, torch.nn.Tanh())", "torch.nn.Sequential(torch.nn.Tanh(), m1, m1)")
_SHAPES = ("()", "{0}", "{0}, 1")  # each broadcasts to a matrix of that width
_PARAMETERS = ("p0", "p1")
UNLIKE = "v0"  # the leaf of another shape
_LOWER = ("torch.float32", "torch.bfloat16")  # what float64 is computed with stays float64


def made(author: Author, size: int, dtype: str, layout: str) -> list[Leaf]:
    """The leaves of a program; computation starts from the last. Sets the author's ``parameters`` and ``modules``."""
    alike: list[Leaf] = []
    names = ("c0", *_PARAMETERS, "x0") if author.draw(st.booleans()) else ("c0", _PARAMETERS[0])
    author.parameters = [name for name in names if name in _PARAMETERS]
    for name in names:
        code = f"torch.randn({size}, {size}, dtype={dtype}, device=device){layout}"
        grad = name != "c0"
        alike.append(Leaf(name, f"{code}.requires_grad_()" if grad else code, grad))
    return [*_modules(author, size, dtype), *_layers(author, size, dtype), *_unlike(author, size, dtype), *alike]


def _unlike(author: Author, size: int, dtype: str) -> list[Leaf]:
    """A leaf of another shape and, where that can be, of another dtype."""
    if not author.draw_feature("unlike-leaves"):
        return []
    shape = author.pick(_SHAPES).format(size)
    other = author.pick(_LOWER) if dtype == "torch.float64" else dtype
    return [Leaf(UNLIKE, f"torch.randn({shape}, dtype={other}, device=device, requires_grad=True)", True)]


def _modules(author: Author, size: int, dtype: str) -> list[Leaf]:
    """One module, or two that share parameters."""
    if not author.draw_feature("modules"):
        return []
    options = f"dtype={dtype}, device=device"
    texts = [author.pick(_MODULES[:1] if "complex" in author.used else _MODULES).format(size, options)]
    if author.draw(st.booleans()):
        texts.append(author.pick(_AROUND))
    author.modules = [f"m{number}" for number in range(1, len(texts) + 1)]
    return [Leaf(name, text, True, module=True) for name, text in zip(author.modules, texts, strict=True)]


def _layers(author: Author, size: int, dtype: str) -> list[Leaf]:
    """The modules that are layers, one for each feature that has some."""
    made: list[Leaf] = []
    for feature, layers in MODULES.items():
        there = author.possible(layers)
        if there and author.draw_feature(feature):
            layer = author.pick(there)
            name = f"layer{len(made) + 1}"
            author.layers[name] = layer
            made.append(Leaf(name, layer.text.format(size, f"dtype={dtype}, device=device"), True, module=True))
    return made
