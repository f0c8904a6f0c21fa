"""Containers, custom Functions and modules that programs use: how each is written, and where a value in it is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Written = tuple[str, list[str]]


def _list(texts: Sequence[str]) -> Written:
    return f"[{', '.join(texts)}]", [f"[{i}]" for i in range(len(texts))]


def _tuple(texts: Sequence[str]) -> Written:
    return f"({', '.join(texts)},)", [f"[{i}]" for i in range(len(texts))]


def _dict(texts: Sequence[str]) -> Written:
    return f"{{{', '.join(f'{i}: {t}' for i, t in enumerate(texts))}}}", [f"[{i}]" for i in range(len(texts))]


def _nested(texts: Sequence[str]) -> Written:
    return f"{{'deep': [None, ({', '.join(texts)},)]}}", [f"['deep'][1][{i}]" for i in range(len(texts))]


def _namedtuple(texts: Sequence[str]) -> Written:
    text, paths = _list(texts)
    return f"Pair(1, {text})", [f".right{path}" for path in paths]


def _dataclass(texts: Sequence[str]) -> Written:
    text, paths = _list(texts[1:])
    return f"Box({texts[0]}, {text})", [".value", *(f".others{path}" for path in paths)]


CONTAINERS: tuple[Callable[[Sequence[str]], Written], ...] = (_list, _tuple, _dict, _nested, _namedtuple, _dataclass)


def _ordered(texts: Sequence[str]) -> Written:
    return f"OrderedDict([{', '.join(f'({i}, {t})' for i, t in enumerate(texts))}])", [f"[{i}]" for i in range(len(texts))]


def _subclass(texts: Sequence[str]) -> Written:
    text, paths = _dict(texts)
    return f"Output({text})", paths


def _return_type(texts: Sequence[str]) -> Written:
    text, paths = _list([*texts, *["None"] * (2 - len(texts))])
    return (f"torch.return_types.sort({text})", paths[: len(texts)]) if len(texts) < 3 else _subclass(texts)


def _packed(texts: Sequence[str]) -> Written:
    if len(texts) > 1:
        return _ordered(texts)
    return f"torch.nn.utils.rnn.PackedSequence({texts[0]}, torch.tensor([len({texts[0]})]))", [".data"]


UNUSUAL_CONTAINERS: tuple[Callable[[Sequence[str]], Written], ...] = (_ordered, _subclass, _return_type, _packed)

# Definitions that a program needs, by the name in its text that asks for them.
DEFINITIONS = {
    "Pair": """from collections import namedtuple
Pair = namedtuple("Pair", "left right")""",
    "OrderedDict": "from collections import OrderedDict",
    "Output": "class Output(dict): pass",
    "Box": """from dataclasses import dataclass
@dataclass
class Box:
    value: object
    others: list""",
    "SaveInput": """class SaveInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * 2 * x""",
    "SaveOutput": """class SaveOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(None, y)
        return y
    @staticmethod
    def backward(ctx, grad):
        _, y = ctx.saved_tensors
        return grad * (1 - y * y)""",
    "SaveBetween": """class SaveBetween(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        between = torch.cos(x)
        ctx.save_for_backward(between, x, y)
        return torch.sin(x) * y
    @staticmethod
    def backward(ctx, grad):
        between, x, y = ctx.saved_tensors
        return grad * between * y, grad * torch.sin(x)""",
    "SaveMany": """class SaveMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(*[x + number for number in range(12)])
        return sum((number + 1) * torch.sin(x + number) for number in range(12))
    @staticmethod
    def backward(ctx, grad):
        return grad * sum((number + 1) * torch.cos(saved) for number, saved in enumerate(ctx.saved_tensors))""",
    "ReadTwice": """class ReadTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        y, = ctx.saved_tensors
        return grad * (x + y)""",
    "Feedforward": """class Feedforward(torch.nn.Module):
    def __init__(self, width, **options):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, **options)
    def forward(self, h):
        return torch.nn.functional.dropout(self.linear(h), 0.5, self.training)""",
}
