"""PyTorch's own database of operators and samples of their arguments, as far as its programs can be judged.

It is a part of torch, made for torch's tests. Importing it takes seconds and changes the process, so it is imported only when
it is needed, and what it changes is put back.
"""

from __future__ import annotations

import enum
import functools
import importlib
import itertools
import os
import random
import sys
import textwrap
import unittest
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import hypothesis
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from conformance.judging.verdicts import difference, freeze
from conformance.programs.program import WIDTH, Named
from conformance.programs.scenarios.regions.operators import called
from conformance.programs.sums import Sums

DATABASE = "torch.testing._internal.common_methods_invocations"
PACKAGES = ("numpy", "setuptools")  # what it imports besides torch; torch brings them, with newer releases of Python
# What a program that imports it begins with. Torch takes the class TestCase from that package, and nothing else.
PREAMBLE = ("import sys", "import unittest", 'sys.modules.setdefault("expecttest", unittest.case)  # which op_db imports')
# Capabilities that a checkpoint may need for an operator's arguments and results.
NEEDS = frozenset({"containers", "keyword-arguments", "non-tensor-arguments", "non-tensor-outputs"})
DTYPES = ("float64", "complex128")
# Operators that are not compared, because their default driver (LAPACK's gelsy) gives other last digits in each call.
VARYING = ("linalg.lstsq", "linalg.lstsq.grad_oriented")
SUMS = Sums(4096)  # samples have some hundreds of entries, and the longest ways are those of decompositions


class Category(enum.StrEnum):
    """What a sample is for a law."""

    DIFFERENTIABLE = "differentiable"
    WRITES = "writes to its arguments"
    CONSTANT = "no output requires grad"
    VARIES = "two plain runs differ"
    FAILS = "plain raises"


@dataclass(frozen=True)
class Sample:
    """One call of an operator: the number of its arguments in the database, and which outputs require grad.

    ``text`` is how the database prints the arguments. ``needs`` are the capabilities that a checkpoint needs to take these
    arguments and return the operator's result; a tensor, or a tuple of tensors, needs none.
    """

    operator: str
    dtype: str
    number: int
    category: Category
    outputs: tuple[int, ...]
    text: str
    needs: frozenset[str] = frozenset()


@functools.cache
def operators() -> Mapping[str, Any]:
    """The entries of operators that have a gradient, by their full names, in the order of the database."""
    with _put_back():
        entries = importlib.import_module(DATABASE).op_db
    return MappingProxyType({one.full_name: one for one in entries if one.supports_autograd and _dtypes(one)})


def names() -> tuple[str, ...]:
    """The names of those operators."""
    return tuple(operators())


def dtypes(operator: str) -> tuple[str, ...]:
    """The names of those among DTYPES for which the operator has a gradient."""
    return _dtypes(operators()[operator])


@functools.cache
def count(operator: str, dtype: str) -> int:
    """How many samples an operator has."""
    with _unseen():
        return sum(1 for _ in _samples(operator, dtype))


@functools.cache
def sample(operator: str, dtype: str, number: int) -> Sample:
    """The sample of that number, and what two plain runs show of it."""
    with _unseen():
        return _tried(operator, dtype, number, next(itertools.islice(_samples(operator, dtype), number, None)))


def sample_from(operator: str, dtype: str, number: int, category: Category, claims: Collection[str]) -> Sample | None:
    """The first sample of a category, from that number on, that needs only these capabilities; None if there is none.

    Samples are tried in turn, those of the dtype first; one whose arguments need more is not run.
    """
    others = [one for one in dtypes(operator) if one != dtype]
    first = count(operator, dtype)
    places = [(dtype, (number + step) % first) for step in range(first)]
    places += [(one, step) for one in others for step in range(count(operator, one))]
    claimed = (place for place in places if _of_arguments(operator, place[0])[place[1]] <= set(claims))
    found = (sample(operator, one, step) for one, step in claimed)
    return next((one for one in found if one.category is category and one.needs <= set(claims)), None)


@functools.cache
def _of_arguments(operator: str, dtype: str) -> tuple[frozenset[str], ...]:
    """The capabilities that a checkpoint needs to take the arguments of each sample."""
    with _unseen():
        return tuple(_needs(one) for one in _samples(operator, dtype))


@functools.cache
def samples(operator: str, dtype: str) -> tuple[Sample, ...]:
    """All samples of an operator."""
    with _unseen():
        found = list(_samples(operator, dtype))
        return tuple(_tried(operator, dtype, number, one) for number, one in enumerate(found))


def _tried(operator: str, dtype: str, number: int, one: Any) -> Sample:
    text = " ".join(one.summary().split())
    try:
        first, again = _Trial(operator, one), _Trial(operator, one)
    except Exception:  # noqa: BLE001 - whatever an operator raises
        return Sample(operator, dtype, number, Category.FAILS, (), text)
    category = Category.VARIES if operator in VARYING else first.category(again)
    return Sample(operator, dtype, number, category, first.outputs, text, _needs(one, first.result))


def _needs(one: Any, result: Any = ()) -> frozenset[str]:
    """The capabilities that a checkpoint needs for these arguments, passed as they are, and this result."""
    others = [part for part in (one.input, *one.args, *one.kwargs.values()) if not _is_tensor(part)]
    several = type(result) is tuple and len(result) > 1 and all(map(_is_tensor, result))
    returned = [] if _is_tensor(result) or several else [result]
    needs = {
        "containers": any(_is_tensor(leaf) for leaf in tree_leaves([others, returned])),
        "keyword-arguments": bool(one.kwargs),
        "non-tensor-arguments": any(not any(map(_is_tensor, tree_leaves(part))) for part in others),
        "non-tensor-outputs": not all(map(_is_tensor, tree_leaves(result))),
    }
    return frozenset(name for name, needed in needs.items() if needed)


@functools.cache
def writing() -> tuple[str, ...]:
    """The operators that write to their arguments: to some floating point tensor that does not require grad."""
    real = [name for name in operators() if DTYPES[0] in dtypes(name)]
    return tuple(name for name in real if any(sample(*one).category is Category.WRITES for one in _with_buffers(name)))


def _with_buffers(operator: str) -> Iterator[tuple[str, str, int]]:
    """The first few samples with a tensor to which an operator could write although autograd is on."""
    with _unseen():
        parts = [tree_leaves((one.input, one.args, one.kwargs)) for one in itertools.islice(_samples(operator, DTYPES[0]), 20)]
    found = [number for number, one in enumerate(parts) if any(map(_is_buffer, one))]
    return ((operator, DTYPES[0], number) for number in found[:4])


def _is_buffer(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.is_floating_point() and not part.requires_grad and part.numel() > 0


def _dtypes(entry: Any) -> tuple[str, ...]:
    backward = entry.supported_backward_dtypes("cpu")
    return tuple(name for name in DTYPES if getattr(torch, name) in backward)


def _samples(operator: str, dtype: str) -> Iterator[Any]:
    """The samples as a program has them: from the same random numbers."""
    import numpy as np

    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    entry = operators()[operator]
    return iter(entry.sample_inputs_func(entry, "cpu", getattr(torch, dtype), True))


class _Trial:
    """One plain run of a sample: its outputs, gradients, and whether it wrote to its arguments."""

    def __init__(self, operator: str, one: Any) -> None:
        torch.manual_seed(0)
        parts, structure = tree_flatten((one.input, one.args, one.kwargs))
        parts = [part.detach().requires_grad_(part.requires_grad) if _is_tensor(part) else part for part in parts]
        tensors = list(filter(_is_tensor, parts))
        before, versions = freeze(tensors), [tensor._version for tensor in tensors]
        given, args, kwargs = tree_unflatten(parts, structure)
        self.result = operators()[operator](given, *args, **kwargs)
        found = tree_leaves(self.result)
        self.outputs = tuple(i for i, one in enumerate(found) if _is_tensor(one) and one.requires_grad)
        if outputs := [found[index] for index in self.outputs]:
            torch.autograd.backward(
                outputs, [torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(y.dtype) for y in outputs]
            )
        self.noted = freeze([[one for one in found if _is_tensor(one)], [tensor.grad for tensor in tensors]])
        self.wrote = difference(before, freeze(tensors)) is not None or versions != [one._version for one in tensors]

    def category(self, again: _Trial) -> Category:
        if self.wrote:
            return Category.WRITES
        if not self.outputs:
            return Category.CONSTANT
        return Category.DIFFERENTIABLE if difference(self.noted, again.noted) is None else Category.VARIES


def _is_tensor(part: Any) -> bool:
    return isinstance(part, torch.Tensor)


@contextmanager
def _unseen() -> Iterator[None]:
    """Run without leaving a warning or another state of random numbers."""
    import numpy as np

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


@contextmanager
def _put_back() -> Iterator[None]:
    """Import torch's tools for tests, and put back what they change in the process that imports them.

    They load a profile of hypothesis, forbid assignments to the flags in torch.backends, and set variables of the environment.
    """
    profile, flag = hypothesis.settings.get_current_profile_name(), "__allow_nonbracketed_mutation_flag"
    flags = torch.backends.flags_frozen.__globals__  # the module is replaced by an object that hides them
    allowed, environment, lent = flags[flag], dict(os.environ), "expecttest" not in sys.modules
    sys.modules.setdefault("expecttest", unittest.case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hypothesis.settings.load_profile(profile)
        flags[flag] = allowed
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        if lent:
            del sys.modules["expecttest"]


def program(one: Sample, place: str) -> Named:
    """The program that calls an operator as the first or the last one of a region, or alone in it."""
    fields = {"operator": one.operator, "dtype": one.dtype, "sample": one.number, "place": place, "outputs": one.outputs}
    fields |= {"writes": one.category is Category.WRITES}
    about = textwrap.wrap(one.text, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return Named(called, tuple(fields.items()), SUMS, (*PREAMBLE, *about))


def counted() -> str:
    """How many operators and samples there are of each category, and which operators have some that no law judges."""
    found: dict[Category, Counter[str]] = {category: Counter() for category in Category}
    for operator in operators():
        for one in (each for dtype in dtypes(operator) for each in samples(operator, dtype)):
            found[one.category][operator] += 1
    lines = [f"torch {torch.__version__}: {len(operators())} operators with a gradient in {' or '.join(DTYPES)}"]
    for category, names in found.items():
        lines.append(f"{names.total():6} samples of {len(names):3} operators: {category}")
        if category is not Category.DIFFERENTIABLE:
            lines += [f"       {name}: {times}" for name, times in names.items()]
    return "\n".join(lines)
