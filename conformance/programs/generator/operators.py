"""Operators that drawn programs consist of, as text: {0} is the current value, {1} another one."""

from __future__ import annotations

import itertools

from conformance.programs.sums import Order

UNARY = ("torch.sin({0})", "torch.cos({0})", "torch.tanh({0})", "torch.neg({0})")
BINARY = ("{0} * {1}", "{0} + {1}", "{0} @ {1}", "torch.sub({0}, {1}, alpha=2)")
LINEAR = frozenset({"torch.neg({0})", "{0} + {1}", "torch.sub({0}, {1}, alpha=2)"})  # these save nothing for backward
VIEWS = ("{0}.t()", "{0}.unsqueeze(0).squeeze(0)", "{0}.reshape(-1).reshape_as({0})", "{0} + torch.sin({0}[1:]).sum()")
CONJUGATES = ("{0}.conj()", "{0} * {1}.conj()")  # of complex tensors: views that are marked, not computed

# Operators that a feature adds to a body; {0} is the current value, {1} another one.
OPERATORS: dict[str, tuple[str, ...]] = {
    "views": VIEWS,
    "inplace": ("({0} + 1).mul_(0.5)", "torch.neg({0}).add_({1})", "torch.cos(({0} * 2).add_(1))"),
    "dropout": ("torch.nn.functional.dropout({0}, 0.5)", "{0} * torch.rand_like({0})"),
    "late-noise": (
        "torch.nn.functional.rrelu({0}, training=True)",
        "torch._C._nn.rrelu_with_noise({0}, torch.empty_like({0}), 0.1, 0.3, True)",
        "torch._C._nn.rrelu_with_noise({0}, torch.empty_like({0}).fill_(0), 0.1, 0.3, True)",  # at a version of its own
    ),
    "detach": ("{0} + {1}.detach()", "{0} * torch.sin({0}.detach())"),
    "indices": (
        "{0}[torch.arange(len({0}), device=device).flip(0)]",
        "{0}.index_select(0, torch.zeros_like({0}[0], dtype=torch.long))",
    ),
    "zero-size": ("{0} + torch.sin({0}[:0]).sum()", "{0} + torch.tanh({0}[:, 3:]).sum()"),
    "custom-function": ("SaveInput.apply({0})", "SaveOutput.apply({0})", "SaveBetween.apply({0}, {1})"),
    "saved-twice": ("ReadTwice.apply({0})",),
}
# Operators by what a node saves last, and when: {0} requires grad, {1} is a constant of the same shape, between 0 and 1.
SAVED_LAST: dict[str, tuple[str, ...]] = {
    "a constant": (
        "{0} * {1}",
        "{0} * ({1} > 0.5)",
        "torch.where({1} > 0.5, {0}, {1})",
        "{0}.masked_fill({1} > 0.5, 0)",
        "torch.nn.functional.embedding(torch.arange(len({0}), device=device), {0})",
        "torch.nn.functional.mse_loss({0}, {1})",
        "torch.nn.functional.binary_cross_entropy_with_logits({0}, {1})",
        "torch.nn.functional.linear({0}, {1})",
    ),
    "what the kernel gives besides its result": (
        "torch.nn.functional.layer_norm({0}, {0}.shape[1:])",
        "torch.nn.functional.layer_norm({0}[:, :1], (1,))",  # of which these have the shape of what it is given
        "torch.nn.functional.batch_norm({0}, None, None, training=True)",
        "torch.nn.functional.group_norm({0}, 1)",
        "torch.nn.functional.cross_entropy({0}, {1}.argmax(1))",
        "torch.nn.functional.max_pool1d({0}, 1)",
        "torch.nn.functional.scaled_dot_product_attention({0}[None, None], {0}[None, None], {0}[None, None])",
        "torch.nn.functional.logsigmoid({0})",
        "torch.nn.functional.dropout({0}, 0.5)",
        "{0}.max(0)[0]",
        "{0}.sort()[0]",
    ),
    "what requires grad, after a constant of its shape": (
        "torch.maximum({0}, {1})",
        "torch.atan2({0}, {1})",
        "{0}.clamp(min={1})",
        "torch.xlogy({0}, {1})",
        "torch.lerp({1}, {1}, {0})",
    ),
    "what requires grad, after noise that is drawn later": (
        *OPERATORS["late-noise"],
        "torch.nn.functional.rrelu({0}, training=True, inplace=True)",
        "torch._C._nn.rrelu_with_noise({0}, {1}.clone(), 0.1, 0.3, True)",
    ),
}
# Operators that add up entries: how often as many as a matrix has rows, in forward and in backward.
_ROWS = {"{0} @ {1}": 2, VIEWS[3]: 8, **dict.fromkeys(OPERATORS["zero-size"], 4), **dict.fromkeys(OPERATORS["indices"], 2)}
_MORE = {"SaveMany.apply({0})": 64, **dict.fromkeys(OPERATORS["late-noise"], 16)}
_KNOWN = frozenset((*UNARY, *BINARY, *CONJUGATES, *itertools.chain(*OPERATORS.values()), *_MORE))
_ATOMIC = OPERATORS["indices"][1:]  # the gradient of index_select is added up atomically, where a device does that
MODULE_TERMS = 60  # of one call of a module that is drawn
DTYPES = {"complex": "torch.complex64", "bfloat16": "torch.bfloat16", "float16": "torch.float16"}
LACKING = {  # operators that torch has no kernels of for a dtype
    "complex": {"torch.nn.functional.dropout({0}, 0.5)", *OPERATORS["late-noise"]},
    "float16": {*OPERATORS["late-noise"]},
}


def terms(template: str, rows: int, *, complex_numbers: bool = False) -> int:
    """The roundings of an operator on matrices of so many rows, in forward and in backward; see ``programs.program.Op``.

    An operator of a law's own may have as many as any here. A product of complex numbers takes four of real ones.
    """
    real = 5 + rows * _ROWS.get(template, 0) + _MORE.get(template, 0) if template in _KNOWN else 24 + 8 * rows
    return 3 * real if complex_numbers else real


def order(template: str) -> Order:
    """Whether an operator's sums are taken in the same order each time; of a law's own that is said for the CPU alone."""
    return Order.SAME if template in _KNOWN and template not in _ATOMIC else Order.SAME_ON_CPU
