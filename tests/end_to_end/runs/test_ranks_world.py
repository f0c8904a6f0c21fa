"""A world of ranks: what they answer, and that neither a hang, nor a crash, nor an interrupt leaves anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.distributed.answer import Task, Unjudged, WorldEnded
from conformance.distributed.rank import PROGRAMS_A_CACHE
from conformance.distributed.waiting import POLLING
from conformance.distributed.world import World
from conformance.rows.results_file import ROOT

HEAD = "import os, time\nimport torch\nimport torch.distributed as dist\n\ndef run(checkpoint, note, device):\n"
SUMS = f"{HEAD}    x = torch.tensor([1.0 + dist.get_rank()])\n    dist.all_reduce(x)\n    note('sum', x)\n"
WAITS = f"{HEAD}    if dist.get_rank() == 1:\n        dist.all_reduce(torch.ones(1))\n"
SLEEPS = f"{HEAD}    note('begun')\n    time.sleep(600 * dist.get_rank())\n"
DIES = f"{HEAD}    os._exit(3) if dist.get_rank() else dist.all_reduce(torch.ones(1))\n"
DEADLOCK = """\
    if dist.get_rank():
        dist.recv(torch.ones(1), 0)
    else:
        dist.recv(torch.ones(1), 1)
"""
SPINS = """\
    if dist.get_rank():
        dist.recv(torch.ones(1), 0)
    while True:
        pass
"""
GOES_ON = """\
    if not dist.get_rank():
        time.sleep(2)  # so far both wait, and none does at the end
        while True:
            pass
    dist.recv(torch.ones(1), 0)
"""
RAISES = f"{HEAD}    if dist.get_rank():\n        raise KeyError('of rank 1')\n    dist.all_reduce(torch.ones(1))\n"
EXCHANGES = f"""import torch.distributed._functional_collectives as collectives
{HEAD}    def region(h):
        return torch.tanh(collectives.all_to_all_single_autograd(torch.sin(h), None, None, dist.group.WORLD))
    x = torch.ones(2, 2, requires_grad=True)
    checkpoint(region, x).sum().backward()
"""
CONTEXT = f"""from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
{HEAD}    mesh, x = dist.init_device_mesh(device, (dist.get_world_size(),)), torch.ones(1, 1, 4, 4)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]), sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
"""
CYCLE = f"""import weakref
{HEAD}    class Held:
        pass
    one = Held()
    one.itself, there = one, weakref.ref(one)
    del one
    many = [[number] for number in range(100_000)]
    note('is there', there() is not None)
"""
GROUPS = f"{HEAD}    held = [dist.new_group(), dist.group.WORLD]\n    held.append(held)\n    dist.barrier(held[0])\n"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(2, seconds=6.0) as made:
        yield made


def sums(world: World) -> list[float]:
    return [float(answer.observation.notes["sum"].values) for answer in world.run(Task(SUMS, ""))]


def alive(pids: list[int]) -> list[int]:
    """Those of some processes that are there, and no zombies."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, path in states.items() if path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"]


def test_all_ranks_answer_with_what_they_noted(world: World) -> None:
    assert sums(world) == [3.0, 3.0]


def test_many_programs_run_in_one_world(world: World) -> None:
    sums(world)
    started = world.started
    assert [sums(world) for _ in range(3)] == [[3.0, 3.0]] * 3
    assert world.started == started


def threads(world: World) -> list[int]:
    return [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in world._pids.values()]


def test_no_threads_of_a_programs_groups_are_left(world: World) -> None:
    world.run(Task(GROUPS, ""))
    before = threads(world)
    for _ in range(3):
        world.run(Task(GROUPS, ""))
    assert max(threads(world)) <= max(before) + 1  # one may still end; a group in a cycle would leave several


def test_no_threads_are_left_of_groups_that_torch_keeps(world: World) -> None:
    world.run(Task(CONTEXT, ""))
    before = threads(world)
    for _ in range(2 * PROGRAMS_A_CACHE):
        world.run(Task(CONTEXT, ""))
    assert max(threads(world)) < max(before) + 3 * (PROGRAMS_A_CACHE + 1)  # three threads a group, and one may still end


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not tell of threads")
def test_a_world_whose_programs_leave_many_groups_behind_is_replaced(world: World) -> None:
    sums(world)
    pids, started = [*world._pids.values()], world.started
    lines = "    torch.kept_here = [dist.new_group() for _ in range(30)]\n"
    assert [one.observation.error for one in world.run(Task(HEAD + lines, ""))] == [None, None]
    assert alive(pids) == []
    assert sums(world) == [3.0, 3.0]
    assert world.started == started + 1


def test_a_cycle_of_a_program_is_not_collected_while_it_runs(world: World) -> None:
    assert [answer.observation.notes["is there"] for answer in world.run(Task(CYCLE, ""))] == [True, True]


def test_an_import_that_takes_long_is_no_program_that_hangs(world: World, tmp_path: Path) -> None:
    (tmp_path / "imported_slowly.py").write_text("import time\ntime.sleep(8)\nfrom impls.nested import checkpoint\n")
    with world.limited(4.0, 0.2):  # and GRACE, in which all ranks must have answered
        world.run(Task(f"import sys\n{HEAD}    sys.path.insert(0, {str(tmp_path)!r})\n", ""))
        (answer, _) = world.run(Task(EXCHANGES, "imported_slowly:checkpoint"))
    assert answer.observation.error is None
    assert answer.observation.calls.total() == 2


def test_an_import_that_fails_is_no_verdict(world: World) -> None:
    with pytest.raises(Unjudged, match=r"a rank could not import what is judged\n(.|\n)*no_such_module"):
        world.run(Task(SUMS, "no_such_module:checkpoint"))
    assert sums(world) == [3.0, 3.0]


def test_a_rank_that_waits_for_one_that_raised_comes_back(world: World) -> None:
    first, second = world.run(Task(RAISES, ""))
    assert isinstance(second.observation.error, KeyError)
    assert isinstance(first.observation.error, RuntimeError)
    assert first.raised > second.raised > 0
    assert sums(world) == [3.0, 3.0]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell of threads")
@pytest.mark.parametrize("program", [RAISES, WAITS])
def test_a_rank_that_certainly_waits_for_one_that_has_ended_comes_back_at_once(world: World, program: str) -> None:
    sums(world)
    begun = time.monotonic()
    with world.limited(120.0, 90.0):
        answers = world.run(Task(program, ""))
    assert any(isinstance(one.observation.error, RuntimeError) for one in answers)
    assert time.monotonic() - begun < 60


def test_a_rank_that_the_others_leave_behind_comes_back(world: World) -> None:
    first, second = world.run(Task(WAITS, ""))
    assert first.observation.error is None
    assert isinstance(second.observation.error, RuntimeError)


def test_a_rank_that_stays_behind_is_told_with_its_stack(world: World) -> None:
    sums(world)
    pids, started = [*world._pids.values()], world.started
    with pytest.raises(WorldEnded, match=r"no answer in 6 seconds from rank 1 of 2\nrank 1:\n  <program>:\d+ in run") as ended:
        world.run(Task(SLEEPS, ""))
    assert ended.value.hangs
    assert alive(pids) == []
    assert sums(world) == [3.0, 3.0]
    assert world.started == started + 1


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell of threads")
@pytest.mark.parametrize(("lines", "waits"), [(DEADLOCK, True), (SPINS, False), (GOES_ON, False)])
def test_it_is_told_whether_ranks_that_hang_wait_for_each_other(lines: str, waits: bool) -> None:
    with World(2, seconds=6.0) as other:
        sums(other)
        with pytest.raises(WorldEnded) as ended:
            other.run(Task(HEAD + lines, ""))
        assert ended.value.hangs
        assert other.waited == waits
        sums(other)
        assert not other.waited


def test_a_rank_that_dies_is_told_with_its_status(world: World) -> None:
    sums(world)
    pids = [*world._pids.values()]
    with pytest.raises(WorldEnded, match="rank 1 ended with status 3") as ended:
        world.run(Task(DIES, ""))
    assert not ended.value.hangs
    assert alive(pids) == []
    assert sums(world) == [3.0, 3.0]


def test_collectives_are_counted_by_their_time_and_region_and_waiting_is_none(world: World) -> None:
    answer = world.run(Task(EXCHANGES, "nested", counts=True))[0]
    found = {place: answer.issued(place, region=("region",)).total() for place in ("forward", "recomputation", "backward")}
    assert found["forward"] == found["recomputation"] > 0
    assert found["backward"] == answer.issued("backward").total() > 0  # of the nodes that the region made
    assert answer.regions == [("region",)]
    assert not {name for name in answer.issued() if "wait" in name or "wrap" in name}


def test_two_worlds_do_not_meet(world: World) -> None:
    with World(2) as other:
        assert sums(world) == sums(other) == [3.0, 3.0]


def test_a_fault_of_the_suite_is_no_verdict(world: World) -> None:
    with pytest.raises(RuntimeError, match="a rank could not run a program"):
        world.run(Task("this is no program", ""))


@pytest.mark.parametrize("size", [0, -1])
def test_a_world_has_a_rank_at_least(size: int) -> None:
    with pytest.raises(ValueError, match=f"the number of ranks is {size}; it must be at least 1"):
        World(size)


def children(pid: int) -> list[int]:
    """The processes that a process started, and those that these did; of one that ends meanwhile, as many as were read."""
    found = list[int]()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found += [child, *children(child)]
    return found


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def listening() -> dict[str, int]:
    """The TCP ports on which somebody listens, by the numbers of their sockets."""
    lines = [line.split() for one in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{one}").read_text().splitlines()[1:]]
    return {words[9]: int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A"}


def descriptors(pid: int) -> list[Path]:
    """The open files of a process; none once it has ended."""
    with suppress(OSError):
        return list(Path(f"/proc/{pid}/fd").glob("*"))
    return []


def ports(pids: list[int]) -> set[int]:
    """The ports on which processes listen."""
    there, found = listening(), set[int]()
    for path in (path for pid in pids for path in descriptors(pid)):
        with suppress(OSError):  # it was closed meanwhile
            number = str(path.readlink()).removeprefix("socket:[").rstrip("]")
            found |= {there[number]} if number in there else set()
    return found


def is_running(pid: int) -> bool:
    """Whether a process is a rank that runs a program: its group has threads of gloo."""
    with suppress(OSError):
        return any(path.read_text().strip() == POLLING for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not tell of processes")
@pytest.mark.parametrize(
    ("sent", "status"), [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=str
)
def test_no_process_and_no_port_is_left_behind(sent: signal.Signals | None, status: int, tmp_path: Path) -> None:
    words = ["-k", "ddp_trains"] if sent is None else []
    results = ["--impl", "nested", "--profile", "quick", "--results", f"{tmp_path}/rows"]
    command = [sys.executable, "-m", "reprise", "judge", "--ranks", "2", *results, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    quiet = subprocess.DEVNULL
    # A shell has its background jobs ignore SIGINT, and what they start inherits that.
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet, preexec_fn=_heed_interrupts) as judge:
        started, taken = list[int](), set[int]()
        end = time.monotonic() + 240
        while sum(map(is_running, started)) < 2 and judge.poll() is None and time.monotonic() < end:
            started = children(judge.pid)  # the launcher and two ranks
            taken |= ports(started)
            time.sleep(0.02)
        assert len(started) >= 3
        assert taken
        if sent is not None:
            assert sum(map(is_running, started)) >= 2  # in the middle of a program, or right after one
            judge.send_signal(sent)
        assert judge.wait(60) == status
    end = time.monotonic() + 60
    while (alive(started) or taken & {*listening().values()}) and time.monotonic() < end:
        time.sleep(0.2)
    assert alive(started) == []
    assert taken & {*listening().values()} == set()
    if sent is not signal.SIGKILL:
        assert list(tmp_path.glob("reprise-ranks-*")) == []
