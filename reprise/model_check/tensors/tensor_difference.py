"""What the values of a tensor are, and how those of two differ; sparse, jagged, nested and quantized tensors included."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from reprise.torch_private import jagged_dim, jagged_lengths, jagged_offsets, jagged_values

# A difference of at most this many epsilons of the largest value is called rounding; it still is a divergence. Sums in half
# precision are rounded once, at their end, and 64 of its epsilons would be half of a bfloat16 value.
ROUNDING, ROUNDING_OF_HALF = 64, 4
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """A tensor that differs: its largest difference, in units in the last place (None if these mean nothing) and absolutely.

    ``epsilons``: the absolute difference relative to the tensor's largest value, in epsilons of the dtype; None if that means
    nothing. If that value is itself rounding next to those of other tensors, such as in gradients of attention's key biases, it
    is relative to the largest value of all tensors.
    """

    name: str
    units: int | None
    absolute: float
    reason: str = ""
    epsilons: float | None = None
    rounding: int = ROUNDING  # up to how many epsilons it is called rounding

    @property
    def distance(self) -> float:
        """The absolute difference: infinite if that is no number, and above 0 even for 0.0 and -0.0."""
        return math.inf if math.isnan(self.absolute) else self.absolute or math.ulp(0.0)

    @property
    def is_rounding(self) -> bool:
        """Whether it is as small as if sums were taken in another order."""
        return self.epsilons is not None and self.epsilons <= self.rounding


def difference(
    name: str, expected: torch.Tensor, seen: torch.Tensor, among: Callable[[], float] = lambda: 0.0
) -> Difference | None:
    """How two tensors differ; None if they are equal to the last bit, strides aside. ``among()`` is the largest value of all.

    One that is sparse differs from one that is dense: an optimizer may do something else with it.
    """
    if is_equal(expected, seen):
        return None
    if (_shape(expected), expected.layout) != (_shape(seen), seen.layout):
        one, other = (_shape(seen), _shape(expected)) if expected.layout == seen.layout else (seen.layout, expected.layout)
        return Difference(name, None, math.inf, f"{one} where plain has {other}")
    if expected.layout == torch.jagged and _lengths(expected) != _lengths(seen):
        return Difference(name, None, math.inf, "has rows of other lengths than plain's")
    expected, seen = _dense(expected), _dense(seen)
    if not (expected.is_floating_point() or expected.is_complex()):
        return Difference(name, None, _apart(expected, seen))
    if expected.is_complex():
        expected, seen = torch.view_as_real(expected.resolve_conj()), torch.view_as_real(seen.resolve_conj())
    first, second = expected.double(), seen.double()
    if told := _where_nan(first.isnan(), second.isnan()):
        return Difference(name, None, math.nan, told)
    both_nan = first.isnan()
    first, second = first.masked_fill(both_nan, 0.0), second.masked_fill(both_nan, 0.0)
    if torch.equal(_bits(first), _bits(second)):
        return Difference(name, None, 0.0, "has other bits in values that are NaN in both")
    absolute = (first - second).masked_fill(first == second, 0.0).abs().max().item()  # infinity less itself is no number
    epsilon, largest = torch.finfo(expected.dtype).eps, largest_value(expected)
    # What is rounding itself is so in single precision at least: a gradient of bfloat16 may be small, and lost.
    of_all = among()
    largest = of_all if largest <= ROUNDING * min(epsilon, torch.finfo(torch.float32).eps) * of_all else largest
    epsilons = absolute / epsilon / largest if largest and math.isfinite(absolute) else None
    allowed = ROUNDING_OF_HALF if expected.element_size() <= torch.half.itemsize else ROUNDING
    units = _units_apart(*(_ordered(one).masked_fill(both_nan, 0) for one in (expected, seen)))
    return Difference(name, units, absolute, epsilons=epsilons, rounding=allowed)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one kind and have the same values, to the last bit."""
    if (_shape(one), one.layout) != (_shape(other), other.layout):
        return False
    if one.layout == torch.jagged and _lengths(one) != _lengths(other):
        return False
    return torch.equal(_bits(_dense(one)), _bits(_dense(other)))


def tensor_metadata(tensor: torch.Tensor) -> str:
    """Shape, dtype and strides; of a jagged tensor, those of its values, as its own shape has another symbol in each run."""
    if tensor.layout == torch.jagged:
        return f"jagged {tensor_metadata(jagged_values(tensor))}"
    if tensor.is_nested:
        return f"nested {_shape(tensor)}"
    strides = tensor.stride() if tensor.layout == torch.strided else tensor.layout
    return f"{tuple(tensor.shape)} {tensor.dtype} {strides}"


def digest(tensor: torch.Tensor) -> str:
    """How a tensor looks, with a hash of its values where they can be read."""
    if tensor.layout == torch.jagged:
        return f"jagged {digest(_dense(tensor))} in rows of {_lengths(tensor)}"
    try:
        one = tensor.detach().cpu()
        values = _bits(_dense(one) if one.layout == torch.strided else one).numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return f"{tensor_metadata(tensor)} values not read"
    return f"{tensor_metadata(tensor)} {hashlib.blake2b(values, digest_size=8).hexdigest()}"


def largest_value(tensor: torch.Tensor) -> float:
    """The largest finite value; 0 if there is none."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return 0.0
    dense = _dense(tensor)
    values = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return float(values.double().abs().nan_to_num(nan=0.0, posinf=0.0).max().item())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor's values."""
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, dense; of a jagged or nested one, the values of its rows, and of a quantized one, what they stand for."""
    if tensor.layout == torch.jagged:
        values, lengths = jagged_values(tensor), jagged_lengths(tensor)
        if lengths is None or not lengths.numel():
            return values
        starts = jagged_offsets(tensor).tolist()  # there may be values between the rows that belong to none
        dim = jagged_dim(tensor)
        return torch.cat([values.narrow(dim, *row) for row in zip(starts, lengths.tolist(), strict=False)], dim)
    if tensor.is_nested:
        nothing = torch.empty(0, dtype=tensor.dtype, device=tensor.device)  # there may be no rows
        return torch.cat([nothing, *(one.reshape(-1) for one in tensor.detach().unbind())])
    if tensor.is_quantized:  # whose bytes cannot be looked at: a view of them ends the process
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _lengths(tensor: torch.Tensor) -> list[int]:
    """Of the rows of a jagged tensor."""
    lengths = jagged_lengths(tensor)
    return [int(one) for one in (jagged_offsets(tensor).diff() if lengths is None else lengths).tolist()]


def _shape(tensor: torch.Tensor) -> str:
    if tensor.is_nested and tensor.layout == torch.strided:
        return f"{tensor.dtype} {' and '.join(str(tuple(one.shape)) for one in tensor.detach().unbind())}"
    tensor = jagged_values(tensor) if tensor.layout == torch.jagged else tensor
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _apart(expected: torch.Tensor, seen: torch.Tensor) -> float:
    """The largest difference of whole numbers, also of those that no double tells apart."""
    apart = expected != seen
    far = (expected.double() - seen.double()).abs().max().item()
    return far or float(max(abs(a - b) for a, b in zip(expected[apart].tolist(), seen[apart].tolist(), strict=True)))


def _where_nan(expected: torch.Tensor, seen: torch.Tensor) -> str:
    """In how many values one tensor is NaN and the other is not, in words; "" if in none. The tensors have which are NaN."""
    here, there = (int(one.sum().item()) for one in (seen & ~expected, expected & ~seen))
    parts = [f"is NaN in {here} of {seen.numel()} values where plain is not"] if here else []
    parts += [f"is not NaN in {there} of {seen.numel()} values where plain is"] if there else []
    return " and ".join(parts)


def _units_apart(first: torch.Tensor, second: torch.Tensor) -> int | None:
    """The largest distance of integers that ``_ordered`` made, in units in the last place; None if it is too large for one."""
    if (first.double() - second.double()).abs().max().item() > 2**62:
        return None
    return int((first - second).abs().max().item())


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floating point numbers, where neighbours differ by 1."""
    size = tensor.element_size()
    whole = tensor.contiguous().view(_INTEGERS[size]).long()
    least = -(2 ** (8 * size - 1))
    return torch.where(whole < 0, least - whole, whole)
