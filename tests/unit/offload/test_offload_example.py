"""The example trains to the same last bit in every mode, and says so."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from impls.examples import language_model
from impls.examples.language_model import ALPHABET, MODES, Mode, Trained, compare, corpus, main, sentence, table

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small
    yield
    torch.set_num_threads(before)


def test_every_mode_that_must_be_equal_to_plain_is() -> None:
    rows = compare(2, CPU)
    assert [equal for mode, _, equal in rows if mode.exact] == [True] * (len(MODES) - 1)
    assert all(run.losses[0] > 0 for _, run, _ in rows)


def test_training_lowers_the_loss() -> None:
    first, *_, last = language_model.train(MODES[0], 8, CPU).losses
    assert last < first - 0.3


def test_text_is_what_the_grammar_gives() -> None:
    text = sentence(random.Random(0))
    assert set(text) <= set(ALPHABET)
    assert text.endswith(". ")
    assert torch.equal(corpus(100), corpus(100))


@pytest.mark.parametrize(("value", "status"), [(1.0, 0), (2.0, 1)])
def test_the_status_says_whether_modes_are_equal(
    value: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(mode: Mode, steps: int, device: torch.device) -> Trained:
        return Trained((1.0,) * steps, {"w": torch.tensor(1.0 if mode is MODES[0] else value)})

    monkeypatch.setattr(language_model, "train", train)
    assert main(["--steps", "2"]) == status
    assert ("NO" in capsys.readouterr().out) == bool(status)


def test_a_run_that_ends_elsewhere_is_not_equal() -> None:
    one = Trained((1.0,), {"w": torch.zeros(2)})
    assert not one.equals(Trained((1.0,), {"w": torch.tensor([0.0, 1e-30])}))
    assert "NO" in table([(MODES[1], one, False)])
