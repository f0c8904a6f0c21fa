"""What a law is, how many of its programs a profile tries, and the registry of all laws."""

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
    """How much is run: cases of a law, evaluations spent on shrinking, and whether programs of declared limits are shrunk, too.

    ``cases`` is the number for a law whose effort is 1. If ``certainty`` is below 1, it is the most, ``least`` is the least,
    and between them there are as many as show the rarest fault that the law has found with this probability; see
    :func:`conformance.judging.case_numbers.number_of_cases`.

    A declared limit that does not show is reported as gone after ``patience`` cases (a tenth of that for a refusal that is
    expected because a capability is missing). A program of at most ``small`` operations is not shrunk further. An
    ``exhaustive`` profile runs every program of laws that can enumerate them (``Law.every``).
    """

    cases: float
    shrinks: int
    shrink_declared: bool
    patience: int = 2000
    small: int = 0
    exhaustive: bool = False
    certainty: float = 1.0
    least: int = 0


PROFILES = {
    "quick": Profile(12, 150, False, certainty=0.99, least=4),
    "round": Profile(25, 400, False, patience=0),  # one round of many: a limit that does not show in it means nothing
    "default": Profile(60, 200, True, certainty=0.99, least=12),
    "long": Profile(300, 200, True),
    "soak": Profile(1000, 1000, True),
    "exhaustive": Profile(1000, 1000, True, exhaustive=True),
}


@dataclass(frozen=True)
class Law:
    """A property of checkpointing.

    - ``programs``: a strategy, or several that share the cases equally, with at least one each; or a function that makes them
      from an implementation's claims.
    - ``needs``: capabilities; an implementation that lacks one is expected to refuse.
    - ``floor``: how many of twelve cases, times ``effort``, must prove something; fewer cases lower it in proportion. If fewer
      prove something, the law counts as not tested.
    - ``gradients``, ``recomputes``: what a case must show to prove something: a gradient that is not zero, a function that
      is called more often than under plain.
    - ``effort``: scales the profile's number of cases. ``options`` are passed to the implementation's checkpoint.
    - ``kind``: the kind of implementation that the law judges.
    - ``devices``, ``at_least``, ``packages``, ``compiler``: the device types on which it is judged (empty: all), how many
      devices of the type it needs, the packages besides torch that its programs import, and whether it needs a C++ compiler.
    - ``every``: all programs that can be drawn for an implementation, if they can be counted.
    - ``effects``: checks, by name, of what an implementation that does not keep the law may declare to do instead.
    - ``about``: words by which a refusal may say what it is about, besides those of capabilities and options.

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
        """The words by which a refusal may say what it is about."""
        return expected_names(self.kind, self.needs, self.options, self.about)

    def lacks(self, device: str) -> str:
        """What is missing for judging by the law here, on this device; "" if nothing is."""
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
        """Whether an implementation with these claims is also judged by the law's programs that nest."""
        return self.kind != "checkpoint" or "nesting" in self.needs | claims.capabilities

    def strategies(self, claims: Implementation) -> tuple[SearchStrategy[Any], ...]:
        """The strategies that draw programs for an implementation with these claims."""
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
    """Make a law, and a test of it, from a check. Its first docstring line is the statement; its module names the family.

    ``family`` names another one. The other arguments are fields of :class:`Law`; ``options`` are passed to the implementation's
    checkpoint.
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
