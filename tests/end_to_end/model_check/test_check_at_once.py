"""Checks in several threads of a process, and a check inside a check."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from reprise.model_check import regions
from reprise.model_check.checking import check
from tests.support.checked_models import built

TARGET: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)


def test_a_check_waits_for_one_in_another_thread() -> None:
    code, first_builds, second_builds = TARGET.__code__, threading.Event(), threading.Event()
    at_once = list[bool]()

    def first() -> Any:
        first_builds.set()
        at_once.append(second_builds.wait(0.1))
        return built()()

    def second() -> Any:
        second_builds.set()
        return built()()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(check, first, impl="nested", steps=1)
        assert first_builds.wait(60)
        other = pool.submit(check, second, impl="nested", steps=1)
        assert one.result().agrees
        assert other.result().agrees
    assert at_once
    assert not any(at_once)
    assert TARGET.__code__ is code
    assert not regions._active


def test_a_check_inside_a_check_does_not_wait_for_it() -> None:
    inner = list[bool]()

    def build() -> tuple[nn.Module, torch.Tensor]:
        if not inner:
            inner.append(check(built(), impl="nested", steps=1).agrees)
        return built()()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(check, build, impl="nested", steps=1).result(60).agrees
    assert inner == [True]
