"""What implementations declare of laws about devices is what they show on the simulated one.

So a run on CUDA begins with what is known of the algorithms. Not seen here: the laws that take CUDA itself. One law shows a
fault of the simulation where PyTorch's engine is relied on, which runs a node on the stream of its forward: a device that is
registered from Python has one stream as far as that engine knows. Ours sets the stream itself.
"""

from __future__ import annotations

import functools

import pytest
import torch

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, all_laws
from conformance.judging.verdicts import Verdict
from conformance.simulated_device.device import second
from impls.state import accelerators

HERE = [law for law in all_laws().values() if law.devices and not law.lacks("sim")]
PAIRS = [(law.name, name) for law in HERE for name in impls.names(law.kind)]
STREAMS = "side_streams_under_delays"
BY_THE_ENGINE = {(STREAMS, name) for name in ("reentrant", "torch-reentrant", "torch-nonreentrant", "torch-nonreentrant-full")}


@functools.cache
def explorer() -> Explorer:
    second("cpu")  # autograd counts the devices at its first backward
    accelerators.accelerator.cache_clear()  # which may have been asked for before there was a simulated one
    return Explorer("sim", PROFILES["quick"], 0)


@pytest.mark.parametrize(("law", "name"), PAIRS, ids=lambda value: value)
def test_a_law_about_devices_is_kept_as_declared(law: str, name: str) -> None:
    implementation = impls.get(name)
    result = explorer().hold(all_laws()[law], implementation, implementation)
    if (law, name) in BY_THE_ENGINE:
        assert (result.expected, result.verdict) == (Verdict.AGREES, Verdict.DIVERGES)
        assert result.detail == "functions saw the stream of their forward: plain [True], here [False, True]"
        return
    assert result.as_declared, f"{result.verdict}, declared is {result.expected}: {result.vacuous or result.detail}"
    assert not result.vacuous


def test_the_engine_runs_a_node_of_the_simulated_device_on_the_stream_of_backward() -> None:
    module, seen = torch.get_device_module(second("cpu")), list[bool]()
    forth = module.Stream()
    with module.stream(forth):
        y = torch.ones(2, device="sim", requires_grad=True).sin()
    y.register_hook(lambda grad: seen.append(module.current_stream() == forth))
    y.sum().backward()
    assert seen == [False]
