"""Operators that drawn programs consist of, as text: {0} is the current value, {1} another one."""

from __future__ import annotations

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
    "late-noise": ("torch.nn.functional.rrelu({0}, training=True)",),
    "detach": ("{0} + {1}.detach()", "{0} * torch.sin({0}.detach())"),
    "indices": (
        "{0}[torch.arange(len({0}), device=device).flip(0)]",
        "{0}.index_select(0, torch.zeros_like({0}[0], dtype=torch.long))",
    ),
    "zero-size": ("{0} + torch.sin({0}[:0]).sum()", "{0} + torch.tanh({0}[:, 3:]).sum()"),
    "custom-function": ("SaveInput.apply({0})", "SaveOutput.apply({0})", "SaveBetween.apply({0}, {1})"),
    "saved-twice": ("ReadTwice.apply({0})",),
}
DTYPES = {"complex": "torch.complex64", "bfloat16": "torch.bfloat16", "float16": "torch.float16"}
LACKING = {  # operators that torch has no kernels of for a dtype
    "complex": {"torch.nn.functional.dropout({0}, 0.5)", *OPERATORS["late-noise"]},
    "float16": {*OPERATORS["late-noise"]},
}
