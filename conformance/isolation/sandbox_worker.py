"""The side of the sandbox process: it judges its implementation by laws, and reports what it is about to run.

The other side is :mod:`conformance.isolation.sandbox`.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import resource
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import impls
from conformance.isolation import cpu_settings
from conformance.isolation.shared_programs import unpack
from conformance.isolation.smoke_check import MORE, PROBES, Smoke, probed
from conformance.judging import judge
from conformance.judging.explorer import Explorer
from conformance.judging.judge import Outcome
from conformance.judging.law import LAWS, Law, Profile
from conformance.judging.result import Result
from conformance.judging.verdicts import Measured, Verdict
from conformance.programs.sums import Comparable
from conformance.simulated_device.device import second
from impls import Implementation, Kind

CUT_OFF = 83  # the status of a process that has lost its connection


@dataclass(frozen=True)
class Setting:
    """What a process judges, and how. ``memory`` is in GiB beyond what the process has when a law begins."""

    name: str
    kind: Kind
    device: str
    profile: Profile
    seed: int
    memory: float = 4.0
    seconds: int = judge.SECONDS_PER_CASE


class Telling(Explorer):
    """Sends, before each program, the row to be written if the process dies of it."""

    def __init__(self, setting: Setting, tell: Any) -> None:
        super().__init__(setting.device, setting.profile, setting.seed)
        self.tell, self.shrinking = tell, False
        self.claims: Any = None

    def hold(self, law: Law, implementation: Implementation, claims: Implementation) -> Result:
        self.claims, self.shrinking = claims, False
        return super().hold(law, implementation, claims)

    def judge(self, law: Law, program: Comparable, implementation: Implementation) -> Outcome:
        if not self.shrinking:
            self._will(law, implementation, Outcome(program, Verdict.CRASHES, measured=Measured("ends")))
        return super().judge(law, program, implementation)

    def shrink(self, law: Law, implementation: Implementation, claims: Implementation, witness: Outcome) -> Outcome:
        self._will(law, implementation, None)
        self.shrinking = True
        return super().shrink(law, implementation, claims, witness)

    def _will(self, law: Law, implementation: Implementation, dying: Outcome | None) -> None:
        worse = any(outcome.verdict is Verdict.DIVERGES for outcome in self.found)
        outcomes = self.found if dying is None or worse else [*self.found, dying]
        shown = dying if dying and not worse else None
        row = self.result(law, implementation, self.claims, outcomes, shown).row()
        self.tell("will", "shrinking" if dying is None else "diverged" if worse else "dying", row)


def work(connection: Connection, setting: Setting, traces: str) -> None:
    """Run the process: load the implementation, then answer questions until the connection is closed."""

    def tell(*message: Any) -> None:
        try:
            connection.send(message)
        except OSError:  # raised here, it could be taken for an error of the implementation
            os._exit(CUT_OFF)

    os.setpgid(0, 0)  # so that what it starts ends with it
    os.register_at_fork(after_in_child=connection.close)  # a fork must not answer for this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(os.open(traces, os.O_WRONLY), all_threads=False)
    judge.SECONDS_PER_CASE, judge.INTERRUPTED = setting.seconds, False  # a terminal interrupts the suite's group alone
    judge.announce = functools.partial(tell, "limit")
    try:
        cpu_settings.hold()  # as in the process that asks
        try:
            implementation = impls.find(setting.name, setting.kind)
        except ValueError as error:
            tell("refused", str(error), isinstance(error.__cause__, ModuleNotFoundError))
            return
        if implementation.kind != "checkpoint":
            second(setting.device)
        explorer = Telling(setting, tell)
        tell("answer", _described(implementation))
        while True:
            question, *arguments = connection.recv()
            tell("answer", _QUESTIONS[question](explorer, implementation, *arguments))
    except EOFError:
        return
    except BaseException:  # noqa: BLE001 - told to the one who asked, who raises it
        tell("error", traceback.format_exc())


def _smoked(explorer: Telling, implementation: Implementation, more: bool) -> Smoke:
    return probed(implementation, explorer.device, MORE if more else PROBES)


def _held(
    explorer: Telling, implementation: Implementation, modules: list[str], law: str, drawn: str, *claims: Any
) -> dict[str, Any]:
    for module in modules:
        importlib.import_module(module)
    name, capabilities, known = claims
    claimed = replace(implementation, name=name, capabilities=capabilities, known=known)
    unpack(explorer, LAWS[law], claimed, Path(drawn).read_bytes())
    return explorer.hold(LAWS[law], implementation, claimed).row()


_QUESTIONS: dict[str, Any] = {"smoke": _smoked, "hold": _held}


def _described(implementation: Implementation) -> dict[str, Any]:
    """All fields of a record but what it judges, which stays in this process."""
    names = ("name", "summary", "source", "capabilities", "declared", "kind", "binding", "share")
    return {**{name: getattr(implementation, name) for name in names}, "known": dict(implementation.known)}
