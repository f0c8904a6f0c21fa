"""What a law is, how much of one is tried, and where all laws are."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from hypothesis.strategies import SearchStrategy

from conformance.judging.judge import Case
from conformance.judging.refusals import expected_names
from conformance.programs.sums import Comparable
from impls import Implementation, Kind

Drawn = SearchStrategy[Any] | tuple[SearchStrategy[Any], ...]
Programs = Drawn | Callable[[Implementation], Drawn]


@dataclass(frozen=True)
class Profile:
    """How much is run: cases of a law, evaluations spent on shrinking, and whether declared limits are shrunk too.

    A declared limit that does not show is reported as gone after ``patience`` cases (a tenth of that for a refusal that is
    expected because a capability is missing). A program of at most ``small`` operations is not shrunk further. An
    ``exhaustive`` profile runs every program of a law that can enumerate them (``Law.every``).
    """

    cases: int
    shrinks: int
    shrink_declared: bool
    patience: int = 2000
    small: int = 0
    exhaustive: bool = False


PROFILES = {
    "quick": Profile(12, 150, False),
    "round": Profile(25, 400, False, patience=0),  # one of many with other seeds: a limit that does not show says nothing
    "default": Profile(60, 200, True),
    "long": Profile(300, 200, True),
    "soak": Profile(1000, 1000, True),
    "exhaustive": Profile(1000, 1000, True, exhaustive=True),
}


@dataclass(frozen=True)
class Law:
    """A property of checkpointing.

    - ``programs``: a strategy, or several that get the same share of the cases, and one each at least; or a function that
      makes them from an implementation's claims.
    - ``needs``: capabilities; an implementation that lacks one is expected to refuse.
    - ``floor``: the least number of cases that must prove something, or the law counts as not tested.
    - ``gradients``, ``recomputes``: what a case must show to prove something: a gradient that is not zero, a function that
      is called more often than under plain.
    - ``effort``: scales the profile's number of cases. ``options`` are passed to the implementation's checkpoint.
    - ``kind``: the kind of implementation that the law judges.
    - ``devices``, ``at_least``, ``packages``, ``compiler``: the device types on which it is judged (empty: all), how many
      devices of the type it takes, the packages besides torch that its programs import, and whether it takes one of C++.
    - ``every``: all programs that can be drawn for an implementation, if they can be counted.
    - ``effects``: by name, what an implementation that does not keep the law may declare to do instead, as checks.
    - ``about``: names that the message of a refusal may use, besides those of capabilities and options.

    Programs that nest are left out for an implementation that does not claim nesting, unless the law needs it.
    """

    name: str
    family: str
    statement: str
    check: Callable[[Case], None]
    programs: Programs
    needs: frozenset[str] = frozenset()
    floor: int = 5
    gradients: bool = True
    recomputes: bool = True
    effort: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "checkpoint"
    devices: frozenset[str] = frozenset()
    at_least: int = 1
    packages: tuple[str, ...] = ()
    every: Callable[[Implementation], Iterable[Comparable]] | None = None
    about: frozenset[str] = frozenset()
    compiler: bool = False
    effects: Mapping[str, Callable[[Case], None]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """By which names a refusal may call what it is about."""
        return expected_names(self.kind, self.needs, self.options, self.about)

    def lacks(self, device: str) -> str:
        """What is not here, of packages, or on this device for the law to be judged on it; "" if nothing."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            return f"the package {missing[0]}"
        if self.compiler and not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++", "cl"))):
            return "a compiler of C++"
        kind = device.partition(":")[0]
        if self.devices and kind not in self.devices:
            return f"a device of type {' or '.join(sorted(self.devices))}"
        there = 1 if self.at_least == 1 else torch.get_device_module(kind).device_count()
        return "" if there >= self.at_least else f"{self.at_least} devices of type {kind}, of which there is {there}"

    def may_nest(self, claims: Implementation) -> bool:
        """Whether programs that nest belong to the law, when an implementation that makes these claims is held to it."""
        return self.kind != "checkpoint" or "nesting" in self.needs | claims.capabilities

    def strategies(self, claims: Implementation) -> tuple[SearchStrategy[Any], ...]:
        """What the programs are drawn from when an implementation that makes these claims is held to the law."""
        drawn = self.programs(claims) if callable(self.programs) else self.programs
        return drawn if isinstance(drawn, tuple) else (drawn,)


LAWS: dict[str, Law] = {}  # those of the modules that were imported


def law(
    programs: Programs,
    *,
    needs: Iterable[str] = (),
    floor: int = 5,
    gradients: bool = True,
    recomputes: bool = True,
    effort: float = 1.0,
    family: str = "",
    kind: Kind = "checkpoint",
    devices: Iterable[str] = (),
    at_least: int = 1,
    packages: Iterable[str] = (),
    every: Callable[[Implementation], Iterable[Comparable]] | None = None,
    about: Iterable[str] = (),
    compiler: bool = False,
    effects: Mapping[str, Callable[[Case], None]] | None = None,
    **options: Any,
) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Make a test of a law. Its first docstring line is the statement, its module names the family unless ``family`` does.

    ``effort`` scales the number of cases; ``devices``, ``at_least``, ``packages`` and ``compiler`` say where it is judged;
    ``options`` are passed to the implementation's checkpoint. ``about`` is what a refusal may name besides them,
    ``effects`` what may be declared in the law's place.
    """

    def make(check: Callable[[Case], None]) -> Callable[..., None]:
        if not check.__doc__:
            raise ValueError(f"law {check.__name__} has no statement: write a docstring")
        name = check.__name__.removeprefix("test_")
        belongs = family or check.__module__.rsplit(".", 1)[-1].removeprefix("test_")
        statement = check.__doc__.splitlines()[0]
        made = Law(
            name=name,
            family=belongs,
            statement=statement,
            check=check,
            programs=programs,
            needs=frozenset(needs),
            floor=floor,
            gradients=gradients,
            recomputes=recomputes,
            effort=effort,
            options=options,
            kind=kind,
            devices=frozenset(devices),
            at_least=at_least,
            packages=tuple(packages),
            every=every,
            about=frozenset(about),
            compiler=compiler,
            effects=effects or {},
        )
        if name in LAWS and LAWS[name].family != belongs:
            raise ValueError(f"two laws are called {name}: in {LAWS[name].family} and in {belongs}")
        LAWS[name] = made

        def test(hold: Callable[[Law], None]) -> None:
            hold(made)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        cast(Any, test).law = made
        return test

    return make


def all_laws() -> dict[str, Law]:
    """Every law that there is, by its name."""
    for path in sorted((Path(__file__).parents[1] / "laws").glob("test_*.py")):
        importlib.import_module(f"conformance.laws.{path.stem}")
    return LAWS
