"""What differs between a run and plain: to the last bit, or beyond the spread of two plain runs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from reprise.model_check.run import Run, Tensors

SPREAD = 4.0  # what is not deterministic may differ by so many times as two plain runs do
ROUNDING = 64  # epsilons of the largest value up to which a difference is called rounding: it is told, and remains a divergence
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """A tensor that differs: by how much at most, in units in the last place (None if these say nothing) and absolutely.

    ``epsilons``: the absolute difference beside the largest value, in epsilons of the dtype; None if that says nothing. Where
    the largest value is rounding itself beside those of the other tensors, as gradients of keys' biases are, it is theirs.
    """

    name: str
    units: int | None
    absolute: float
    reason: str = ""
    epsilons: float | None = None

    @property
    def is_rounding(self) -> bool:
        """Whether it is as small as sums in another order give."""
        return self.epsilons is not None and self.epsilons <= ROUNDING


@dataclass(frozen=True)
class TensorsCompared:
    """Tensors of the same names: how many there are, which differ, which are missing and which surplus."""

    total: int
    differing: tuple[Difference, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not (self.differing or self.missing or self.surplus)

    @property
    def is_rounding(self) -> bool:
        """Whether what differs does so by rounding alone."""
        return not (self.missing or self.surplus) and all(one.is_rounding for one in self.differing)


@dataclass(frozen=True)
class Comparison:
    """A run beside plain: after the first step, and after all of them."""

    loss: TensorsCompared
    gradients: TensorsCompared
    buffers: TensorsCompared
    random_streams: tuple[str, ...]
    training_flags: tuple[str, ...]
    losses_of_later_steps: TensorsCompared
    parameters_after_steps: TensorsCompared
    buffers_after_steps: TensorsCompared

    @property
    def parts(self) -> dict[str, TensorsCompared]:
        """Kinds of tensors that are compared, by name."""
        return self.first_parts | self.later_parts

    @property
    def first_parts(self) -> dict[str, TensorsCompared]:
        """Those of the first step."""
        return {"loss": self.loss, "gradients": self.gradients, "buffers": self.buffers}

    @property
    def later_parts(self) -> dict[str, TensorsCompared]:
        """Those of later steps, and of the last one."""
        return {
            "losses of later steps": self.losses_of_later_steps,
            "parameters after the last step": self.parameters_after_steps,
            "buffers after the last step": self.buffers_after_steps,
        }

    @property
    def agrees(self) -> bool:
        return all(part.agrees for part in self.parts.values()) and not (self.random_streams or self.training_flags)

    @property
    def is_rounding(self) -> bool:
        """Whether something differs, and all of it by rounding alone."""
        states = self.random_streams or self.training_flags
        return not self.agrees and not states and all(part.is_rounding for part in self.parts.values())


@dataclass(frozen=True)
class Plain:
    """Two plain runs: what a run is compared with, and how far they lie apart."""

    run: Run
    other: Run

    @functools.cached_property
    def spread(self) -> Comparison:
        """What differs between the two runs; nothing if the model is deterministic."""
        return compare_runs(self.run, self.other)

    @property
    def spread_if_any(self) -> Comparison | None:
        """The spread by which runs are compared; None if they are compared to the last bit."""
        return None if self.spread.agrees else self.spread


def difference(name: str, expected: torch.Tensor, seen: torch.Tensor, among: float = 0.0) -> Difference | None:
    """How two tensors differ; None if they are equal to the last bit, layout aside. ``among``: the largest value of all."""
    if expected.shape != seen.shape or expected.dtype != seen.dtype:
        reason = f"{_shape(seen)} where plain has {_shape(expected)}"
        return Difference(name, None, float("inf"), reason)
    if expected.layout != torch.strided:
        expected, seen = expected.to_dense(), seen.to_dense()
    if torch.equal(bits(expected), bits(seen)):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        return Difference(name, None, (expected.double() - seen.double()).abs().max().item())
    if expected.is_complex():
        expected, seen = torch.view_as_real(expected.resolve_conj()), torch.view_as_real(seen.resolve_conj())
    absolute = (expected.double() - seen.double()).abs().max().item()
    epsilon, largest = torch.finfo(expected.dtype).eps, expected.double().abs().max().item()
    largest = among if largest <= ROUNDING * epsilon * among else largest
    return Difference(name, _units_apart(expected, seen), absolute, epsilons=absolute / epsilon / largest if largest else None)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor's values."""
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def look(tensor: torch.Tensor) -> str:
    """Shape, dtype and strides."""
    strides = tensor.stride() if tensor.layout == torch.strided else tensor.layout
    return f"{tuple(tensor.shape)} {tensor.dtype} {strides}"


def digest(tensor: torch.Tensor) -> str:
    """How a tensor looks, with a hash of its values where they can be read."""
    try:
        values = bits(tensor.detach().cpu()).numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return f"{look(tensor)} values not read"
    return f"{look(tensor)} {hashlib.blake2b(values, digest_size=8).hexdigest()}"


def _units_apart(expected: torch.Tensor, seen: torch.Tensor) -> int | None:
    """The largest distance in units in the last place; None where a whole number cannot hold it."""
    first, second = _ordered(expected), _ordered(seen)
    if (first.double() - second.double()).abs().max().item() > 2**62:
        return None
    return int((first - second).abs().max().item())


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of the floating ones, neighbours one apart."""
    size = tensor.element_size()
    whole = tensor.contiguous().view(_INTEGERS[size]).long()
    least = -(2 ** (8 * size - 1))
    return torch.where(whole < 0, least - whole, whole)


def _shape(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def compare_tensors(expected: Tensors, seen: Tensors, spread: TensorsCompared = TensorsCompared(0)) -> TensorsCompared:
    """Compare tensors by name; those that differ in ``spread`` may differ by ``SPREAD`` times as much."""
    allowed = {one.name: one.absolute * SPREAD for one in spread.differing}
    varying = {*spread.missing, *spread.surplus}
    among = max((_largest(one) for one in expected.values()), default=0.0)
    found = [difference(name, value, seen[name], among) for name, value in expected.items() if name in seen]
    return TensorsCompared(
        total=len(expected),
        differing=tuple(one for one in found if one is not None and not one.absolute <= allowed.get(one.name, -1.0)),
        missing=tuple(name for name in expected if name not in seen and name not in varying),
        surplus=tuple(name for name in seen if name not in expected and name not in varying),
    )


def _largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item() if tensor.is_floating_point() and tensor.numel() else 0.0


def compare_runs(expected: Run, seen: Run, spread: Comparison | None = None) -> Comparison:
    """Compare a run with a plain one, by the spread of two plain ones if that is given."""
    none = spread or NO_SPREAD
    one, other = _losses(expected), _losses(seen)
    return Comparison(
        loss=compare_tensors(one[0], other[0], none.loss),
        gradients=compare_tensors(expected.gradients, seen.gradients, none.gradients),
        buffers=compare_tensors(expected.buffers, seen.buffers, none.buffers),
        random_streams=tuple(_other(expected.random, seen.random, none.random_streams)),
        training_flags=tuple(_other(expected.training, seen.training, none.training_flags)),
        losses_of_later_steps=compare_tensors(one[1], other[1], none.losses_of_later_steps),
        parameters_after_steps=compare_tensors(expected.parameters, seen.parameters, none.parameters_after_steps),
        buffers_after_steps=compare_tensors(expected.last_buffers, seen.last_buffers, none.buffers_after_steps),
    )


NOTHING = TensorsCompared(0)
NO_SPREAD = Comparison(NOTHING, NOTHING, NOTHING, (), (), NOTHING, NOTHING, NOTHING)


def _losses(of: Run) -> tuple[Tensors, Tensors]:
    """Of the first step, and of later ones."""
    first, *later = of.losses
    return {"step 1": first}, {f"step {number}": one for number, one in enumerate(later, 2)}


def _other(expected: Mapping[str, object], seen: Mapping[str, object], left_out: tuple[str, ...]) -> Iterator[str]:
    for name in {**expected, **seen}:
        if expected.get(name) != seen.get(name) and name not in left_out:
            yield name
