"""Which options a checkpoint does not take is found by calling it, whatever its signature and whatever it raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.runs.option_probe import KEYWORDS, OPTIONS, not_taken, probed
from impls import nested, reentrant


def forwarding(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def choosy(function: Any, *args: Any, early_stop: bool = True) -> Any:
    return function(*args)


def refusing(function: Any, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("checkpoint", "found"),
    [
        (nested.checkpoint, set()),
        (forwarding, {*OPTIONS}),
        (choosy, {KEYWORDS, *OPTIONS} - {"early_stop"}),
        (reentrant.checkpoint, {KEYWORDS, *OPTIONS} - {"preserve_rng_state"}),
        (refusing, set()),  # for which options are not why
    ],
)
def test_what_raises_with_an_option_and_not_without_does_not_take_it(checkpoint: Any, found: set[str]) -> None:
    assert {*probed(checkpoint, "cpu")} == found


def test_an_implementation_is_called_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os\ndef checkpoint(function, *args):\n    print('noise')\n    return function(*args)\n"
    (tmp_path / "somebody.py").write_text(text + "def ends(function, *args):\n    os._exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not_taken("somebody:checkpoint", "cpu") == {KEYWORDS, *OPTIONS}
    assert not_taken("somebody:ends", "cpu") == frozenset()
