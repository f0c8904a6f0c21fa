"""A small language model, trained plain and with OffloadModel in each of its modes: the same to the last bit.

    python -m impls.examples.language_model [--steps N] [--device D]

The text is made by the grammar below. Each mode starts from the same parameters and sees the same batches and the same
dropout masks. With microbatches sums are taken in another order and masks are drawn for other shapes, so that run is
close, and is not compared. The status is 1 when a mode that must be equal to plain is not.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from impls.offload import OffloadModel

# A capital is a rule, of which one alternative is taken; the rest is text.
GRAMMAR: Mapping[str, tuple[str, ...]] = {
    "S": ("N V N. ", "N V. ", "N V N, and N V. ", "if N V, N V N. "),
    "N": ("the A B", "the B", "a B that V", "the B of N"),
    "A": ("old", "small", "green", "quiet", "very A"),
    "B": ("river", "teacher", "machine", "garden", "letter", "storm"),
    "V": ("waits", "finds N", "remembers N", "sleeps", "follows N"),
}
ALPHABET = "".join(sorted({letter for rule in GRAMMAR.values() for text in rule for letter in text if letter not in GRAMMAR}))
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 80, 4, 4, 32, 12


def sentence(draw: random.Random, symbol: str = "S", depth: int = 0) -> str:
    """Text that the grammar gives for a symbol; deep inside, always the alternative with the fewest rules in it."""
    rules = GRAMMAR[symbol]
    chosen = draw.choice(rules) if depth < 6 else min(rules, key=lambda rule: sum(letter in GRAMMAR for letter in rule))
    return "".join(sentence(draw, letter, depth + 1) if letter in GRAMMAR else letter for letter in chosen)


def corpus(letters: int, seed: int = 0) -> torch.Tensor:
    """A text of at least ``letters`` letters, as indices into ALPHABET."""
    draw = random.Random(seed)
    text = ""
    while len(text) < letters:
        text += sentence(draw)
    return torch.tensor([ALPHABET.index(letter) for letter in text])


class Embedding(nn.Module):
    """Letters and their positions."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.position = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.register_buffer("places", torch.arange(LENGTH), persistent=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letter(letters) + self.position(self.places[: letters.shape[1]])


class Block(nn.Module):
    """Causal attention and two linear layers, each around a residual connection and with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.first(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.wide(self.second(x)))


def language_model() -> nn.Sequential:
    """The model, about three hundred thousand parameters, always with the same ones."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    return nn.Sequential(Embedding(), nn.Dropout(0.1), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))


@dataclass(frozen=True)
class Mode:
    """A way to train the model: with these options of OffloadModel, plain where there are none."""

    name: str
    options: Mapping[str, Any] | None = None
    exact: bool = True


MODES = (
    Mode("plain"),
    Mode("offload", {"num_slices": 3}),
    Mode("offload, a slice a module", {"num_slices": LAYERS + 4}),
    Mode("checkpoint", {"num_slices": 3, "checkpoint_activation": True}),
    Mode("checkpoint, a slice a module", {"num_slices": LAYERS + 4, "checkpoint_activation": True}),
    Mode("checkpoint, 2 microbatches", {"num_slices": 3, "checkpoint_activation": True, "num_microbatches": 2}, exact=False),
)


@dataclass(frozen=True)
class Trained:
    """What a training run ended with."""

    losses: tuple[float, ...]
    state: Mapping[str, torch.Tensor] = field(repr=False)

    def equals(self, other: Trained) -> bool:
        """Whether every loss and every parameter and buffer is the same, to the last bit."""
        return (
            self.losses == other.losses
            and self.state.keys() == other.state.keys()
            and all(torch.equal(value, other.state[name]) for name, value in self.state.items())
        )


def train(mode: Mode, steps: int, device: torch.device) -> Trained:
    """Train the model for so many steps and return what comes of it, on the CPU."""
    model: nn.Module = language_model()
    model = model.to(device) if mode.options is None else OffloadModel(model, device, **mode.options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, losses = corpus(20_000), []
    draw = random.Random(1)
    torch.manual_seed(2)
    for _ in range(steps):
        starts = [draw.randrange(len(text) - LENGTH - 1) for _ in range(BATCH)]
        letters = torch.stack([text[start : start + LENGTH + 1] for start in starts]).to(device)
        loss = nn.functional.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(tuple(losses), {name: value.cpu().clone() for name, value in model.state_dict().items()})


def compare(steps: int, device: torch.device, modes: Sequence[Mode] = MODES) -> list[tuple[Mode, Trained, bool]]:
    """Each mode, what it ended with, and whether that equals what the first one ended with."""
    runs = [train(mode, steps, device) for mode in modes]
    return [(mode, run, run.equals(runs[0])) for mode, run in zip(modes, runs, strict=True)]


def table(rows: Sequence[tuple[Mode, Trained, bool]]) -> str:
    """The rows as text."""
    lines = [f"{'mode':32} {'first loss':>12} {'last loss':>22}  equal to plain to the last bit"]
    for mode, run, equal in rows:
        verdict = "yes" if equal else "NO" if mode.exact else "no: sums in another order, other masks"
        lines.append(f"{mode.name:32} {run.losses[0]:12.6f} {run.losses[-1]:22.17f}  {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in every mode and print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="optimizer steps in each mode (30)")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), metavar="D", help="where to compute (cpu)")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"argument --steps: it is {given.steps}; it must be 1 or more")
    parameters = sum(parameter.numel() for parameter in language_model().parameters())
    rows = compare(given.steps, given.device)
    sys.stdout.write(f"{parameters:,} parameters, {given.steps} steps on {given.device}\n{table(rows)}\n")
    return 0 if all(equal for mode, _, equal in rows if mode.exact) else 1


if __name__ == "__main__":
    torch.set_num_threads(1)  # the matrices are small: threads would wait for each other longer than they compute
    sys.exit(main())
