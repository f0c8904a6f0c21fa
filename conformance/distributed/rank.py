"""One rank of a world: ``torch.distributed.run`` starts it, and it runs the programs that the judge sends.

Each program has a process group of its own. A rank whose program raises leaves its group. A rank that waits for it then gets an
error, and both are ready for the next program.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import operator
import os
import pickle
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

import impls
from conformance.distributed.answer import BACKENDS, Answer, Task, sent
from conformance.distributed.collectives import LOOKS, Collectives, RegionStorages
from conformance.distributed.waiting import Waiting, is_crowded, processes
from conformance.judging.judge import SECONDS_PER_CASE, execute
from conformance.judging.references import REFERENCES

ADDRESS, KEY, TRACES = "REPRISE_JUDGE", "REPRISE_JUDGE_KEY", "REPRISE_TRACES"  # environment variables
# What takes long to import is imported before the first limit.
SLOW = ("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel")
PLAIN = ("", "plain")  # subjects of tasks about plain regions, which keep what they made until backward
PROGRAMS_A_CACHE = 10  # programs for which the caches are kept, without which programs with DTensors take twice as long
CACHES_OF_MESHES = (
    ("debug", "_clear_sharding_prop_cache"),
    ("_redistribute", "clear_redistribute_planner_cache"),
    # context_parallel puts functions back, and keeps those that it had in their place.
    ("experimental._context_parallel._attention", "_replaced_functions.clear"),
)
LOOK_SECONDS = 0.03  # after which a rank that has ended looks at those that have not
GROUP_SECONDS = 3600  # far above a task's limit: it is the judge that finds a rank that hangs


def caches_of_meshes() -> list[Callable[[], object]]:
    """What empties the caches in which torch keeps meshes: these hold groups, and so the threads of gloo, without end."""
    cached = [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]
    found: list[Callable[[], object]]
    found = [one.cache_clear for one in cached if (one.__module__ or "").startswith("torch.distributed.")]
    for module, name in CACHES_OF_MESHES:
        with suppress(ModuleNotFoundError, AttributeError):  # a release of torch without this cache
            found.append(operator.attrgetter(name)(importlib.import_module(f"torch.distributed.tensor.{module}")))
    return found


class _Text:
    """A program of which only the text was sent."""

    def __init__(self, source: str) -> None:
        self.source = source


def subject_of(task: Task) -> Any:
    """The checkpoint that a task names, with its options."""
    if not task.subject:
        return REFERENCES["checkpoint"]
    checkpoint = impls.find(task.subject, "checkpoint").checkpoint
    return functools.partial(checkpoint, **dict(task.options)) if task.options else checkpoint


def placed(subject: Any, device: str) -> Any:
    """A checkpoint whose regions make their tensors on a device, in recomputations on autograd's threads, too."""

    def region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def there(*args: Any, **kwargs: Any) -> Any:
            with torch.device(device):
                return function(*args, **kwargs)

        return subject(there, *args, **kwargs)

    return region


def observe(task: Task, rank: int) -> Answer:
    """Run a program in the present process group."""
    collectives = Collectives()
    kept = RegionStorages(LOOKS if task.subject else 0, keeps=task.subject in PLAIN)
    meters = (collectives, kept) if task.counts else ()
    share = min(1.0, SECONDS_PER_CASE / task.seconds)  # the judge may give a program longer than a case takes
    subject, place = subject_of(task), cast(AbstractContextManager[object], nullcontext())
    if task.device != "cpu":
        subject, place = placed(subject, task.device), torch.device(task.device)
    with place:
        seen = execute(_Text(task.source), subject, task.device, meters, share=share)
    raised = time.monotonic()
    seen.leaves = ()
    return Answer(rank, seen, raised if seen.error is not None else 0.0, tuple(collectives.found), kept.counts)


def _sent(answer: Answer) -> bytes:
    """An answer as bytes; an error that cannot be sent becomes a RuntimeError with its text."""
    if (error := answer.observation.error) is None:
        return sent(answer)
    try:
        pickle.loads(text := sent(answer))
    except Exception:  # noqa: BLE001 - an error may have any fault
        answer.observation.error = RuntimeError(f"{type(error).__name__}: {error}")
        text = sent(answer)
    return text


def _answered(task: Task, rank: int) -> bytes:
    """The answer to a task, or the text of an error in the suite."""
    try:
        return _sent(observe(task, rank))
    except Exception:  # noqa: BLE001 - whatever it is, the judge ends with it
        return pickle.dumps(traceback.format_exc())


def _imported(subject: str) -> bytes:
    """Import what tasks will be about. Returns the text of the error with which that fails, "" if it does not."""
    try:
        impls.find(subject, "checkpoint")
    except Exception:  # noqa: BLE001 - whatever it is, the judge ends with it
        return pickle.dumps(traceback.format_exc())
    return pickle.dumps("")


def _received(connection: Connection, tasks: queue.SimpleQueue[Task | str]) -> None:
    """Receive tasks as they come; the rank ends with the judge, whatever it is executing."""
    try:
        while True:
            tasks.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def wait_for_others(group: PrefixStore, size: int, seconds: float) -> None:
    """Wait until all ranks have ended, for so long at most, and not while those that have not ended wait themselves."""
    waiting, end, pids = Waiting(), time.monotonic() + seconds, dict[int, int]()
    while time.monotonic() < end:
        with suppress(dist.DistStoreError):
            group.wait([f"ended {one}" for one in range(size)], timedelta(seconds=min(LOOK_SECONDS, seconds)))
            return
        pids = pids or {one: int(group.get(f"ready {one}")) for one in range(size)}
        ended = [one for one in range(size) if group.check([f"ended {one}"])]
        if waiting.is_certain(processes(pids, ended)):
            return


def serve(connection: Connection, traces: Path, caches: Sequence[Callable[[], object]]) -> None:
    """Run what the judge sends until it is gone, and now and then empty the caches."""
    store, rank, size = next(rendezvous("env://"))
    tasks: queue.SimpleQueue[Task | str] = queue.SimpleQueue()  # a text is a name of what comes next, to be imported
    with (traces / f"{rank}.txt").open("w", encoding="utf-8") as trace:
        threading.Thread(target=_received, args=(connection, tasks), daemon=True).start()
        connection.send((rank, size, os.getpid()))
        for number in range(sys.maxsize):
            while isinstance(task := tasks.get(), str):
                connection.send_bytes(_imported(task))
            faulthandler.dump_traceback_later(task.seconds, file=trace)
            group = PrefixStore(f"program {number}", store)
            limit = timedelta(seconds=GROUP_SECONDS)
            if task.device != "cpu":
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group(BACKENDS[task.device], store=group, rank=rank, world_size=size, timeout=limit)
            group.set(f"ready {rank}", str(os.getpid()))  # one that leaves while others still connect would end their ranks
            group.wait([f"ready {one}" for one in range(size)])
            gc.disable()  # a lifetime that needs the collector is a fault that must show, and not by chance
            answer = _answered(task, rank)
            group.set(f"ended {rank}", "")
            wait_for_others(group, size, task.grace)  # those that wait for this one come back when it leaves
            dist.destroy_process_group()
            is_due = number % PROGRAMS_A_CACHE == 0 or is_crowded(os.getpid())
            for clear in caches if is_due else ():
                clear()
            gc.collect()  # a program's groups are in cycles, and each has threads of gloo that would go on
            if is_due:
                gc.freeze()  # modules that were imported since, and what programs left for good
            faulthandler.cancel_dump_traceback_later()
            connection.send_bytes(answer)


def main() -> None:
    """Run as the rank that the environment names."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in SLOW:
        importlib.import_module(name)
    caches = caches_of_meshes()
    gc.freeze()  # so that the collection after each program need not look at all of torch
    address = os.environ[ADDRESS]
    connection = Client(address, authkey=bytes.fromhex(os.environ[KEY]))
    serve(connection, Path(os.environ[TRACES]), caches)


if __name__ == "__main__":
    main()
