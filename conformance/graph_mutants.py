"""Graph tools with one fault each: ``impls.graph`` with one place of its text replaced.

A mutant names the law that must catch it, and the place that it changes must occur exactly once in the text, so that a
mutant can never silently become the correct implementation.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import impls
import impls.graph
from impls import Implementation

# The modules that impls.graph consists of, each after those that it imports.
PARTS = ("memory", "replicas", "streams", "hooks", "host", "edges", "executed", "gradients", "mutation")


@dataclass(frozen=True)
class GraphMutant:
    """One fault: in ``part``, ``text`` is replaced by ``fault``; ``law``, which is one of ``family``, catches it.

    ``profile`` names how many cases the law needs for that. Raises ValueError when a field is empty and, once the
    implementation is asked for, when ``part`` is none of the graph's or ``text`` does not occur in it exactly once.
    """

    name: str
    family: str
    law: str
    part: str
    text: str
    fault: str
    profile: str = "quick"

    def __post_init__(self) -> None:
        for field in ("name", "family", "law", "text"):
            if not getattr(self, field):
                raise ValueError(f"mutant {self.name!r}: {field} is empty; it must name what its name says")
        if self.part not in PARTS:
            raise ValueError(f"mutant {self.name!r}: part is {self.part!r}; it must be one of {', '.join(PARTS)}")

    @functools.cached_property
    def implementation(self) -> Implementation:
        """The faulty implementation, which claims all that graph claims."""
        package = f"reprise_graph_mutant_{self.name.replace('-', '_')}"
        root = ModuleType(package)
        root.__path__ = []
        sys.modules[package] = root
        made = {}
        for part in PARTS:
            module = ModuleType(f"{package}.{part}")
            sys.modules[module.__name__] = module
            setattr(root, part, module)
            exec(compile(self.source(part, package), f"<{self.name}: {part}>", "exec"), module.__dict__)
            made.update(vars(module))
        graph = impls.get("graph")
        return Implementation(
            self.name,
            kind="graph",
            provides=SimpleNamespace(**{name: made[name] for name in impls.graph.__all__}),
            summary=f"graph, but: {self.fault}",
            source="conformance.graph_mutants",
            capabilities=graph.capabilities,
            known=graph.known,
        )

    def source(self, part: str, package: str) -> str:
        text = (Path(impls.graph.__file__).parent / f"{part}.py").read_text()
        if part == self.part:
            times = text.count(self.text)
            if times != 1:
                raise ValueError(f"mutant {self.name}: {self.text!r} occurs {times} times in {part}, not once")
            text = text.replace(self.text, self.fault)
        return text.replace("from impls.graph.", f"from {package}.")
