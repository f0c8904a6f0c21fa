"""What stands in a script in the place of this project's own means, so that it takes torch and the implementation alone.

Whether a fault still shows is for the reduction to try. For a second device there is the device that is given, on which
hooks for pinned memory copy too, or torch's fake tensors on "lazy": they have a place, sizes and strides, and no values.
Of the devices that a build for the CPU lacks, that is the one on which autograd works. For a checkpoint of this project
there are plain calls and torch's own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.reproducers.script_syntax import dotted_names, frame_calls, identifiers, tree_of, without

CHECKPOINTS = (
    "lambda function, *args, **kwargs: function(*args, **kwargs)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=False)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=True)",
)
SECOND, PINNABLE = "second(device)", "pinnable(device), "
FAKE, COUNTING = "torch._subclasses.FakeTensorMode()", "with Moves(seen):"
WHY = "  # tensors without values: 'lazy' is any second device"
_CHECKPOINT = re.compile(r"impls\.get\((['\"])[\w-]+\1\)\.checkpoint")
_CALLED = re.compile(_CHECKPOINT.pattern + r"\(")
_OURS = {"impls", "second", "pinnable"}  # what scripts import of this project that there is something else for
_RUN = re.compile(r"^( *)(run\(.*)$", re.M)
_LAZY = re.compile(r"(['\"])lazy\1")


def standing_in(script: str) -> Iterator[str]:
    """The script with one thing of this project's replaced, in each way that there is."""
    changed = [_CALLED.sub(f"({checkpoint})(", script) for checkpoint in CHECKPOINTS]
    changed = [_CHECKPOINT.sub(checkpoint, text) for checkpoint, text in zip(CHECKPOINTS, changed, strict=True)]
    changed += [script.replace(PINNABLE, ""), script.replace(SECOND, "device")]
    if "second" in identifiers(script):
        changed.append(_faked(script).replace(SECOND, "'lazy'"))
        changed.append(_faked(script).replace(f"device = {SECOND}", "device, torch.lazy = 'lazy', torch.cpu"))
    for text in dict.fromkeys(changed):
        if text != script:
            yield without(text, [one for one in _imports(text) if not _is_needed(one, text)])


def takes_ours(script: str) -> bool:
    """Whether there is something to replace."""
    return bool(_imports(script))


def _imports(script: str) -> list[ast.Import | ast.ImportFrom]:
    """The statements that import what there is something else for."""
    tree = tree_of(script)
    found: list[ast.Import | ast.ImportFrom] = []
    for one in tree.body if tree else ():
        match one:
            case ast.Import([ast.alias(name, None)]) | ast.ImportFrom(_, [ast.alias(name, None)]) if name in _OURS:
                found.append(one)
    return found


def _faked(script: str) -> str:
    """The script, running in the mode in which tensors are fake; what counts operators is inside of it."""
    if frame_calls(script, "Moves"):
        return script.replace(COUNTING, f"with {FAKE}, Moves(seen):{WHY}")
    return _RUN.sub(rf"\1with {FAKE}: \2{WHY}", script)


def _is_needed(imported: ast.Import | ast.ImportFrom, text: str) -> bool:
    return not dotted_names(text).isdisjoint(one.name for one in imported.names)


def measuring(script: str) -> str:
    """A script, or a part of one, as it measures where nothing stands in for a second device."""
    return script.replace(f"with {FAKE}, Moves(seen):", COUNTING).replace(f"with {FAKE}: ", "").replace(WHY, "")


def on_second_device(program: str) -> str:
    """The program of a script whose tensors are fake, on the second device again."""
    return f"from conformance.simulated_device.device import second\n{_LAZY.sub(SECOND, program)}"
