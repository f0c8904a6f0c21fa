"""What is known about the sums in a program when it is built: whether two runs take them in the same order, and their terms.

Two runs that execute the same kernels on tensors of the same shapes and strides, in the same order, give the same bits on any
processor, and are compared bit for bit. Others take sums in another order: a batch that is split has fewer rows, for which
there are other kernels; gradients from several threads of autograd arrive in any order. Such runs differ by no more than
rounding, which has a bound.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from impls import Implementation


class Order(enum.Enum):
    """Whether two runs of a program, one of them plain, take every sum in the same order, by the same kernels."""

    SAME = "on any device"
    SAME_ON_CPU = "where autograd has one thread and no kernel adds atomically, which is so on the CPU"
    ANY = "nowhere"

    @property
    def away(self) -> Order:
        """The order of the same program if it computes on a second device, whichever the first one is."""
        return Order.ANY if self is Order.SAME_ON_CPU else self

    def and_of(self, other: Order) -> Order:
        """The order of a program of two parts."""
        return max(self, other, key=list(Order).index)


@dataclass(frozen=True)
class Sums:
    """What is known of a program's sums.

    ``terms`` bounds the roundings on the longest path through the program, from a leaf to what is noted: the products and
    additions of every sum on it, and two for a function such as ``sin``. Raises ValueError if it is not positive.
    """

    terms: int = 64
    order: Order = Order.SAME

    def __post_init__(self) -> None:
        if self.terms < 1:
            raise ValueError(f"terms is {self.terms}; it must be 1 at least")

    def are_exact(self, device: str) -> bool:
        """Whether two runs on a device give the same bits."""
        on_cpu = torch.device(device).type == "cpu"
        return self.order is Order.SAME or (self.order is Order.SAME_ON_CPU and on_cpu)


DEFAULT = Sums()  # of programs written by hand, if they say nothing else: they are small
DIFFERENTIATED = Sums(order=Order.SAME_ON_CPU)  # of those that differentiate gradients
KnownSums = Sums | Callable[[Mapping[str, Any]], Sums]


def known_sums(sums: KnownSums, arguments: Iterable[tuple[str, Any]]) -> Sums:
    """What is known of the sums of a program written by hand, with these arguments."""
    return sums if isinstance(sums, Sums) else sums(dict(arguments))


class Comparable(Protocol):
    """What the judge needs of a program: the text that defines ``run(checkpoint, note, device)``, and what its sums are."""

    @property
    def source(self) -> str: ...

    @property
    def sums(self) -> Sums: ...


def terms_in_any_order(program: Comparable, implementation: Implementation, device: str) -> int:
    """How many terms sums have that may be taken in another order than plain's; 0 if there are none, for bit for bit."""
    claimed = implementation.kind != "checkpoint" or "exact-sums" in implementation.capabilities
    return 0 if claimed and program.sums.are_exact(device) else program.sums.terms


def rounding(dtype: torch.dtype, terms: int) -> float:
    """How far two sums of the same terms may differ, relative to the sum of the terms' magnitudes; 0 for no terms.

    Each of them is off by at most gamma_n = n u / (1 - n u), where u is half of the dtype's resolution (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 3.1), so they differ by at most twice as much. Infinite if n u reaches 1.
    """
    off = terms * torch.finfo(dtype).eps / 2
    return 2 * off / (1 - off) if off < 1 else math.inf
