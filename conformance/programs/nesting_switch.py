"""A switch that all strategies read: may drawn programs have regions inside regions? It depends on the implementation."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

_ALLOWED: ContextVar[bool] = ContextVar("nesting", default=True)


@st.composite
def nesting(draw: Any, drawn: st.SearchStrategy[T], *, allowed: bool) -> T:
    """What the strategy draws while programs may nest, or while they may not."""
    before = _ALLOWED.set(allowed)
    try:
        return draw(drawn)
    finally:
        _ALLOWED.reset(before)


@st.composite
def if_nesting(draw: Any, drawn: st.SearchStrategy[T], otherwise: T) -> T:
    """What the strategy draws where programs may nest, and otherwise a constant."""
    return draw(drawn) if _ALLOWED.get() else otherwise


def allows_nesting() -> bool:
    """Whether the program that is being drawn may nest."""
    return _ALLOWED.get()
