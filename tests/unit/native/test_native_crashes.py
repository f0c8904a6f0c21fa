"""What might end the interpreter, or leave its state damaged: errors out of hooks, threads, forks, depth, references."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from impls import nested
from impls.native import CheckpointError, NativeUnavailableError, checkpoint
from impls.native.region import _shared, require_extension
from impls.nested.inputs import Inputs
from impls.nested.kept_containers import earlier_calls
from impls.state import advisory_locks
from impls.state.process_lock import PROCESS_LOCK
from impls.state.restoration import current_restoration
from impls.torch_private import pop_hooks, top_hooks


@pytest.fixture(autouse=True, scope="module")
def _extension() -> None:
    try:
        require_extension()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _leaves_nothing_set() -> Any:
    yield
    assert top_hooks(True) is None
    assert not PROCESS_LOCK.holders
    assert not advisory_locks._holders
    assert current_restoration() is None
    assert torch.is_grad_enabled()


def _leaf(count: int = 4) -> torch.Tensor:
    return torch.linspace(0.25, 1, count).requires_grad_()


def _chain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().tanh()


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)


def _result_and_hooks() -> Any:
    """What a region returns, and the hooks of its forward."""
    found: list[Any] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        found.append(top_hooks(True))
        return x.sin()

    return checkpoint(function, _leaf()), found[0]


# ---- errors


def test_hooks_that_are_not_allowed_in_backward_are_refused_and_leave_everything_as_it_was() -> None:
    x = _leaf()
    y = checkpoint(_chain, x)
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"), pytest.raises(RuntimeError, match="no hooks here"):
        y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(torch.autograd.grad(_chain(x).sum(), x)[0])


def test_a_function_that_takes_the_hooks_off_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        checkpoint(lambda x: (pop_hooks(), x.sin())[1], _leaf())


def test_a_recomputation_that_takes_the_hooks_off_is_an_error() -> None:
    calls: list[None] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        if len(calls) == 2:
            pop_hooks()
        return x.sin().exp()

    y = checkpoint(function, _leaf())
    with pytest.raises(RuntimeError):
        y.sum().backward()


@pytest.mark.parametrize("hook", ["pack", "unpack"])
def test_a_hook_refuses_what_it_is_not_for(hook: str) -> None:
    _, (pack, unpack) = _result_and_hooks()
    with pytest.raises(TypeError, match="must be"):
        pack(5) if hook == "pack" else unpack(5)


def test_a_slot_of_another_region_is_refused() -> None:
    _kept, (_, unpack) = _result_and_hooks()
    other, _ = _result_and_hooks()
    with pytest.raises(TypeError, match="must be a slot of this region"):
        unpack(other.grad_fn._raw_saved_self.data)


@pytest.mark.parametrize("name", ["native", "nested"])
def test_an_argument_whose_class_has_no_hash_is_the_error_that_it_is(name: str) -> None:
    class Unhashable(type):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            return False

    class Argument(metaclass=Unhashable):
        pass

    call: Callable[..., Any] = checkpoint if name == "native" else nested.checkpoint
    with pytest.raises(TypeError, match="unhashable type"):
        call(lambda x, argument: x.sin(), _leaf(), Argument())


@pytest.mark.parametrize("function", [lambda many: many[0].sin(), lambda many: many[1]])
def test_an_error_while_forward_ends_is_told(monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any]) -> None:
    def fail(inputs: Inputs) -> None:
        raise ValueError("at the end")

    monkeypatch.setattr(Inputs, "end_forward", fail)
    with pytest.raises(ValueError, match="at the end"):
        checkpoint(function, [_leaf()])


# ---- threads and processes


def test_threads_recompute_regions_of_their_own_and_of_one_graph() -> None:
    x = _leaf(64)
    shared = checkpoint(lambda h: _chain(torch.nn.functional.dropout(h, 0.1)), x).sum()
    expected = torch.autograd.grad(shared, x, retain_graph=True)[0]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            own = _leaf(64)
            mine = torch.autograd.grad(checkpoint(lambda h: checkpoint(_chain, h).cos(), own).sum(), own)[0]
            same = torch.autograd.grad(_chain(own).cos().sum(), own)[0]
            found = torch.autograd.grad(shared, x, retain_graph=True)[0]
            if not (mine.equal(same) and found.equal(expected)):
                wrong.append((mine, found))

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_graphs_are_freed_on_another_thread() -> None:
    graphs = [checkpoint(_chain, _leaf()) for _ in range(200)]
    threads = [threading.Thread(target=graphs.clear), threading.Thread(target=gc.collect)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graphs == []


def test_a_child_process_goes_on_with_its_parents_graph() -> None:
    script = (
        "import os, torch; from impls.native import checkpoint\n"
        "torch.set_num_threads(1)\n"
        "x = torch.linspace(0.25, 1, 4).requires_grad_()\n"
        "y = checkpoint(lambda h: torch.nn.functional.dropout(h.sin()).exp(), x).sum()\n"
        "expected, = torch.autograd.grad(y, x, retain_graph=True)\n"
        "child = os.fork()\n"
        "found, = torch.autograd.grad(y, x, retain_graph=True)\n"
        "again, = torch.autograd.grad(checkpoint(torch.sin, x).sum(), x)\n"
        "assert found.equal(expected) and again.equal(x.detach().cos())\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = _run(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_another_thread_recomputes() -> None:
    script = (
        "import threading, time, torch; from impls.native import checkpoint\n"
        "begun = threading.Event()\n"
        "def function(h):\n"
        "    if runs: begun.set(); time.sleep(60)\n"
        "    runs.append(None)\n"
        "    return torch.nn.functional.dropout(h.sin()).exp()\n"
        "runs = []\n"
        "y = checkpoint(function, torch.ones(2, requires_grad=True)).sum()\n"
        "threading.Thread(target=y.backward, daemon=True).start()\n"
        "assert begun.wait(60)\n"
    )
    done = _run(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_inside_a_region() -> None:
    script = (
        "import sys, torch; from impls.native import checkpoint\n"
        "def function(h):\n"
        "    y = h.sin()\n"
        "    if runs: sys.exit(7)\n"
        "    runs.append(None)\n"
        "    return y.exp()\n"
        "runs = []\n"
        "checkpoint(function, torch.ones(2, requires_grad=True)).sum().backward()\n"
    )
    done = _run(script)
    assert (done.returncode, done.stderr) == (7, "")


# ---- depth


DEEP = """
import functools, sys, torch; from impls.native import checkpoint
x = torch.linspace(0.25, 1, 4).requires_grad_()
function = torch.sin
for _ in range({depth}):
    function = functools.partial(checkpoint, function)
calls = {depth} * {per_region} + 100
sys.setrecursionlimit(calls)
y = function(x)
y.sum().backward(retain_graph=True)
assert x.grad.equal(x.detach().cos())
del y, function
"""


def test_backward_takes_no_more_depth_than_forward() -> None:
    done = _run(DEEP.format(depth=2000, per_region=4))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_too_deep_is_an_error_of_pythons() -> None:
    done = _run(DEEP.format(depth=2000, per_region=1))
    assert done.returncode == 1
    assert "RecursionError" in done.stderr


# ---- references


def _simple() -> None:
    checkpoint(_chain, _leaf()).sum().backward()


def _drawing() -> None:
    checkpoint(lambda x: _chain(torch.nn.functional.dropout(x)), _leaf()).sum().backward()


def _nesting() -> None:
    checkpoint(lambda x: checkpoint(lambda y: checkpoint(_chain, y).cos(), x).cos(), _leaf()).sum().backward()


def _with_containers() -> None:
    held = [_leaf()]
    checkpoint(lambda many: checkpoint(lambda some: _chain(some[0]), many["some"]), {"some": held}).sum().backward()


def _retained() -> None:
    x = _leaf()
    y = checkpoint(_chain, x).sum()
    for _ in range(3):
        torch.autograd.grad(y, x, retain_graph=True)


def _second_order() -> None:
    x = _leaf()
    (first,) = torch.autograd.grad(checkpoint(_chain, x).sum(), x, create_graph=True)
    first.sum().backward()


def _dropped() -> None:
    checkpoint(lambda x: (x.sin(), x.cos().exp()), _leaf())


def _failing() -> None:
    runs: list[None] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(None)
        if len(runs) == 2:
            raise ValueError("in the recomputation")
        return _chain(x)

    with pytest.raises(ValueError, match="in the recomputation"):
        checkpoint(function, _leaf()).sum().backward()


def _refused() -> None:
    x = _leaf() * 1
    y = checkpoint(lambda h: _chain(h), x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(CheckpointError):
        y.sum().backward()


def _replaced() -> None:
    weights = [torch.full((4,), 2.0, requires_grad=True)]
    y = checkpoint(lambda x: x * weights[0], _leaf())
    weights[0] = torch.full((4,), 2.0, requires_grad=True)
    y.sum().backward()


PROGRAMS = [_simple, _drawing, _nesting, _with_containers, _retained, _second_order, _dropped, _failing, _refused, _replaced]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__[1:])
def test_a_long_loop_leaves_nothing_behind(program: Callable[[], None]) -> None:
    counted = [None, *dict(_shared()).values()]  # of True, torch loses references by itself with a simulated device

    def state() -> list[int]:
        gc.collect()
        return [sys.getallocatedblocks(), *(sys.getrefcount(one) for one in counted)]

    earlier_calls.waiting.clear()  # what other tests left there would go meanwhile
    states = []
    for _ in range(4):
        for _ in range(250):
            program()
        states.append(state())
    rounds = [[now - then for then, now in zip(*pair, strict=True)] for pair in itertools.pairwise(states)]
    blocks, *references = (min(each, key=abs) for each in zip(*rounds, strict=True))  # what is made once is in one round
    assert blocks < 100, rounds  # fewer are no leak: what other tests left may go meanwhile
    assert max(map(abs, references)) < 100, rounds


_HANDLER = """
import signal, torch
from impls.native import checkpoint

class Timeout(Exception):
    pass

def handler(*_):
    raise Timeout

kept, runs = [], []

def function(x):
    h = x.sin()
    kept[:] = [h]  # a recomputed graph that is kept is told of the end of its run, in Python
    runs.append(1)
    if len(runs) == 2:
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # exp takes longer
    return h.exp()

torch.set_num_threads(1)  # or exp would be over before
signal.signal(signal.SIGALRM, handler)
x = torch.randn(20_000_000, requires_grad=True)
y = checkpoint(function, x)
try:
    y.backward(torch.ones_like(y))
except Timeout:
    print("raised", x.grad)
"""


def test_what_a_signals_handler_raises_in_a_recomputation_is_raised_by_backward() -> None:
    done = subprocess.run([sys.executable, "-c", _HANDLER], capture_output=True, text=True, timeout=120)
    assert done.stdout == "raised None\n", done.stderr


def test_threads_that_wait_for_each_other_do_not_read_frames_that_are_gone() -> None:
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in "ab")

    def function(x: torch.Tensor) -> torch.Tensor:
        cycle: list[Any] = [x.sin()]  # is freed by the collector alone
        cycle.append(cycle)
        return torch.nn.functional.dropout(x @ w, 0.4).tanh()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for _ in range(300):
            y = checkpoint(lambda x: checkpoint(function, checkpoint(function, x)), x)
            results: list[Any] = []

            def differentiate(y: torch.Tensor = y, results: list[Any] = results) -> None:
                results.append(torch.autograd.grad(y.sum(), (x, w), retain_graph=True))

            threads = [threading.Thread(target=differentiate) for _ in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            assert len(results) == 4
            assert all(torch.equal(one, other) for pair in results for one, other in zip(pair, results[0], strict=True))
    finally:
        sys.setswitchinterval(before)
