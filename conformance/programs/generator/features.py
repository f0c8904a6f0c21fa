"""The features that drawn programs may have, each with its meaning. Laws switch them on by these names."""

from __future__ import annotations

from collections.abc import Collection

from conformance.programs.generator.layers import FUNCTIONS, MODULES, Layer
from conformance.programs.generator.operators import DTYPES, OPERATORS, Operator

FEATURES: dict[str, str] = {
    "aliases": "a function is passed a tensor and another of the same storage: a view of it, or it detached",
    "many-arguments": "a function is passed 7 to 15 tensors by position",
    "many-outputs": "a function returns 9 to 20 tensors",
    "named-arguments": "a function is passed 4 to 6 tensors by keyword, as self, input, args and the like",
    "unusual-containers": "a function is passed or returns an OrderedDict, a dict's subclass, a return type, a PackedSequence",
    **{name: f"a body has an operator like {operators[0].template}" for name, operators in OPERATORS.items()},
    **{name: f"tensors are of {dtype}" for name, dtype in DTYPES.items()},
    "again": "a second backward over a graph that was not retained",
    "batched-seeds": "torch.autograd.grad for several gradients of the outputs at once",
    "closure": "a function reads a tensor that it is not passed",
    "closure-intermediates": "that tensor may be one that was computed",
    "container-outputs": "a function returns a container",
    "containers": "a function is passed a container",
    "complex": f"tensors are of {DTYPES['complex']}, and some are conjugated",
    "corrupted": "a function changes in place what an operator of it has read",
    "create-graph": "gradients of gradients",
    "escaping": "a function hands out a tensor other than its first result",
    "grad": "torch.autograd.grad of some leaves",
    "hooks": "a function registers a hook on a tensor other than its first result",
    "input-outputs": "a function returns its argument",
    "inputs": "backward with inputs=",
    "keyword": "arguments are passed by keyword",
    **{name: f"functions call a module like {layers[0].text}, or it is that of a region" for name, layers in MODULES.items()},
    "layers": f"a body has a layer like {FUNCTIONS[0].template}",
    "long": "a function saves many tensors",
    "modules": "functions call modules with parameters, and a module may be the function of a region",
    "mutated": "tensors that no function reads through a closure change in place after forward",
    "mutated-closure": "a tensor that a function reads through a closure changes in place after forward",
    "nesting": "a region in the first region",
    "no-grad": "a part of a function runs under no_grad",
    "no-grad-outputs": "a function returns tensors that do not require grad",
    "no-input-grad": "no argument requires grad",
    "non-contiguous": "leaves are transposed",
    "non-tensor-outputs": "a function returns what is no tensor, too",
    "non-tensors": "a function is passed what is no tensor, too",
    "partial": "a backward of one output first",
    "repeated-inputs": "a function is passed one tensor twice",
    "repeated-outputs": "a function returns one tensor twice",
    "retain": "backward several times over one graph",
    "saves-hidden": "the first region saves a tensor that it makes and does not return",
    "seeds": "the gradients that come in are no ones: uneven, expanded, transposed, zeros, those of a scaled scalar",
    "stream": "random numbers are drawn after forward and after backward",
    "through-regions": "requests for some gradients are for that of what the first region is passed, too",
    "unlike-leaves": "functions are passed a leaf that has another shape, and may have another dtype, than the others",
    "unused-outputs": "a function returns a tensor that nobody uses",
    "view-outputs": "a function returns a view",
}

_OPERATORS: dict[str, tuple[Operator | Layer, ...]] = {**OPERATORS, "layers": FUNCTIONS, **MODULES}


def is_possible(feature: str, dtype: str | None) -> bool:
    """Whether programs can have a feature together with one of ``DTYPES``, or with none of them."""
    return feature not in _OPERATORS or any(dtype not in one.lacking for one in _OPERATORS[feature])


def known(argument: str, features: Collection[str]) -> frozenset[str]:
    """The features, if all of them are known. Raises ValueError otherwise, naming the argument that they are."""
    if unknown := sorted(set(features) - FEATURES.keys()):
        raise ValueError(f"{argument} has {unknown}; what there is: {', '.join(sorted(FEATURES))}")
    return frozenset(features)
