"""Subcommands that judge implementations by the laws."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from reprise.results import failed, require_one
from reprise.values import (
    Database,
    Device,
    FirstSeed,
    Flag,
    Memory,
    Names,
    NewResults,
    Positive,
    Profile,
    Ranks,
    Seed,
    Text,
    Workers,
    option,
)

Setting = Literal["native", "intel", "sse4", "avx2", "two-threads", "no-onednn"]  # of conformance.runs.portability
STATUSES = {2: 130, 4: 2, 5: 2}  # pytest's for an interrupt, for invalid options, and for no law selected
ALL: tuple[Setting, ...] = ("native", "intel", "sse4", "avx2", "two-threads", "no-onednn")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is judged, and how; as in ``python -m pytest conformance``.

    Attributes:
        impl: Judge this one: a built-in or installed name, or pkg.mod:attr; repeatable. All built-in ones by default.
        peers: Judge the installed peers instead of the built-in implementations.
        like: Implementation by whose claims a callable without a declaration is judged; nested by default.
        device: Device type to run on: cpu, cuda, ...
        seed: Seed for drawing programs.
        in_process: Judge code that is not built in within the suite's own process.
        memory_limit: GiB that code that is not built in may use, on Linux; 4 by default.
        k: Only laws and implementations whose names match, as in pytest.
        n: Number of worker processes, or 0 for none; one per core by default.
    """

    impl: Names = ()
    peers: Flag = False
    like: Text = None
    device: Device = "cpu"
    seed: Seed = 0
    in_process: Flag = False
    memory_limit: Memory = None
    k: Annotated[str | None, option("-k", metavar="EXPRESSION")] = None
    n: Workers = None

    def arguments(self) -> list[str]:
        """The arguments for pytest."""
        one = {"--like": self.like, "--memory-limit": self.memory_limit, "-k": self.k, "-n": self.n or _all_cores()}
        return [
            *(word for name in self.impl for word in ("--impl", name)),
            *(flag for flag, given in {"--peers": self.peers, "--in-process": self.in_process}.items() if given),
            *(word for name, value in one.items() if value is not None for word in (name, str(value))),
            *("--device", self.device, "--seed", str(self.seed)),
        ]


def _all_cores() -> str | None:
    return "auto" if importlib.util.find_spec("xdist") else None


def judge(
    *pytest: str,
    judged: Judged = Judged(),
    profile: Profile = "default",
    results: NewResults = None,
    ranks: Ranks = None,
) -> int:
    """Judge implementations by the laws.

    Prints the first failures with their scripts, and a summary; add -- -v for all verdicts.
    The status is 0 if and only if every verdict is as declared.

    Args:
        pytest: Further pytest options, after --.
        judged: What is judged, and how.
        profile: How many programs to try for each law.
        results: Write the results to this file, new or from an earlier run.
        ranks: Judge by the laws that take several processes instead, in a world of this many ranks on this machine.
    """
    if ranks is not None:
        return _judge_ranks(ranks, pytest, judged, profile, results)
    if pytest and not pytest[0].startswith("-"):
        raise InvalidOption(f"{pytest[0]!r} is no option; accepted are --impl {pytest[0]}, and options of pytest after --")
    told = ["--profile", profile, *judged.arguments(), *(["--results", str(results)] if results else [])]
    status = run_pytest([*told, *pytest])
    return STATUSES.get(status, status)


def _judge_ranks(ranks: int, pytest: Sequence[str], judged: Judged, profile: str, results: Path | None) -> int:
    from conformance.ranked_runs import command

    given: dict[str, object] = {"-n": judged.n, "--memory-limit": judged.memory_limit}
    given |= {"--in-process": judged.in_process, "further options": pytest}
    if refused := [name for name, value in given.items() if value]:
        raise InvalidOption(f"{refused[0]} cannot be given with --ranks: ranks are processes of their own")
    choice = command.Choice(judged.impl, judged.peers, judged.like, judged.k, judged.device)
    return command.judge(choice, ranks=ranks, profile=profile, seed=judged.seed, results=results, say=_say)


def run_pytest(arguments: Sequence[str]) -> int:
    """Run ``python -m pytest conformance`` with these options in a process of its own. Returns its exit status."""
    with subprocess.Popen([sys.executable, "-m", "pytest", str(ROOT / "conformance"), *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal interrupts pytest, too, which then writes what was judged
                continue


def portability(
    *pytest: str,
    settings: Annotated[tuple[Setting, ...], Parameter(consume_multiple=True, negative="", show_default=False)] = ALL,
    judged: Judged = Judged(),
    profile: Profile = "quick",
) -> int:
    """Check that no verdict depends on the processor's kernels.

    Judges once with each setting.
    The status is 0 if all settings give the same verdicts, 1 if a verdict differs.

    Args:
        pytest: Further pytest options, after --.
        settings: The settings to compare, two or more; all by default.
        judged: What is judged, and how.
        profile: How many programs to try for each law.
    """
    from conformance.runs.portability import compare

    try:
        return int(not compare(settings, ["--profile", profile, *judged.arguments(), *pytest], _say))
    except (RuntimeError, subprocess.CalledProcessError) as error:  # nothing is compared
        raise InvalidOption(str(error)) from error


def soak(
    *,
    minutes: Positive = 20.0,
    n: Workers = None,
    impl: Names = (),
    like: Text = None,
    device: Device = "cpu",
    seed: FirstSeed = None,
    profile: Profile = "round",
    findings: Database = None,
) -> int:
    """Judge with fresh seeds for some time, and keep what is found.

    The status is 1 while a finding is open, or if a law's own code failed.

    Args:
        minutes: Start no law after this time; shrinking what was found may take as long again.
        n: Number of worker processes, or 0 for none; one per core by default.
        impl: Judge this one: a built-in or installed name, or pkg.mod:attr; repeatable. All built-in ones by default.
        like: Implementation by whose claims a callable without a declaration is judged; nested by default.
        device: Device type to run on: cpu, cuda, ...
        seed: Seed of the first round; each round adds 1. Random by default.
        profile: How many programs a round tries for each law.
        findings: File of findings; results/soak/findings.jsonl by default.
    """
    from conformance.reproducers.findings import DATABASE
    from conformance.soak import command

    workers = command.WORKERS if n in (None, "auto", "logical") else int(n)
    path = findings or DATABASE
    nothing_open = command.soak(
        minutes=minutes, workers=workers, impl=impl, like=like, device=device, seed=seed, profile=profile, path=path
    )
    return int(not nothing_open)


def operators() -> None:
    """Count the operators of PyTorch's test database that laws judge."""
    from conformance.programs.operator_database import counted

    print(counted())


def features(*, profile: Profile = "quick", seed: Seed = 0, write: Flag = False, check: Flag = False) -> int:
    """Count features of drawn programs, and pairs of them, by law.

    Programs are drawn as for a run, and neither run nor judged.

    Args:
        profile: How many programs to draw for each law.
        seed: Seed for drawing programs.
        write: Write the tables of profile quick and seed 0 to docs/features.md.
        check: Fail if docs/features.md does not match what is drawn.
    """
    from conformance.coverage import features_page, score_page

    require_one({"--write": write, "--check": check}, or_none=True)
    if (write or check) and (profile, seed) != (features_page.PROFILE, features_page.SEED):
        raise InvalidOption("--write and --check are about profile quick and seed 0; leave out --profile and --seed")
    if write:
        features_page.write(ROOT)
        score_page.write(ROOT)
    elif not check:
        print(features_page.measured(profile, seed))
    return failed([*features_page.check(ROOT), *score_page.check(ROOT)]) if check else 0


def cases(*, ranks: Ranks = None, write: Flag = False) -> None:
    """Show how many programs of each law quick and default runs try.

    There are as many as find again the rarest fault that the law has found so far, as far as the profile allows. The other
    profiles do not ask for known faults.

    Args:
        ranks: Show it of the laws that take several processes instead; their faults are measured in a world of this many ranks.
        write: Measure first how often each fault shows, which takes minutes: mutants, published verdicts, declared limits.
    """
    from conformance.coverage import found_faults, ranked_faults

    if ranks is not None:
        if write:
            ranked_faults.write(ranks, _say)
        print(*ranked_faults.table(), sep="\n")
        return
    if write:
        found_faults.write(_say)
    print(*found_faults.table(), sep="\n")


def _say(line: str) -> None:
    print(line, flush=True)


COMMANDS: Mapping[Callable[..., Any], str] = {
    judge: "judge --impl mypkg.mod:checkpoint --like nested --profile quick",
    soak: "soak --minutes 20 --impl nested",
    portability: 'portability --settings native sse4 -k "test_gradients"',
    operators: "operators",
    features: "features --profile default --seed 1",
    cases: "cases",
}
