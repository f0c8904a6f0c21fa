"""Implementations that end, hang or swell their process: each is a verdict, and the later laws are judged."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import impls
from conformance.isolation import sandbox
from conformance.isolation.sandbox import Contained
from conformance.isolation.sandbox_worker import Setting
from conformance.isolation.smoke_check import Smoke
from conformance.judging.explorer import Explorer
from conformance.judging.law import LAWS, Profile
from conformance.reproducers.replay import standalone
from conformance.reproducers.script import binding_in
from tests.support.script_runner import replayed

FAMILIES = ("structure", "errors", "gradients", "changes")
for family in FAMILIES:
    importlib.import_module(f"conformance.laws.test_{family}")

NESTED = impls.get("nested")
PROFILE = Profile(12, 20, False)
MODULE = """
import os, signal, stat, sys, threading, time
import torch
from impls import Implementation
from impls.nested import checkpoint as right

def on_keywords(act):
    def checkpoint(function, *args, **kwargs):
        if kwargs:
            act()
        return right(function, *args, **kwargs)
    return checkpoint

def hang_in_c():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)

def grow(held=[]):
    while True:
        held.append(torch.ones(2**24))

def leave_behind():
    os.fork() or time.sleep(600)
    os._exit(7)

def spin():
    while True:
        pass

def threads():
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

def interrupt():
    raise KeyboardInterrupt

def scribble(rubbish=b"\\0\\0\\0\\5hello"):
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, rubbish)
        except OSError:
            pass

def open_all(held=[]):
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

aborts = on_keywords(os.abort)
interrupts = on_keywords(interrupt)
scribbles = on_keywords(scribble)
promises = on_keywords(lambda: scribble(b"\\0\\x7f\\0\\0a message of 8 MB begins"))
opens = on_keywords(open_all)
sinks = on_keywords(lambda: sys.setrecursionlimit(60))
copies = on_keywords(os.fork)
leaves = on_keywords(lambda: os._exit(0))
forks = on_keywords(leave_behind)
exits = on_keywords(lambda: sys.exit(5))
hangs = on_keywords(hang_in_c)
spins = on_keywords(spin)
grows = on_keywords(grow)
asks = on_keywords(lambda: torch.ones(2**50))
deaf = on_keywords(lambda: os.closerange(3, 256))
silent = on_keywords(lambda: os.closerange(1, 3))
busy = on_keywords(threads)
modest = Implementation("modest", aborts, capabilities=frozenset({"recomputes"}))

def always(function, *args, **kwargs):
    os.abort()

def doubles_then_aborts(function, *args, calls=[], **kwargs):
    calls.append(function)
    if len(calls) > 8:
        os.abort()
    return torch.utils._pytree.tree_map(lambda x: x * 2, right(function, *args, **kwargs))
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the process of something in the module above."""
    (tmp_path / "endings.py").write_text(MODULE)
    (tmp_path / "ending.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sandbox, "GRACE", 1)
    monkeypatch.setattr(sandbox, "WHOLE", 3)
    made: list[Contained] = []

    def make(name: str) -> Contained:
        seconds = 2 if name in ("endings:hangs", "endings:spins") else 20
        made.append(Contained(Setting(name, "checkpoint", "cpu", PROFILE, 0, memory=0.5, seconds=seconds)))
        return made[-1]

    yield make
    for one in made:
        one.close()


ENDINGS = [
    ("aborts", "crashes", "the process was ended by SIGABRT, in checkpoint ("),
    ("leaves", "crashes", "the process ended with status 0"),
    ("forks", "crashes", "the process ended with status 7"),
    ("exits", "crashes", "SystemExit: 5"),
    ("interrupts", "crashes", "KeyboardInterrupt: (no message)"),
    ("scribbles", "crashes", "the process wrote into its connection to the suite"),
    ("promises", "crashes", "the process wrote into its connection to the suite"),
    ("hangs", "hangs", "the process gave no answer in 2 seconds, nor to the alarm, in hang_in_c ("),
    ("spins", "hangs", "no answer in 2 seconds"),
    ("grows", "crashes", "the process took more than 0.5 GiB of memory"),
    ("asks", "crashes", "RuntimeError: "),
    ("deaf", "crashes", "the process closed its connection to the suite"),
]


@pytest.mark.parametrize(("name", "verdict", "detail"), ENDINGS, ids=[name for name, _, _ in ENDINGS])
def test_an_ending_is_a_verdict_and_the_next_law_is_judged(name: str, verdict: str, detail: str, process: Any) -> None:
    one = process(f"endings:{name}")
    row = one.hold(LAWS["keyword_arguments"], NESTED)
    assert (row["verdict"], row["detail"][: len(detail)], row["as_declared"]) == (verdict, detail, False)
    assert row["counts"][verdict] == row["cases"]
    assert [found["law"] for found in standalone([row])] == ["keyword_arguments"]
    after = one.hold(LAWS["unused_outputs"], NESTED)
    assert (after["verdict"], after["as_declared"]) == ("agrees", True)


SHOWN = {"aborts": "", "leaves": "", "exits": "", "hangs": "hang_in_c", "spins": "spin"}  # where those are that do not end


def test_the_script_of_an_ending_has_status_1(process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: process(f"endings:{name}").hold(LAWS["keyword_arguments"], NESTED)["program"] for name in SHOWN}
    assert {name: "dump_traceback_later(30, exit=True)" in text for name, text in texts.items()} == {
        name: bool(at) for name, at in SHOWN.items()
    }
    assert all("expected" in text for text in texts.values())
    broken = [text.replace("traceback_later(30", "traceback_later(3") for text in texts.values()]
    mended = [text.replace(binding_in(text), "from impls.nested import checkpoint") for text in broken]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = replayed([*broken, *mended])
    assert [status for status, _ in found] == [1] * len(broken) + [0] * len(mended), found
    for (name, at), (_, output) in zip(SHOWN.items(), found, strict=False):
        assert at in output
        assert not at or f"if endings:{name} does not, its stack is shown below" in output


@pytest.mark.parametrize("name", ["silent", "busy", "copies"])
def test_closed_streams_threads_and_copies_change_nothing(name: str, process: Any) -> None:
    assert process(f"endings:{name}").hold(LAWS["keyword_arguments"], NESTED)["as_declared"]


@pytest.mark.parametrize("name", ["opens", "sinks"])
def test_a_process_in_which_nothing_works_any_more_is_not_the_next_laws(name: str, process: Any) -> None:
    one = process(f"endings:{name}")
    row = one.hold(LAWS["keyword_arguments"], NESTED)
    assert not row["as_declared"]
    after = one.hold(LAWS["unused_outputs"], NESTED)
    assert after["as_declared"], after["detail"]


def test_an_interrupt_is_no_end_of_a_smoke_check(process: Any) -> None:
    assert "raised KeyboardInterrupt" in process("endings:interrupts").smoke().warnings[0]


def test_a_declared_crash_is_as_declared(process: Any) -> None:
    one = process("endings:modest")
    known = impls.Known("crashes", "it aborts", "here")
    claims = impls.Implementation("modest", print, capabilities=NESTED.capabilities, known={"keyword_arguments": known})
    assert one.implementation.declared
    assert one.hold(LAWS["keyword_arguments"], claims)["as_declared"]
    assert not one.hold(LAWS["keyword_arguments"], NESTED)["as_declared"]


def test_a_divergence_seen_before_the_end_is_what_counts(process: Any) -> None:
    row = process("endings:doubles_then_aborts").hold(LAWS["unused_outputs"], NESTED)
    assert row["verdict"] == "diverges"
    assert "; in another case the process was ended by SIGABRT, in doubles_then_aborts (" in row["detail"]
    assert row["counts"]["crashes"] == 1
    assert row["cases"] == sum(row["counts"].values())


def test_a_death_on_what_all_must_do_is_a_fault_and_otherwise_a_warning(process: Any) -> None:
    found = process("endings:always").smoke()
    assert found.fault.startswith("endings:always cannot be judged: on the smallest programs of its kind the process was ended")
    assert process("endings:aborts").smoke().fault == ""
    assert "the process was ended by SIGABRT" in process("endings:aborts").smoke().warnings[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ending:checkpoint", "'ending:checkpoint': the process that was to load it ended with status 9"),
        ("endings:missing", "'endings' has no attribute 'missing'"),
        ("nobody:checkpoint", "importing 'nobody' failed"),
    ],
)
def test_what_cannot_be_loaded_says_so(name: str, said: str, process: Any) -> None:
    with pytest.raises(ValueError, match=said):
        _ = process(name).implementation


def test_a_fault_of_the_suite_is_no_verdict(process: Any) -> None:
    one = process("endings:busy")
    with pytest.raises(RuntimeError, match="KeyError: 'no such question'"):
        one._ask("no such question")


def test_the_record_is_there_and_what_it_judges_is_not(process: Any) -> None:
    record = process("endings:modest").implementation
    assert (record.name, record.declared, record.capabilities) == ("modest", True, frozenset({"recomputes"}))
    with pytest.raises(RuntimeError, match="in a process of its own, and is not in this one"):
        record.checkpoint(print)


@pytest.mark.parametrize("name", ["impls.nested:checkpoint", "impls.legacy:checkpoint"])
def test_rows_are_the_same_as_in_this_process(name: str, process: Any) -> None:
    chosen = ["keyword_arguments", "outputs_that_are_views", "all_claimed_features_combined", "weights_changed_before_backward"]
    here, there = Explorer("cpu", PROFILE, 0), process(name)
    for law in chosen:
        expected = here.hold(LAWS[law], impls.load(name), NESTED).row()
        assert {**there.hold(LAWS[law], NESTED), "seconds": 0} == {**expected, "seconds": 0}
    assert there.smoke() == Smoke() or name == "impls.legacy:checkpoint"
