"""What stands in a script in the place of this project's own means, so that it takes torch and the implementation alone.

Whether a fault still shows is for the reduction to try. For a second device there is the device that is given, on which
hooks for pinned memory copy too, or torch's fake tensors on "lazy": they have a place, sizes and strides, and no values.
Of the devices that a build for the CPU lacks, that is the one on which autograd works. For a checkpoint of this project
there are plain calls and torch's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CHECKPOINTS = (
    "lambda function, *args, **kwargs: function(*args, **kwargs)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=False)",
    "lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=True)",
)
SECOND, PINNABLE = "second(device)", "pinnable(device), "
FAKE, COUNTING = "torch._subclasses.FakeTensorMode()", "with Moves():"
WHY = "  # tensors without values: 'lazy' is any second device"
_CHECKPOINT = re.compile(r"impls\.get\((['\"])[\w-]+\1\)\.checkpoint")
_CALLED = re.compile(_CHECKPOINT.pattern + r"\(")
_IMPORT = re.compile(r"^(?:import|from conformance\.\S+ import) (impls|second|pinnable)\n", re.M)
_RUN = re.compile(r"^( *)(run\(.*)$", re.M)
_LAZY = re.compile(r"(['\"])lazy\1")


def standing_in(script: str) -> Iterator[str]:
    """The script with one thing of this project's replaced, in each way that there is."""
    changed = [_CALLED.sub(f"({checkpoint})(", script) for checkpoint in CHECKPOINTS]
    changed = [_CHECKPOINT.sub(checkpoint, text) for checkpoint, text in zip(CHECKPOINTS, changed, strict=True)]
    changed += [script.replace(PINNABLE, ""), script.replace(SECOND, "device")]
    if SECOND in script:
        changed.append(_faked(script).replace(SECOND, "'lazy'"))
        changed.append(_faked(script).replace(f"device = {SECOND}", "device, torch.lazy = 'lazy', torch.cpu"))
    for text in dict.fromkeys(changed):
        if text != script:
            yield "".join(line for line in text.splitlines(keepends=True) if _is_needed(line, text))


def takes_ours(script: str) -> bool:
    """Whether there is something to replace."""
    return _IMPORT.search(script) is not None


def _faked(script: str) -> str:
    """The script, running in the mode in which tensors are fake; what counts operators is inside of it."""
    if COUNTING in script:
        return script.replace(COUNTING, f"with {FAKE}, Moves():{WHY}")
    return _RUN.sub(rf"\1with {FAKE}: \2{WHY}", script)


def _is_needed(line: str, text: str) -> bool:
    imported = _IMPORT.match(line)
    return imported is None or re.search(rf"\b{imported[1]}[.(]", text) is not None


def measuring(script: str) -> str:
    """A script, or a part of one, as it measures where nothing stands in for a second device."""
    return script.replace(f"with {FAKE}, Moves():", COUNTING).replace(f"with {FAKE}: ", "").replace(WHY, "")


def on_second_device(program: str) -> str:
    """The program of a script whose tensors are fake, on the second device again."""
    return f"from conformance.simulated_device.device import second\n{_LAZY.sub(SECOND, program)}"
