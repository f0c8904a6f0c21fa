"""The operators of drawn programs: what each of them is, and the lists that they are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conformance.programs.sums import Order

DTYPES = {"complex": "torch.complex64", "bfloat16": "torch.bfloat16", "float16": "torch.float16"}
MODULE_TERMS = 60  # of one call of a module that is drawn


@dataclass(frozen=True)
class Operator:
    """An operator, as text: {0} is the current value, {1} another one.

    - ``terms``, ``per_row``: its roundings in forward and in backward, see ``programs.program.Op``, and how many more there are
      for each row of a matrix, if it adds up entries.
    - ``order``: whether its sums, and those of its backward, are taken in the same order each time.
    - ``saves``: what it saves for backward, if programs are drawn by that; else None.
    - ``lacking``: the features with which it cannot be drawn: those of ``DTYPES`` for whose dtype torch has no kernel of it,
      and "create-graph" if torch cannot differentiate it twice.

    A class that it uses is in ``generator.containers.DEFINITIONS``.
    """

    template: str
    terms: int
    per_row: int
    order: Order
    saves: Literal["nothing", "what it reads"] | None = None
    lacking: frozenset[str] = frozenset()

    @property
    def reads_another(self) -> bool:
        return "{1}" in self.template

    def roundings(self, rows: int, *, complex_numbers: bool = False) -> int:
        """Its roundings on matrices of so many rows. A product of complex numbers takes four of real ones."""
        return (3 if complex_numbers else 1) * (self.terms + rows * self.per_row)


def without_sums(
    template: str, saves: Literal["nothing", "what it reads"] | None = None, lacking: frozenset[str] = frozenset()
) -> Operator:
    """An operator that adds up no entries, in forward or in backward, such as ``sin`` or a view."""
    return Operator(template, 5, 0, Order.SAME, saves, lacking)


def uncounted(template: str) -> Operator:
    """An operator whose roundings were not counted: it gets the most of any here, and counts as exact on the CPU alone."""
    return Operator(template, 24, 8, Order.SAME_ON_CPU)


SIN = without_sums("torch.sin({0})", saves="what it reads")
COS = without_sums("torch.cos({0})", saves="what it reads")
TANH = without_sums("torch.tanh({0})")
NEGATIVE = without_sums("torch.neg({0})", saves="nothing")
PRODUCT = without_sums("{0} * {1}", saves="what it reads")
SUM = without_sums("{0} + {1}", saves="nothing")
MATRIX_PRODUCT = Operator("{0} @ {1}", 5, 2, Order.SAME, saves="what it reads")
DIFFERENCE = without_sums("torch.sub({0}, {1}, alpha=2)", saves="nothing")
DROPOUT = without_sums("torch.nn.functional.dropout({0}, 0.5)", lacking=frozenset({"complex"}))
SAVE_MANY = Operator("SaveMany.apply({0})", 69, 0, Order.SAME)

UNARY = (SIN, COS, TANH, NEGATIVE)
BINARY = (PRODUCT, SUM, MATRIX_PRODUCT, DIFFERENCE)
SAVE_INPUTS = tuple(one for one in (*UNARY, *BINARY) if one.saves == "what it reads")
CONJUGATES = (without_sums("{0}.conj()"), without_sums("{0} * {1}.conj()"))  # of complex tensors: marked views, not computed


def _late_noise(template: str) -> Operator:
    """An operator that saves a buffer of noise, and draws the noise only afterwards."""
    return Operator(template, 21, 0, Order.SAME, lacking=frozenset({"complex", "float16"}))


def mixture(count: int) -> Operator:
    """A sum of so many tensors of one shape, each with a different weight."""
    names = ", ".join(f"{{{number}}}" for number in range(count))
    return Operator(f"torch.stack([{names}]).cumsum(0).sum(0)", 6 + 5 * count, 0, Order.SAME)


# Operators that a feature adds to a body.
OPERATORS: dict[str, tuple[Operator, ...]] = {
    "views": (
        without_sums("{0}.t()"),
        without_sums("{0}.unsqueeze(0).squeeze(0)"),
        without_sums("{0}.reshape(-1).reshape_as({0})"),
        Operator("{0} + torch.sin({0}[1:]).sum()", 5, 8, Order.SAME),
    ),
    "inplace": (
        without_sums("({0} + 1).mul_(0.5)"),
        without_sums("torch.neg({0}).add_({1})"),
        Operator("torch.cos(({0} * 2).add_(1))", 6, 0, Order.SAME),
    ),
    "dropout": (DROPOUT, without_sums("{0} * torch.rand_like({0})")),
    "late-noise": (
        _late_noise("torch.nn.functional.rrelu({0}, training=True)"),
        _late_noise("torch._C._nn.rrelu_with_noise({0}, torch.empty_like({0}), 0.1, 0.3, True)"),
        # at a version of its own
        _late_noise("torch._C._nn.rrelu_with_noise({0}, torch.empty_like({0}).fill_(0), 0.1, 0.3, True)"),
    ),
    "detach": (without_sums("{0} + {1}.detach()"), without_sums("{0} * torch.sin({0}.detach())")),
    "indices": (
        Operator("{0}[torch.arange(len({0}), device=device).flip(0)]", 5, 2, Order.SAME),
        # its gradient is added up atomically, where a device does that
        Operator("{0}.index_select(0, torch.zeros_like({0}[0], dtype=torch.long))", 5, 2, Order.SAME_ON_CPU),
    ),
    "zero-size": (
        Operator("{0} + torch.sin({0}[:0]).sum()", 5, 4, Order.SAME),
        Operator("{0} + torch.tanh({0}[:, 3:]).sum()", 5, 4, Order.SAME),
    ),
    "custom-function": (
        without_sums("SaveInput.apply({0})"),
        without_sums("SaveOutput.apply({0})"),
        without_sums("SaveBetween.apply({0}, {1})"),
    ),
    "saved-twice": (without_sums("ReadTwice.apply({0})"),),
}
# Operators by what a node saves last, and when: {0} requires grad, {1} is a constant of the same shape, between 0 and 1.
SAVED_LAST: dict[str, tuple[Operator, ...]] = {
    "a constant": (
        PRODUCT,
        uncounted("{0} * ({1} > 0.5)"),
        uncounted("torch.where({1} > 0.5, {0}, {1})"),
        uncounted("{0}.masked_fill({1} > 0.5, 0)"),
        uncounted("torch.nn.functional.embedding(torch.arange(len({0}), device=device), {0})"),
        uncounted("torch.nn.functional.mse_loss({0}, {1})"),
        uncounted("torch.nn.functional.binary_cross_entropy_with_logits({0}, {1})"),
        uncounted("torch.nn.functional.linear({0}, {1})"),
    ),
    "what the kernel gives besides its result": (
        uncounted("torch.nn.functional.layer_norm({0}, {0}.shape[1:])"),
        uncounted("torch.nn.functional.layer_norm({0}[:, :1], (1,))"),  # of which these have the shape of what it is given
        uncounted("torch.nn.functional.batch_norm({0}, None, None, training=True)"),
        uncounted("torch.nn.functional.group_norm({0}, 1)"),
        uncounted("torch.nn.functional.cross_entropy({0}, {1}.argmax(1))"),
        uncounted("torch.nn.functional.max_pool1d({0}, 1)"),
        uncounted("torch.nn.functional.scaled_dot_product_attention({0}[None, None], {0}[None, None], {0}[None, None])"),
        uncounted("torch.nn.functional.logsigmoid({0})"),
        DROPOUT,
        uncounted("{0}.max(0)[0]"),
        uncounted("{0}.sort()[0]"),
    ),
    "what requires grad, after a constant of its shape": (
        uncounted("torch.maximum({0}, {1})"),
        uncounted("torch.atan2({0}, {1})"),
        uncounted("{0}.clamp(min={1})"),
        uncounted("torch.xlogy({0}, {1})"),
        uncounted("torch.lerp({1}, {1}, {0})"),
    ),
    "what requires grad, after noise that is drawn later": (
        *OPERATORS["late-noise"],
        uncounted("torch.nn.functional.rrelu({0}, training=True, inplace=True)"),
        uncounted("torch._C._nn.rrelu_with_noise({0}, {1}.clone(), 0.1, 0.3, True)"),
    ),
}
