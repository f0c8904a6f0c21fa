"""What may replace this project's own functions in a script, so that it needs only torch and the implementation.

A plain call or torch's checkpoint replaces a checkpoint of this project. The second device is replaced by the given one, or by
torch's fake tensors, which have a device, sizes and strides, but no values; their device type is "lazy", the only one besides
"cpu" on which autograd works in a build for the CPU. The reduction tries whether the fault still shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

CHECKPOINTS = (
    "lambda function, *args, **kwargs: function(*args, **kwargs)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=False)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=True)",
)
FAKE = "torch._subclasses.FakeTensorMode()"
WHY = "  # tensors without values: 'lazy' is any second device"
LAZY = "torch.lazy = torch.cpu  # where torch looks for the device's module\n"
COUNTING = "with Moves(seen):"


def stand_ins(program: ast.Module, tail: str) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """For each possible replacement: an expression of a program, the one in its place, and the script's end with it."""
    for node in ast.walk(program):
        match node:
            case ast.Attribute(ast.Call(ast.Attribute(ast.Name("impls"), "get")), "checkpoint"):
                ends = [tail] if LAZY in tail or FAKE not in tail else [tail, LAZY + tail]  # torch's need the device's module
                yield from ((node, ast.parse(one, mode="eval").body, end) for one in CHECKPOINTS for end in ends)
            case ast.Call(ast.Name("second"), [device]):
                yield node, device, tail
                yield node, ast.Constant("lazy"), _with_fakes(tail)
                yield node, ast.Constant("lazy"), LAZY + _with_fakes(tail)


def _with_fakes(tail: str) -> str:
    """The end of a script that runs its program in the mode of fake tensors. What counts copies runs inside of that."""
    if COUNTING in tail:
        return tail.replace(COUNTING, f"with {FAKE}, Moves(seen):{WHY}")
    return re.sub(r"^( *)(run\(.*)$", rf"\1with {FAKE}: \2{WHY}", tail, flags=re.M)


def without_fakes(script: str) -> str:
    """A script, or a part of one, that measures as if nothing replaced the second device."""
    plain = script.replace(LAZY, "").replace(f"with {FAKE}, Moves(seen):", COUNTING)
    return plain.replace(f"with {FAKE}: ", "").replace(WHY, "")


def on_second_device(program: str) -> str:
    """The program of a script whose tensors are fake, on the second device again."""
    return f"from conformance.simulated_device.device import second\n{re.sub(repr('lazy'), 'second(device)', program)}"
