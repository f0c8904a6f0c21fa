"""reprise check --explain: the set of regions that it names goes wrong as all of them do, and none of it can be left out."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from impls import Implementation
from reprise.model_check import regions
from reprise.model_check.checking import check
from reprise.model_check.explanations import explain
from reprise.model_check.explanations.explain import CONFIRMED, GONE, SAME_ONCE, TRIES, explain_divergence, shrink
from reprise.model_check.plain_runs import PlainRuns
from reprise.model_check.regions import Key
from reprise.model_check.run import Setting
from tests.support.checked_models import built

build = built()


def keys(count: int) -> list[Key]:
    return [(number,) for number in range(count)]


def needing(needed: Set[Key]) -> tuple[Callable[[list[Key]], bool], list[int]]:
    """Whether a set has all keys that are needed, and the sizes of the sets that were tried."""
    tried: list[int] = []

    def shows(some: list[Key]) -> bool:
        tried.append(len(some))
        return needed <= {*some}

    return shows, tried


def test_a_set_of_which_too_few_runs_were_made_is_not_called_the_smallest() -> None:
    shows, tried = needing({*keys(70)})
    found, is_smallest = shrink(keys(100), shows)
    assert len(found) > 70
    assert not is_smallest
    assert len(tried) == TRIES


@given(st.sets(st.sampled_from(keys(12)), min_size=1))
def test_what_is_called_the_smallest_set_is_what_is_needed(needed: set[Key]) -> None:
    shows, _ = needing(needed)
    assert shrink(keys(12), shows) == (sorted(needed), True)


def test_a_key_that_can_be_left_out_once_others_are_is_left_out() -> None:
    """The first can be left out without the last alone."""

    def shows(some: list[Key]) -> bool:
        return {(1,), (2,)} <= {*some} and ((0,) in some or (3,) not in some)

    assert shrink(keys(4), shows) == ([(1,), (2,)], True)


def is_with_the_second() -> bool:
    only = regions._active[-1].only
    return only is None or (1,) in only


def diverging_with_the_second(function: Any, *args: Any) -> Any:
    """Changes the second region, and fails without it."""
    if not is_with_the_second():
        raise KeyError("of another kind")
    return function(*args) * (2 if function.__name__ == "layers.1" else 1)


def failing_with_the_second(function: Any, *args: Any) -> Any:
    """Fails in the second region, and changes all others without it."""
    if function.__name__ == "layers.1":
        raise ValueError("sought")
    return function(*args) * (1 if is_with_the_second() else 2)


def failing_otherwise_without_the_second(function: Any, *args: Any) -> Any:
    raise ValueError("sought") if is_with_the_second() else KeyError("of another kind")


@pytest.mark.parametrize("fault", [diverging_with_the_second, failing_with_the_second])
def test_an_error_is_not_taken_for_a_divergence_nor_a_divergence_for_an_error(fault: Callable[..., Any]) -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=fault)
    (result,) = check(build, impl=one, steps=1, explain=True).results
    assert result.explanation.lines[0].startswith("smallest set of regions that shows it: layers.1 (")
    assert "," not in result.explanation.lines[0]


def test_of_an_error_in_forward_nothing_is_said_about_recomputations() -> None:
    setting = Setting(build, steps=1)
    plain = PlainRuns.begun(setting, lambda _: None)
    found = explain_divergence(setting, failing_with_the_second, plain, None, "builtins.ValueError")
    assert (found.lines[1:], found.ended_by) == ((), "ValueError: sought")


def test_an_error_of_another_type_is_not_taken_for_the_one_that_is_explained() -> None:
    setting = Setting(build, steps=1)
    plain = PlainRuns.begun(setting, lambda _: None)
    found = explain_divergence(setting, failing_otherwise_without_the_second, plain, None, "builtins.ValueError")
    assert found.lines[0].startswith("smallest set of regions that shows it: layers.1 (")
    assert "," not in found.lines[0]


def test_what_is_no_exception_is_looked_for_by_its_type_too() -> None:
    def ends(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.detach())
        if len(self.kept) > 1:
            raise SystemExit(3)
        return x

    (result,) = check(built(ends), impl="torch-nonreentrant", steps=1, explain=True).results
    assert (result.verdict, result.error, result.error_type) == ("crashes", "SystemExit: 3", "builtins.SystemExit")
    assert result.explanation.lines[0].startswith("smallest set of regions that shows it: layers.1 (")
    assert "," not in result.explanation.lines[0]


def test_a_set_that_may_not_be_the_smallest_is_told_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Implementation(
        "own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=diverging_with_the_second
    )
    monkeypatch.setattr(explain, "TRIES", 1)
    (result,) = check(build, impl=one, steps=1, explain=True).results
    told = "set of 2 regions that shows it, perhaps not the smallest, since no more than 1 runs are made: layers.1 ("
    assert result.explanation.lines[0].startswith(told)


def own(fault: Callable[..., Any]) -> Implementation:
    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=fault)


@pytest.mark.parametrize("error", [ValueError("once"), KeyError("once")])
def test_a_fault_that_does_not_show_again_has_no_smallest_set(error: Exception) -> None:
    """No set was run that went wrong, so none may be named."""
    raised: list[Exception] = []

    def failing_once(function: Any, *args: Any) -> Any:
        if not raised:
            raised.append(error)
            raise error
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)

    (result,) = check(build, impl=own(failing_once), steps=1, explain=True).results
    assert result.error.endswith("once'" if isinstance(error, KeyError) else "once")
    assert result.explanation.lines == (f"{GONE}, with all 3 regions", SAME_ONCE)


@pytest.mark.parametrize("count", [1, 3])
def test_the_set_that_is_named_was_run_and_went_wrong(count: int) -> None:
    """Also if it is all regions, and if it is the only one."""
    wrong: list[frozenset[Key] | None] = []

    def failing_in_all(function: Any, *args: Any) -> Any:
        only = regions._active[-1].only
        if only is None or len(only) == count:
            wrong.append(only)
            raise ValueError("sought")
        return function(*args)

    def few() -> Any:
        model, x = build()
        model.layers = model.layers[:count]
        return model, x

    (result,) = check(few, impl=own(failing_in_all), steps=1, explain=True).results
    named = {region.partition(" (")[0] for region in result.explanation.lines[0].partition(": ")[2].split(", ")}
    assert named == {f"layers.{number}" for number in range(count)}
    # The verdict, the meter, the set, its confirmations, and its recording.
    assert wrong == [None, None, *[{*keys(count)}] * (CONFIRMED + 2)]


def test_of_what_comes_and_goes_no_set_is_called_the_smallest() -> None:
    setting = Setting(build, steps=1)
    plain = PlainRuns.begun(setting, lambda _: None)
    found = explain_divergence(setting, failing_with_the_second, plain, None, "builtins.ValueError", is_certain=False)
    told = "set of 1 region that shows it, perhaps not the smallest, since the fault comes and goes: layers.1 ("
    assert found.lines[0].startswith(told)


@pytest.mark.parametrize("goes", [True, False])
def test_a_set_that_shows_it_no_more_or_not_alone_when_run_again_is_not_called_the_smallest(goes: bool) -> None:
    """Sets with the second and third region fail; when a set is run again, it does not, or one with either fails, too."""
    tried: list[tuple[nn.Module, frozenset[Key]]] = []  # models are built anew for each run

    def failing_now_and_then(function: Any, *args: Any) -> Any:
        only = regions._active[-1].only or frozenset()
        tried.append((models[-1], only))
        is_first = len({id(model) for model, some in tried if some == only}) == 1
        needed = {(1,), (2,)} & only
        if (len(needed) == 2 and (is_first or not goes)) or (needed and not is_first and not goes):
            raise ValueError("sought")
        return function(*args)

    models: list[nn.Module] = []

    def noted() -> Any:
        model, x = build()
        models.append(model)
        return model, x

    setting = Setting(noted, steps=1)
    plain = PlainRuns.begun(setting, lambda _: None)
    found = explain_divergence(setting, failing_now_and_then, plain, None, "builtins.ValueError")
    told = "set of 2 regions that shows it, perhaps not the smallest, since the fault comes and goes: layers.1 ("
    assert found.lines[0].startswith(told)


def test_a_region_that_shows_it_alone_is_named_alone_though_sets_between_do_not() -> None:
    """The last one shows it alone and with all, but not with one or two others."""

    def shows(some: list[Key]) -> bool:
        return (3,) in some and len(some) in (1, 4)

    assert shrink(keys(4), shows)[0] == keys(4)
    assert explain._smallest(keys(4), shows) == ([(3,)], True)
