"""The laws that take ranks: their registry, how much of them is tried, and the decorator that makes one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from conformance.distributed import laws
from conformance.distributed.case import RankedCase
from conformance.judging.law import Law, Profile, Programs

FAMILY = "distributed"
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "quick": Profile(3, 0, False, patience=40, certainty=0.9, least=2),
        "default": Profile(10, 15, True, patience=60, certainty=0.99, least=3),
        "soak": Profile(150, 150, True, patience=300),
    }
)


@dataclass(frozen=True)
class RankedLaw(Law):
    """A law of which a case runs on several ranks, ``ranks`` of them at least; a run with one rank leaves out what takes two.

    With ``counts``, collectives and storages are counted in each run.
    """

    counts: bool = False
    ranks: int = 1


LAWS: dict[str, RankedLaw] = {}  # those of the modules that were imported


def ranked_law(
    programs: Programs,
    *,
    needs: Iterable[str] = (),
    floor: int = 2,
    gradients: bool = True,
    recomputes: bool = True,
    effort: float = 1.0,
    counts: bool = False,
    ranks: int = 1,
    about: Iterable[str] = (),
    **options: Any,
) -> Callable[[Callable[[RankedCase], None]], Callable[[RankedCase], None]]:
    """Register a law. Its name is that of the function, its first docstring line the statement; see ``Law`` for the rest.

    ``programs`` may depend on those capabilities alone that ``DECIDE_PROGRAMS`` of ``conformance.distributed.explorer`` has.
    """

    def make(check: Callable[[RankedCase], None]) -> Callable[[RankedCase], None]:
        name = check.__name__.removeprefix("test_")
        if not check.__doc__:
            raise ValueError(f"law {name} has no statement: write a docstring")
        LAWS[name] = RankedLaw(
            name=name,
            family=FAMILY,
            statement=check.__doc__.splitlines()[0],
            check=check,  # type: ignore[arg-type]  # a case of its own, with ranks
            programs=programs,
            needs=frozenset(needs),
            floor=floor,
            gradients=gradients,
            recomputes=recomputes,
            effort=effort,
            counts=counts,
            ranks=ranks,
            options=options,
            about=frozenset(about),
        )
        return check

    return make


def all_laws() -> dict[str, RankedLaw]:
    """Every law that takes ranks, by its name."""
    for module in sorted(one.name for one in pkgutil.iter_modules(laws.__path__)):
        importlib.import_module(f"{laws.__name__}.{module}")
    return LAWS
