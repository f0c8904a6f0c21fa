"""Models that implementations are compared on: chains of blocks, of which each is a region, in several sizes.

A workload is blocks, an input and the gradient of its output: a step runs the blocks one after the other, then backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benches.models.blocks import Block, Bottleneck, Experts, Operators, Recurrent, Residual, Transformer

SIZES = "S", "M", "L", "XL"
FAKE = "fake"  # what stands for a device where tensors have no memory


@dataclass(frozen=True)
class Workload:
    """Blocks in a row, the leaf that the first one gets, and the gradient of what the last one returns.

    ``timed`` is False where only bytes and operations are of interest; ``x`` is the place on the axis of a sweep. Whatever
    touches the tensors does so within ``mode``, which for fake tensors is theirs.
    """

    name: str
    size: str
    blocks: tuple[Block, ...]
    input: Tensor
    cotangent: Tensor
    timed: bool = True
    x: int = 0
    mode: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def leaves(self) -> list[Tensor]:
        """What gets a gradient: the input, and the parameters of the blocks."""
        modules = (block for block in self.blocks if isinstance(block, nn.Module))
        return [self.input, *(parameter for module in modules for parameter in module.parameters())]


# Blocks, the shape of the input, and that of the output where it is another.
Made = tuple[Sequence[Block], Sequence[int]] | tuple[Sequence[Block], Sequence[int], Sequence[int]]
Build = Callable[[int, str], Made]  # by depth and size


def _operators(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
    count, elements = {"S": (32, 64), "M": (64, 4096), "L": (64, 2**22), "XL": (10, 2**28)}[size]
    return [Operators(count) for _ in range(depth)], (elements,)


def _transformer(fused: bool) -> Build:
    def build(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
        width, heads, batch, length = {
            "S": (64, 4, 2, 64), "M": (256, 8, 2, 256), "L": (2048, 16, 8, 2048), "XL": (12288, 96, 1, 2048),
        }[size]  # fmt: skip
        return [Transformer(width, heads, fused) for _ in range(depth)], (batch, length, width)

    return build


def _residual(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
    width, batch, side = {"S": (8, 2, 24), "M": (32, 4, 32), "L": (128, 32, 64), "XL": (256, 32, 224)}[size]
    return [Residual(width) for _ in range(depth)], (batch, width, side, side)


def _resnet50(depth: int, size: str) -> Made:
    """The four stages in the proportion of ResNet-50, 3, 4, 6 and 3 blocks, behind its stem."""
    width, batch, side = {"S": (8, 2, 16), "M": (16, 8, 32), "L": (64, 64, 56), "XL": (256, 64, 224)}[size]
    blocks: list[Bottleneck] = []
    before = width
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count * depth // 16):
            made = Bottleneck(before, width << stage, 2 if stage and not index else 1)
            blocks.append(made)
            before = 4 * (width << stage)
    return blocks, (batch, width, side, side), (batch, before, side // 8, side // 8)


def _small_layers(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
    """Layers so small that a device waits for the host to launch kernels, at each size; larger sizes have more layers."""
    return [Transformer(64, 4, fused=True) for _ in range(depth)], (1, 16, 64)


def _recurrent(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
    width, length, batch = {"S": (48, 8, 8), "M": (256, 32, 16), "L": (1024, 64, 128), "XL": (8192, 16, 512)}[size]
    return [Recurrent(width) for _ in range(depth)], (length, batch, width)


def _experts(depth: int, size: str) -> tuple[Sequence[Block], Sequence[int]]:
    width, experts, tokens = {"S": (48, 4, 96), "M": (256, 8, 512), "L": (1024, 8, 8192), "XL": (8192, 64, 65536)}[size]
    return [Experts(width, experts, 2 * tokens // experts) for _ in range(depth)], (tokens, width)


@dataclass(frozen=True)
class Kind:
    """A kind of workload: what it is, how its blocks are made, how many it has by size, and dtypes that are not float32."""

    summary: str
    build: Build
    depths: Mapping[str, int]
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)


def _depths(small: int, medium: int, large: int, largest: int) -> Mapping[str, int]:
    return dict(zip(SIZES, (small, medium, large, largest), strict=True))


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "chain": Kind("tiny operators, sines one after the other", _operators, _depths(16, 32, 32, 100)),
        "attention": Kind("GPT-2-like layers, attention written out", _transformer(fused=False), _depths(6, 8, 12, 96)),
        "fused-attention": Kind(
            "GPT-2-like layers with fused attention", _transformer(fused=True), _depths(6, 8, 12, 96), {"L": torch.bfloat16}
        ),
        "resnet": Kind("residual blocks of two convolutions", _residual, _depths(8, 12, 24, 500)),
        "resnet50": Kind("blocks in the shape of ResNet-50", _resnet50, _depths(16, 16, 16, 16)),
        "small-layers": Kind("layers so small that launching them takes longest", _small_layers, _depths(6, 24, 96, 96)),
        "lstm": Kind("layers of an LSTM", _recurrent, _depths(4, 4, 6, 8)),
        "experts": Kind("mixture-of-experts blocks with dropout", _experts, _depths(4, 6, 8, 32)),
    }
)
SAVED = 1, 10, 100, 1000
DEPTHS = 2, 4, 8, 16, 32


def workload(name: str, size: str = "S", device: str = "cpu") -> Workload:
    """The workload of that name and size, seeded, with a gradient of zero at every leaf.

    On "fake" it has the sizes and operators of the CPU, and no values or memory; XL is made there alone. Raises ValueError
    for a name or a size that does not exist, and for XL on a device that has memory.
    """
    if name not in KINDS:
        raise ValueError(f"workload is {name!r}; it must be one of {', '.join(KINDS)}")
    if size not in SIZES:
        raise ValueError(f"size is {size!r}; it must be one of {', '.join(SIZES)}")
    if size == "XL" and device != FAKE:
        raise ValueError(f"device is {device!r}; workloads of size XL are made of fake tensors alone, on {FAKE!r}")
    kind = KINDS[name]
    build = functools.partial(kind.build, kind.depths[size], size)
    return _made(name, size, device, build, kind.dtypes.get(size, torch.float32))


def sweeps(device: str = "cpu") -> list[Workload]:
    """Workloads of the curves: one region of more and more saved tensors, and layers, more and more of them, not timed."""
    layers = _transformer(fused=False)
    saved = [_made(f"saved-{count}", "S", device, functools.partial(_sines, count), x=count) for count in SAVED]
    return saved + [
        _made(f"depth-{depth}", "S", device, functools.partial(layers, depth, "S"), timed=False, x=depth) for depth in DEPTHS
    ]


def _sines(count: int) -> tuple[Sequence[Block], Sequence[int]]:
    return [Operators(count)], (4,)


def device_type(device: str) -> str:
    """The type of a device as torch names it, or "fake"."""
    return device if device == FAKE else torch.device(device).type


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _made(
    name: str,
    size: str,
    device: str,
    build: Callable[[], Made],
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Workload:
    fake = device == FAKE
    mode = FakeTensorMode() if fake else nullcontext()
    with torch.random.fork_rng(devices=[]), mode, torch.device("cpu" if fake else device):
        torch.manual_seed(0)
        with _default(dtype):
            blocks, *shapes = build()
            value, cotangent = torch.randn(shapes[0]), torch.randn(shapes[-1])
        made = Workload(name, size, tuple(blocks), value.requires_grad_(), cotangent, mode=mode, **options)
        for leaf in made.leaves:
            leaf.grad = torch.zeros_like(leaf)
    return made
