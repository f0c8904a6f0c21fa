"""What a run judges: each chosen implementation, by whose claims, and in which process."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import impls
from conformance.isolation.sandbox import Contained
from conformance.isolation.sandbox_worker import Setting
from conformance.isolation.smoke_check import smoke
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, Profile, all_laws
from conformance.reports.proposed_declaration import Row, declaration, written
from conformance.reports.ranking import ROUNDED
from conformance.rows import torch_releases
from conformance.rows.option_values import implementation_hint
from conformance.rows.results_file import is_unexpected, is_untested
from conformance.runs.interrupts import start_fork_server
from conformance.simulated_device.device import second
from impls import Implementation
from impls.implementation import OPTIONAL_NAMES

EXACT = "exact-sums"
FAILS = 9  # the status of the process that reports where an import fails
_IMPORT = f"""
import importlib, sys, traceback
try:
    importlib.import_module(sys.argv[1])
except Exception as error:
    if f"{{sys.argv[1]}}.".startswith(f"{{getattr(error, 'name', None)}}."):
        raise
    frame = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<")][-1]
    print(f" (at {{frame.filename}}, line {{frame.lineno}})")
    sys.exit({FAILS})
"""
DEFAULT = "nested"  # by its claims, implementations without a declaration are judged
SOUGHT = "; modules are looked for in the directory that you are in, in PYTHONPATH, and where packages are installed"


@dataclass(frozen=True)
class Subject:
    """An implementation, the one by whose claims it is judged, and the judge, in this process or another."""

    implementation: Implementation
    claims: Implementation
    setting: Setting
    judge: Explorer | Contained

    def hold(self, law: Law, claims: Implementation | None = None) -> Row:
        """The row of a law."""
        claims = claims or self.claims
        if isinstance(self.judge, Contained):
            return self.judge.hold(law, claims)
        return self.judge.hold(law, self.implementation, claims).row()

    def hold_apart_from_rounding(self, law: Law) -> Row:
        """The row of a law, which says if it diverges only because sums are taken in another order than plain's.

        An unexpected divergence is judged again by claims without plain's order of sums. If it still diverges, the row gets the
        detail and program of that divergence, which rounding does not explain. The verdict stays.
        """
        row = self.hold(law)
        if row["verdict"] != "diverges" or not is_unexpected(row) or EXACT not in self.claims.capabilities:
            return row
        again = self.hold(law, replace(self.claims, capabilities=self.claims.capabilities - {EXACT}))
        if again["verdict"] == "diverges":
            return {**row, **{key: again[key] for key in ("detail", "cause", "effect", "program")}}
        return {**row, ROUNDED: True} if again["verdict"] == "agrees" and not is_untested(again) else row

    def smoke(self) -> tuple[str, ...]:
        """Warnings about an implementation without a declaration. Raises ValueError if it cannot be judged."""
        if self.implementation.declared:
            return ()
        judge = self.judge
        found = judge.smoke() if isinstance(judge, Contained) else smoke(self.implementation, self.setting.device)
        if found.fault:
            raise ValueError(found.fault)
        return tuple(f"{self.implementation.name}: {warning}" for warning in found.warnings)

    def declaration(self, rows: Iterable[Row]) -> str:
        """A declaration that fits these rows, as Python, for an implementation that declares nothing."""
        setting = replace(self.setting, profile=replace(self.setting.profile, shrink_declared=False))
        again = replace(self, judge=Contained(setting) if isinstance(self.judge, Contained) else _explorer(setting))
        try:
            seen = f"torch {torch.__version__}"
            declared = declaration(rows, self.claims, again.hold, f"seen here, {seen}")
        finally:
            again.close()
        judged = self.setting.profile
        profile = next(name for name, one in PROFILES.items() if replace(one, shrink_declared=judged.shrink_declared) == judged)
        about = f"{seen}, device {setting.device}, profile {profile}, seed {setting.seed}; other runs may see more"
        return written(declared, self.setting.name, about, ".subject" if self.implementation.declared else "")

    def close(self) -> None:
        """End its process, if it has one."""
        if isinstance(self.judge, Contained):
            self.judge.close()


def _explorer(setting: Setting) -> Explorer:
    return Explorer(setting.device, setting.profile, setting.seed)


def _found(setting: Setting, apart: Contained | None) -> Implementation:
    """What an ``--impl`` names, loaded in the process that will judge it. Raises ValueError, with the option, if that fails."""
    try:
        return apart.implementation if apart else impls.find(setting.name, setting.kind)
    except ValueError as error:
        sought = SOUGHT if isinstance(error.__cause__, ModuleNotFoundError) else ""
        raise ValueError(f"--impl: {error}{sought}{_where(setting.name)}{implementation_hint(setting.name)}") from error


def _where(name: str) -> str:
    """The file and line at which importing an existing module fails; "" if it does not fail, or does not exist."""
    module, colon, _ = name.partition(":")
    if not colon or not all(part.isidentifier() for part in module.split(".")):
        return ""
    done = subprocess.run([sys.executable, "-c", _IMPORT, module], capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n").rpartition("\n")[2] if done.returncode == FAILS else ""


def refuse_peers_beside(impl: Sequence[str], peers: bool) -> None:
    """Raise ValueError if implementations are named and the peers are asked for as well."""
    if impl and peers:
        told = f"--peers has no effect beside --impl {impl[0]}"
        raise ValueError(f"{told}; give one of them: --impl NAME judges a peer, too, and --peers all that are installed")


def _refuse_contradictions(options: Any) -> None:
    """Raise ValueError for two options if one of them would have no effect."""
    refuse_peers_beside(options.impl, options.peers)
    if options.in_process and options.memory_limit is not None:
        told = f"--memory-limit is {options.memory_limit:g} and has no effect with --in-process"
        raise ValueError(f"{told}: it is for what is judged in a process of its own; give one of the two")


def _refuse_confusing(one: Implementation, setting: Setting) -> None:
    """Raise ValueError for known failures of laws that do not exist or judge another kind."""
    there = all_laws()
    for law in one.known:
        if law not in there:
            near = difflib.get_close_matches(law, there, 3, cutoff=0.4)
            told = f"; nearest of {len(there)} laws: {', '.join(near)}" if near else ""
            raise ValueError(f"--impl {setting.name}: known of {one.name!r} has law {law!r}, which does not exist{told}")
        if there[law].kind != one.kind:
            told = f"which judges kind {there[law].kind!r}; its own kind is {one.kind!r}"
            raise ValueError(f"--impl {setting.name}: known of {one.name!r} has law {law!r}, {told}")


def refuse_names(chosen: Iterable[tuple[str, Implementation]]) -> None:
    """Raise ValueError for a name that two implementations have, or one that is in use; each comes after what was given."""
    chosen = list(chosen)
    if twice := [name for name, times in Counter(one.name for _, one in chosen).items() if times > 1]:
        both = [given for given, one in chosen if one.name == twice[0]]
        raise ValueError(f"--impl: {' and '.join(both)} are both called {twice[0]!r}; give one of them another name")
    for given, one in chosen:
        taken = one.name in {*impls.names(), *impls.COMPILED, *impls.PEERS} and given != one.name
        if taken and not given.startswith("impls."):
            raise ValueError(f"--impl {given}: its name is {one.name!r}, which is taken; give it another")


def claims_of(one: Implementation, like: Implementation) -> Implementation:
    """The claims of ``like`` for a namespace that declares nothing, without those for optional names that it lacks."""
    if one.kind != "graph":
        return like
    return replace(like, capabilities=like.capabilities - (OPTIONAL_NAMES.keys() - one.capabilities))


def left_out(peers: bool, impl: Sequence[str], device: str) -> dict[str, str]:
    """What cannot be judged here, and why: among the peers if these are judged, else among what has to be built."""
    found = {}
    for name in () if peers or impl else impls.COMPILED:
        try:
            impls.find(name)
        except ValueError as error:
            found[name] = str(error)
    for name, peer in impls.PEERS.items() if peers else ():
        if not peer.runs_on(device):
            found[name] = f"it computes on {peer.device} alone"
            continue
        try:
            peer.load()
        except ValueError as error:
            found[name] = str(error)
    return found


def missing_when_published(left: Mapping[str, str], device: str) -> str:
    """Which of those left out a published run has to have; "" if none.

    What has to be built is written for the pinned release of torch: with another one it may be missing.
    """
    built = torch_releases.release(torch.__version__) == torch_releases.pinned()
    names = [name for name in left if (impls.PEERS[name].runs_on(device) if name in impls.PEERS else built)]
    return f"{' and '.join(names)} left out, as told above" if names else ""


def _profile(options: Any) -> Profile:
    """The profile of a run. Programs of declared limits are made smaller only if they are published, or laws are chosen.

    Otherwise nobody reads them, and for an implementation with many limits they take longer than the verdicts.
    """
    profile = PROFILES[options.profile]
    return replace(profile, shrink_declared=False) if options.impl and not options.keyword else profile


def subjects(options: Any, chosen: Iterable[str]) -> list[Subject]:
    """The implementations of these names, judged as the options say. Raises ValueError for one that is unknown, or twice."""
    _refuse_contradictions(options)
    if torch.device(options.device).index is not None:
        raise ValueError(f"--device is {options.device}; accepted is a device type, such as cpu or cuda, without a number")
    try:
        like = impls.get(options.like or DEFAULT)
    except ValueError as error:
        raise ValueError(f"--like: {error}{implementation_hint(options.like)}") from error
    profile, memory = _profile(options), options.memory_limit or Setting.memory
    names = list(dict.fromkeys(chosen))
    settings = [Setting(name, like.kind, options.device, profile, options.seed, memory) for name in names]
    shared = Explorer(options.device, profile, options.seed)  # programs and plain's runs of a law are made once for all of them
    apart = {one.name: Contained(one, shared) for one in settings if not (options.in_process or one.name in impls.names())}
    if options.memory_limit is not None and not apart:
        told = f"--memory-limit is {options.memory_limit:g} and has no effect"
        raise ValueError(f"{told}: it is for what is not built in: --impl NAME, --impl pkg.mod:attr or --peers")
    if apart:
        start_fork_server()
    found = [_found(one, apart.get(one.name)) for one in settings]
    refuse_names(zip(names, found, strict=True))
    for setting, one in zip(settings, found, strict=True):
        _refuse_confusing(one, setting)
    if options.like and all(one.declared for one in found):
        raise ValueError(
            f"--like is {options.like!r} and has no effect; it is for a callable that declares nothing: --impl pkg.mod:attr"
        )
    if any(one.kind != "checkpoint" for one in found):
        second(options.device)  # before the first backward, at which the engine makes its threads for devices
    return [
        Subject(
            one,
            one if one.declared else replace(claims_of(one, like), share=one.share),
            setting,
            apart.get(setting.name, shared),
        )
        for one, setting in zip(found, settings, strict=True)
    ]
