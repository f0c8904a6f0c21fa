"""Regions that inductor compiles, which fuses operators and has kernels of its own: results are plain's up to rounding."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.laws.test_compiled import as_expected
from conformance.programs.compiled import compiling, sums_of
from conformance.programs.program import Named
from conformance.programs.scenarios.compiled import inductor
from conformance.rows.for_readers import for_readers
from impls import Implementation

SUMS = sums_of("inductor")


def _kinds(claims: Implementation) -> tuple[st.SearchStrategy[Named], ...]:
    """One program of each kind, because each takes seconds to compile."""
    of_claims = {"dropout": "rng", "nested": "nesting", "policy": "context-fn"}
    kinds = ["shared", *(kind for kind, capability in of_claims.items() if capability in claims.capabilities)]
    return tuple(compiling(inductor.kinds_of_regions, SUMS, kind=st.just(kind)) for kind in kinds)


@for_readers("everyday", "wrong gradient", "torch.compile, inductor, dropout, fallback_random, SAC")
@law(
    _kinds,
    needs=["compiled"],
    recomputes=False,
    effort=0.004,
    floor=1,
    devices=["cpu"],
    compiler=True,
    family="compiled",
)
def test_kinds_of_regions_compiled_by_inductor(case: Case) -> None:
    """Under inductor regions with dropout or a policy, inside of others, or with a weight in common give plain's gradients."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", 'torch.compile, mode="reduce-overhead", CUDA graphs, cudagraph trees')
@law(
    compiling(inductor.in_cuda_graphs, SUMS, regions=st.integers(1, 2)),
    needs=["compiled"],
    recomputes=False,
    effort=0.01,
    floor=1,
    devices=["cuda"],
    compiler=True,
    family="compiled",
)
def test_regions_compiled_with_reduced_overhead(case: Case) -> None:
    """With mode="reduce-overhead", which replays CUDA graphs, a step with regions gives plain's gradients in each call."""
    as_expected(case)
